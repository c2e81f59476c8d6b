package wire

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema/violation"
)

// Bounds of an object that a message carries: its size as JSON, and its nesting.
type Bounds struct{ Bytes, Levels int }

// CheckObject refuses a field with an object that is too large or too deep, or has a number that JSON does
// not have, before the object is converted. It stops at the first problem, so that no message costs more than
// a walk over as many bytes.
func CheckObject(field string, object *structpb.Struct, most Bounds) error {
	b := &bounded{Bounds: most, field: field, left: most.Bytes}
	return violation.UnderRoot(field, b.fields(object, most.Levels))
}

// bounded is a walk over an object. It subtracts from left the least number of bytes that each value can have
// as JSON.
type bounded struct {
	Bounds
	field string
	left  int
}

func (b *bounded) tooLarge() error {
	return fmt.Errorf("%s: more than %d bytes as JSON", b.field, b.Bytes)
}

func (b *bounded) fields(s *structpb.Struct, levels int) error {
	for name, field := range s.GetFields() {
		b.left -= len(name) + len(`"":`)
		if err := b.value(field, levels); err != nil {
			return violation.Under(name, err)
		}
	}
	return nil
}

func (b *bounded) value(v *structpb.Value, levels int) error {
	b.left-- // a digit, a bracket, a quotation mark
	switch {
	case b.left < 0:
		return b.tooLarge()
	case levels == 0:
		return fmt.Errorf("%s: more than %d levels", b.field, b.Levels)
	}
	switch kind := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsInf(kind.NumberValue, 0) || math.IsNaN(kind.NumberValue) {
			return violation.Errorf("%v cannot be stored: JSON has no such number", kind.NumberValue)
		}
	case *structpb.Value_StringValue:
		b.left -= len(kind.StringValue)
	case *structpb.Value_StructValue:
		return b.fields(kind.StructValue, levels-1)
	case *structpb.Value_ListValue:
		for i, element := range kind.ListValue.GetValues() {
			if err := b.value(element, levels-1); err != nil {
				return violation.UnderIndex(i, err)
			}
		}
	}
	if b.left < 0 {
		return b.tooLarge()
	}
	return nil
}
