// Package readmask keeps of a resource the fields that a caller asks for (AIP-157).
package readmask

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Prune removes the fields that a read mask does not name (AIP-157): fields of the resource, labels.<key>,
// body.<field>... The fields that identify the resource stay.
func Prune(p *resourcev1.Resource, mask *fieldmaskpb.FieldMask) error {
	paths := mask.GetPaths()
	if p == nil || len(paths) == 0 || slices.Contains(paths, "*") {
		return nil
	}
	if err := Check(mask); err != nil {
		return err
	}
	in := p.ProtoReflect()
	fields := in.Descriptor().Fields()
	keep := keptFields{
		whole: map[string]bool{"name": true, "kind": true, "uid": true}, labels: map[string]string{},
		body: map[string]*structpb.Value{},
	}
	for _, path := range paths {
		if err := keep.add(p, fields, path); err != nil {
			return outcome.Invalid("read_mask", err)
		}
	}
	for i := range fields.Len() {
		if f := fields.Get(i); !keep.whole[string(f.Name())] {
			in.Clear(f)
		}
	}
	if !keep.whole["labels"] {
		p.Labels = keep.labels
	}
	if !keep.whole["body"] && len(keep.body) > 0 {
		p.Body = &structpb.Struct{Fields: keep.body}
	}
	return nil
}

// Check refuses a read mask that is too long, before it is looked at.
func Check(mask *fieldmaskpb.FieldMask) error {
	if slices.Contains(mask.GetPaths(), "*") {
		return nil
	}
	if err := shadow.CheckMask(mask.GetPaths()); err != nil {
		return outcome.Invalid("read_mask", err)
	}
	return nil
}

// keptFields are the fields that a read mask names: whole fields of the resource, and single labels and
// fields of the body.
type keptFields struct {
	whole  map[string]bool
	labels map[string]string
	body   map[string]*structpb.Value
}

func (k *keptFields) add(p *resourcev1.Resource, fields protoreflect.FieldDescriptors, path string) error {
	field, rest, nested := strings.Cut(path, ".")
	if fields.ByName(protoreflect.Name(field)) == nil || nested && field != "labels" && field != "body" {
		return fmt.Errorf("unknown field %q", path)
	}
	switch {
	case !nested:
		k.whole[field] = true
	case field == "labels":
		if value, ok := p.GetLabels()[rest]; ok {
			k.labels[rest] = value
		}
	default:
		pick(p.GetBody().GetFields(), k.body, strings.Split(rest, "."))
	}
	return nil
}

// pick copies the value at a path from one message to another.
func pick(from, to map[string]*structpb.Value, path []string) {
	value, ok := from[path[0]]
	if !ok {
		return
	}
	if len(path) == 1 {
		to[path[0]] = value
		return
	}
	below := value.GetStructValue()
	if below == nil {
		return
	}
	into := to[path[0]].GetStructValue()
	if into == nil {
		into = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		to[path[0]] = structpb.NewStructValue(into)
	}
	pick(below.GetFields(), into.GetFields(), path[1:])
}
