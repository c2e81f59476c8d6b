package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Numbers of fields of Resource, and of google.protobuf.Struct and its parts.
var bodyField = (&resourcev1.Resource{}).ProtoReflect().Descriptor().Fields().ByName("body").Number()

const (
	structFields = 1
	entryKey     = 1
	entryValue   = 2
	listValues   = 1
	valueNull    = 1
	valueNumber  = 2
	valueString  = 3
	valueBool    = 4
	valueStruct  = 5
	valueList    = 6
)

// Picked are the fields of a body that a read mask names.
type Picked struct {
	whole bool
	below map[string]*Picked
}

// PickedOf returns the fields of the body that a mask names; nil for none.
func PickedOf(paths []string) *Picked {
	if len(paths) == 0 || slices.Contains(paths, "*") || slices.Contains(paths, "body") {
		return &Picked{whole: true}
	}
	var all *Picked
	for _, path := range paths {
		if rest, ok := strings.CutPrefix(path, "body."); ok {
			if all == nil {
				all = &Picked{}
			}
			all.add(strings.Split(rest, "."))
		}
	}
	return all
}

func (p *Picked) add(path []string) {
	if len(path) == 0 {
		p.whole = true
		return
	}
	if p.below == nil {
		p.below = map[string]*Picked{}
	}
	if p.below[path[0]] == nil {
		p.below[path[0]] = &Picked{}
	}
	p.below[path[0]].add(path[1:])
}

func (p *Picked) of(field string) *Picked {
	if p == nil || p.whole {
		return p
	}
	return p.below[field]
}

// Body returns the field body of a Resource, encoded, from the JSON of a stored body: no value of it is in
// memory by itself. It is empty when the fields that a mask names are missing.
func Body(body []byte, of *Picked) ([]byte, error) {
	e := &encoder{in: json.NewDecoder(bytes.NewReader(body)), out: make([]byte, 0, len(body)+len(body)/4)}
	if open, err := e.in.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("%v is no object: %w", open, err)
	}
	empty := true
	err := e.nested(bodyField, func() (err error) {
		empty, err = e.fields(of)
		return err
	})
	if err != nil || empty && !of.wholly() {
		return nil, err
	}
	return e.out, nil
}

// encoder reads JSON and writes google.protobuf.Value.
type encoder struct {
	in  *json.Decoder
	out []byte
}

// nested writes a field with a message, and its length before it.
func (e *encoder) nested(field protowire.Number, content func() error) error {
	e.out = append(protowire.AppendTag(e.out, field, protowire.BytesType), 0)
	begin := len(e.out)
	if err := content(); err != nil {
		return err
	}
	length := len(e.out) - begin
	more := protowire.SizeVarint(uint64(length)) - 1
	e.out = append(e.out, make([]byte, more)...)
	copy(e.out[begin+more:], e.out[begin:begin+length])
	protowire.AppendVarint(e.out[:begin-1], uint64(length))
	return nil
}

// fields writes the picked fields of an object whose beginning is read, as a Struct.
func (e *encoder) fields(of *Picked) (empty bool, err error) {
	for empty = true; e.in.More(); {
		key, err := e.in.Token()
		if err != nil {
			return empty, err
		}
		name, _ := key.(string)
		begin, wrote := len(e.out), false
		err = e.nested(structFields, func() error {
			e.out = protowire.AppendString(protowire.AppendTag(e.out, entryKey, protowire.BytesType), name)
			return e.nested(entryValue, func() (err error) {
				wrote, err = e.value(of.of(name))
				return err
			})
		})
		if err != nil {
			return empty, err
		}
		if empty = empty && !wrote; !wrote {
			e.out = e.out[:begin]
		}
	}
	_, err = e.in.Token()
	return empty, err
}

// value writes the next value, as a Value. A value that is not picked is read only; so is one without fields
// of which fields are picked.
func (e *encoder) value(of *Picked) (wrote bool, err error) {
	token, err := e.in.Token()
	if err != nil {
		return false, err
	}
	whole := of.wholly()
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return whole, e.nested(valueList, func() error { return e.elements(of) })
		}
		return of != nil, e.nested(valueStruct, func() error {
			_, err := e.fields(of)
			return err
		})
	case string:
		e.out = protowire.AppendString(protowire.AppendTag(e.out, valueString, protowire.BytesType), token)
	case float64:
		e.out = protowire.AppendFixed64(protowire.AppendTag(e.out, valueNumber, protowire.Fixed64Type),
			math.Float64bits(token))
	case bool:
		e.out = protowire.AppendVarint(protowire.AppendTag(e.out, valueBool, protowire.VarintType),
			protowire.EncodeBool(token))
	default:
		e.out = protowire.AppendVarint(protowire.AppendTag(e.out, valueNull, protowire.VarintType), 0)
	}
	return whole, nil
}

// elements writes the elements of a list whose beginning is read, as a ListValue.
func (e *encoder) elements(of *Picked) error {
	if !of.wholly() {
		of = nil
	}
	for e.in.More() {
		err := e.nested(listValues, func() error {
			_, err := e.value(of)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := e.in.Token()
	return err
}

func (p *Picked) wholly() bool { return p != nil && p.whole }
