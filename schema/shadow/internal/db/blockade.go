package db

import (
	"context"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/peer"
)

type KeyColumns struct {
	Attempts, Holders, Targets []uuid.UUID
	Fields                     []int32
}

// KeyColumns returns the keys as columns for unnest. It stores no field path: a blockade of an unknown path cannot exist.
func (s *DB) KeyColumns(ctx context.Context, keys []peer.BlockadeKey) (k KeyColumns, err error) {
	for _, key := range keys {
		field, err := s.Names.KnownField(ctx, key.Path)
		if err != nil {
			return k, err
		}
		k.Attempts, k.Holders = append(k.Attempts, key.Attempt), append(k.Holders, key.HolderUID)
		k.Targets, k.Fields = append(k.Targets, key.TargetUID), append(k.Fields, field)
	}
	return k, nil
}

const (
	// ExpiredSQL is a condition on a tentative blockade b, to be followed by TentativeTTL, an interval, and ")": it has
	// expired, or its expiry is impossibly late because the clock went back. Resolving early costs a retry of the write.
	ExpiredSQL = `(b.expires_at <= now() OR b.expires_at > now() + interval '1 s' + 2 * `
)
