package service

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

var (
	errBodyTooLarge = fmt.Errorf("body: more than %d bytes as JSON", shadow.MaxBodyBytes)
	errBodyTooDeep  = fmt.Errorf("body: more than %d levels", shadow.MaxBodyDepth)
)

// checkBody refuses a body that is too large or too deep, or has a number that JSON does not have, before it is converted.
// It stops at the first problem, so that no message costs more than a walk over MaxBodyBytes.
func checkBody(body *structpb.Struct) error {
	left := shadow.MaxBodyBytes
	return schema.Under("body", checkFields(body, shadow.MaxBodyDepth, &left))
}

// checkFields and checkValue subtract from left the least number of bytes that the value can have as JSON.
func checkFields(s *structpb.Struct, levels int, left *int) error {
	for name, field := range s.GetFields() {
		*left -= len(name) + len(`"":`)
		if err := checkValue(field, levels, left); err != nil {
			return schema.Under(name, err)
		}
	}
	return nil
}

func checkValue(v *structpb.Value, levels int, left *int) error {
	*left-- // a digit, a bracket, a quotation mark
	switch {
	case *left < 0:
		return errBodyTooLarge
	case levels == 0:
		return errBodyTooDeep
	}
	switch kind := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsInf(kind.NumberValue, 0) || math.IsNaN(kind.NumberValue) {
			return schema.FieldErrorf("%v cannot be stored: JSON has no such number", kind.NumberValue)
		}
	case *structpb.Value_StringValue:
		*left -= len(kind.StringValue)
	case *structpb.Value_StructValue:
		return checkFields(kind.StructValue, levels-1, left)
	case *structpb.Value_ListValue:
		for i, element := range kind.ListValue.GetValues() {
			if err := checkValue(element, levels-1, left); err != nil {
				return schema.UnderIndex(i, err)
			}
		}
	}
	if *left < 0 {
		return errBodyTooLarge
	}
	return nil
}
