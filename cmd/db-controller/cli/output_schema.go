package cli

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// OutputVersion is the version of the documents that commands print. Within a version fields and values are
// added, and none is removed or gets another type.
const OutputVersion = "v1"

// Output is a document that commands print with -o json and -o yaml: a value of its type, and a sentence
// about it. The value is a message, a slice of messages, or a value for encoding/json; a json.RawMessage in
// it has the full name of its message in the tag "message".
type Output struct {
	About string
	Value any
}

// Outputs are documents by their names, which are lower-case words with hyphens.
type Outputs map[string]Output

// MessageWith is an Output of a message whose JSON has further fields: those of a struct.
type MessageWith struct {
	Message proto.Message
	More    any
}

// Schema returns the JSON Schema of an Output. A strict one refuses fields that it lacks; others may come
// later.
func (all Outputs) Schema(name string, strict bool) (map[string]any, error) {
	o, ok := all[name]
	if !ok {
		return nil, Usage("there is no output %q: want one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	w := &schemaWriter{strict: strict, defs: object{}}
	s := w.value(reflect.TypeOf(o.Value), o.Value, "")
	if ref, ok := s["$ref"].(string); ok { // a message of its own
		s = w.defs[strings.TrimPrefix(ref, "#/$defs/")].(object)
	}
	out := object{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": OutputVersion + "/" + name +
		".json", "title": name, "description": o.About}
	maps.Copy(out, s)
	if len(w.defs) > 0 {
		out["$defs"] = w.defs
	}
	return out, nil
}

// schemaWriter writes the schema of one document.
type schemaWriter struct {
	strict bool
	defs   object // of messages, by their full names
}

var (
	rawMessage = reflect.TypeFor[json.RawMessage]()
	timeType   = reflect.TypeFor[time.Time]()
	textType   = reflect.TypeFor[encoding.TextMarshaler]()
	protoType  = reflect.TypeFor[proto.Message]()
)

// value returns the schema of a type of Go. An example has the type of a message inside an interface or a
// slice.
func (w *schemaWriter) value(t reflect.Type, example any, message string) object {
	if with, ok := example.(MessageWith); ok {
		return w.messageWith(with)
	}
	switch {
	case t.Implements(protoType):
		return w.message(reflect.New(t.Elem()).Interface().(proto.Message).ProtoReflect().Descriptor())
	case t == rawMessage:
		found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(message))
		if err != nil { // of another program's message
			return object{"type": "object"}
		}
		return w.message(found.Descriptor())
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t.Implements(textType), reflect.PointerTo(t).Implements(textType):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.value(t.Elem(), nil, message)
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice, reflect.Array:
		var element any
		if s := reflect.ValueOf(example); example != nil && s.Len() > 0 {
			element = s.Index(0).Interface()
		}
		return object{"type": "array", "items": w.value(t.Elem(), element, message)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": w.value(t.Elem(), nil, message)}
	case reflect.Struct:
		return w.structure(t)
	case reflect.Interface:
		return object{}
	default: // the integers
		return object{"type": "integer"}
	}
}

// messageWith adds the fields of a struct to a message's.
func (w *schemaWriter) messageWith(with MessageWith) object {
	name := string(with.Message.ProtoReflect().Descriptor().FullName())
	w.message(with.Message.ProtoReflect().Descriptor())
	s := maps.Clone(w.defs[name].(object))
	more := w.structure(reflect.TypeOf(with.More))
	properties := maps.Clone(s["properties"].(object))
	maps.Copy(properties, more["properties"].(object))
	s["properties"], s["required"] = properties, more["required"]
	return s
}

func (w *schemaWriter) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || tag == "-" || f.Anonymous {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		properties[tag] = w.value(f.Type, nil, f.Tag.Get("message"))
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, tag)
		}
	}
	slices.Sort(required)
	s := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	w.close(s)
	return s
}

func (w *schemaWriter) close(s object) {
	if w.strict {
		s["additionalProperties"] = false
	}
}

// message returns a reference to the schema of a message, in the form of messageJSON.
func (w *schemaWriter) message(d protoreflect.MessageDescriptor) object {
	switch d.FullName() {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration", "google.protobuf.FieldMask":
		return object{"type": "string"}
	case "google.protobuf.Struct":
		return object{"type": "object"}
	case "google.protobuf.Value":
		return object{}
	}
	name := string(d.FullName())
	ref := object{"$ref": "#/$defs/" + name}
	if w.defs[name] != nil {
		return ref
	}
	properties := object{}
	s := object{"type": "object", "properties": properties}
	w.defs[name] = s // before its fields, which may have it again
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch {
		case f.IsMap():
			properties[f.JSONName()] = object{"type": "object", "additionalProperties": w.field(f.MapValue())}
		case f.IsList():
			properties[f.JSONName()] = object{"type": "array", "items": w.field(f)}
		default:
			properties[f.JSONName()] = w.field(f)
		}
	}
	w.close(s)
	return ref
}

func (w *schemaWriter) field(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.message(f.Message())
	case protoreflect.EnumKind:
		words := []string{}
		for i := range f.Enum().Values().Len() {
			words = append(words, strings.TrimPrefix(string(f.Enum().Values().Get(i).Name()), enumPrefix(f.Enum())))
		}
		return object{"enum": words}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Uint32Kind, protoreflect.Fixed32Kind,
		protoreflect.Sfixed32Kind:
		return object{"type": "integer"}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind,
		protoreflect.Sfixed64Kind:
		return object{"type": "string", "pattern": "^-?[0-9]+$"} // JSON numbers are doubles for many readers
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	default:
		return object{"type": "string"}
	}
}
