package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// messageJSON is the JSON of a message, in the words that commands and descriptors take: resources have full
// names, and values of enums no prefix (DELETING, and not STATE_DELETING).
func messageJSON(m proto.Message) ([]byte, error) {
	m = withFullNames(m)
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = writeWords(&out, raw, m.ProtoReflect().Descriptor())
	return out.Bytes(), err
}

// FullName is the name of a resource that every command takes.
func FullName(r *resourcev1.Resource) string { return FullNameIn(r.GetDeployment(), r.GetName()) }

// FullNameIn returns the full name of a resource that a deployment (service/region) names, relative or full.
func FullNameIn(deployment, name string) string {
	if deployment == "" || strings.HasPrefix(name, "//") {
		return name
	}
	return "//" + deployment + "/" + name
}

// withFullNames returns a message whose resources, and their owners, have full names. The token of an event
// is in the same field, whatever the event.
func withFullNames(m proto.Message) proto.Message {
	switch m := m.(type) {
	case *resourcev1.Resource:
		named := proto.CloneOf(m)
		named.Name = FullName(m)
		for _, o := range named.GetOwnerReferences() {
			o.Name = FullNameIn(m.GetDeployment(), o.GetName())
		}
		return named
	case *resourcev1.WatchResourcesResponse:
		named := proto.CloneOf(m)
		switch e := named.GetEvent().(type) {
		case *resourcev1.WatchResourcesResponse_Upsert:
			e.Upsert = withFullNames(e.Upsert).(*resourcev1.Resource)
		case *resourcev1.WatchResourcesResponse_Delete:
			e.Delete = withFullNames(e.Delete).(*resourcev1.Resource)
		case *resourcev1.WatchResourcesResponse_EndOfSnapshot_:
			named.ResumeToken = e.EndOfSnapshot.GetResumeToken()
		case *resourcev1.WatchResourcesResponse_Bookmark_:
			named.ResumeToken = e.Bookmark.GetResumeToken()
		}
		return named
	}
	return m
}

// writeWords writes the compact JSON of a message with the words of its enums, in the order of its fields.
func writeWords(out *bytes.Buffer, raw json.RawMessage, of protoreflect.MessageDescriptor) error {
	if of.ParentFile().Package() == "google.protobuf" { // Struct, Timestamp and Duration have forms of their own
		return json.Compact(out, raw)
	}
	fields := of.Fields()
	return writeMembers(out, raw, func(name string, value json.RawMessage) error {
		f := fields.ByJSONName(name)
		switch {
		case f == nil:
			return fmt.Errorf("%s has no field %s", of.FullName(), name)
		case f.IsMap():
			return writeMembers(out, value, func(_ string, value json.RawMessage) error {
				return writeValue(out, value, f.MapValue())
			})
		case f.IsList():
			return writeElements(out, value, f)
		}
		return writeValue(out, value, f)
	})
}

// writeMembers writes an object, of which a function writes the values.
func writeMembers(out *bytes.Buffer, raw json.RawMessage, write func(name string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil { // {
		return err
	}
	out.WriteByte('{')
	for first := true; d.More(); first = false {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if !first {
			out.WriteByte(',')
		}
		name, _ := json.Marshal(key) // a string
		out.Write(append(name, ':'))
		if err := write(key.(string), value); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func writeElements(out *bytes.Buffer, raw json.RawMessage, of protoreflect.FieldDescriptor) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return err
	}
	out.WriteByte('[')
	for i, element := range elements {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeValue(out, element, of); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	return nil
}

func writeValue(out *bytes.Buffer, raw json.RawMessage, of protoreflect.FieldDescriptor) error {
	switch {
	case of.Message() != nil:
		return writeWords(out, raw, of.Message())
	case of.Enum() != nil && bytes.HasPrefix(raw, []byte(`"`)): // an unknown value is a number
		raw = append([]byte{'"'}, bytes.TrimPrefix(raw[1:], []byte(enumPrefix(of.Enum())))...)
	}
	return json.Compact(out, raw)
}

// enumPrefix returns the beginning of the names of an enum's values: PRUNE_MODE_ of PruneMode.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	var prefix strings.Builder
	for i, r := range string(e.Name()) {
		if i > 0 && unicode.IsUpper(r) {
			prefix.WriteByte('_')
		}
		prefix.WriteRune(unicode.ToUpper(r))
	}
	return prefix.String() + "_"
}
