package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// uuidsByBytes lets a connection send and read uuid.UUID by its bytes. Without it pgx writes each as text and
// parses that again, because the type is a driver.Valuer.
func uuidsByBytes(_ context.Context, conn *pgx.Conn) error {
	registerUUIDs(conn.TypeMap())
	return nil
}

func registerUUIDs(m *pgtype.Map) {
	one := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}}
	m.RegisterType(one)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: &pgtype.ArrayCodec{ElementType: one}})
	m.TryWrapEncodePlanFuncs = append([]pgtype.TryWrapEncodePlanFunc{wrapUUIDs}, m.TryWrapEncodePlanFuncs...)
}

// uuidCodec is pgx's codec, and knows uuid.UUID as well.
type uuidCodec struct{ pgtype.UUIDCodec }

func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case uuid.UUID, *uuid.UUID:
			return encodeUUID{}
		}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return scanUUID{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

type encodeUUID struct{}

func (encodeUUID) Encode(value any, buf []byte) ([]byte, error) {
	switch id := value.(type) {
	case uuid.UUID:
		return append(buf, id[:]...), nil
	case *uuid.UUID:
		return append(buf, id[:]...), nil
	}
	return nil, fmt.Errorf("%T is no UUID", value)
}

type scanUUID struct{}

// Scan leaves the target as it is when the column is NULL, as uuid.UUID.Scan does.
func (scanUUID) Scan(src []byte, target any) error {
	if src == nil {
		return nil
	}
	id, ok := target.(*uuid.UUID)
	if !ok || len(src) != len(id) {
		return fmt.Errorf("%d bytes are no UUID for %T", len(src), target)
	}
	copy(id[:], src)
	return nil
}

// uuidArray is a slice of UUIDs whose elements need no memory of their own.
type uuidArray []uuid.UUID

func (a uuidArray) Dimensions() []pgtype.ArrayDimension {
	if a == nil {
		return nil
	}
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}} //nolint:gosec // a message has far fewer
}

func (a uuidArray) Index(i int) any { return &a[i] }

func (uuidArray) IndexType() any { return (*uuid.UUID)(nil) }

func wrapUUIDs(value any) (pgtype.WrappedEncodePlanNextSetter, any, bool) {
	if a, ok := value.([]uuid.UUID); ok {
		return &encodeUUIDArray{}, uuidArray(a), true
	}
	return nil, nil, false
}

type encodeUUIDArray struct{ next pgtype.EncodePlan }

func (p *encodeUUIDArray) SetNext(next pgtype.EncodePlan) { p.next = next }

func (p *encodeUUIDArray) Encode(value any, buf []byte) ([]byte, error) {
	a, ok := value.([]uuid.UUID)
	if !ok {
		return nil, fmt.Errorf("%T is no array of UUIDs", value)
	}
	return p.next.Encode(uuidArray(a), buf)
}
