package postgres

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// UUIDs are sent and read as pgx would do it, without a text and a copy for each.
func TestUUIDsAreSentAndReadByTheirBytes(t *testing.T) {
	pgx, ours := pgtype.NewMap(), pgtype.NewMap()
	registerUUIDs(ours)
	ids := make([]uuid.UUID, 100)
	for i := range ids {
		ids[i] = uuid.New()
	}
	var none *uuid.UUID
	for _, value := range []any{
		ids, ids[:0], []uuid.UUID(nil), ids[0], &ids[0], none,
		[]*uuid.UUID{&ids[0], nil},
		[16]byte(ids[0]),
	} {
		oid := uint32(pgtype.UUIDOID)
		switch value.(type) {
		case []uuid.UUID, []*uuid.UUID:
			oid = pgtype.UUIDArrayOID
		}
		for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
			want, err := pgx.Encode(oid, format, value, nil)
			require.NoError(t, err)
			got, err := ours.Encode(oid, format, value, nil)
			require.NoError(t, err)
			require.Equal(t, want, got, "%T", value)
		}
	}

	raw, err := ours.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids, nil)
	require.NoError(t, err)
	var all []uuid.UUID
	require.NoError(t, ours.Scan(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, raw, &all))
	require.Equal(t, ids, all)
	var one uuid.UUID
	var maybe *uuid.UUID
	require.NoError(t, ours.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, ids[1][:], &one))
	require.NoError(t, ours.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, ids[1][:], &maybe))
	require.Equal(t, ids[1], one)
	require.Equal(t, ids[1], *maybe)
	require.NoError(t, ours.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, nil, &maybe))
	require.Nil(t, maybe)
	require.NoError(t, ours.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, nil, &one))
	require.Equal(t, ids[1], one, "NULL leaves it, as uuid.UUID does")
	require.Error(t, ours.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, ids[1][:15], &one))

	buf := make([]byte, 0, 4096)
	allocations := testing.AllocsPerRun(10, func() {
		_, err = ours.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids, buf)
	})
	require.NoError(t, err)
	require.Less(t, allocations, 10.0, "of a hundred")
}
