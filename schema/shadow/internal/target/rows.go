package target

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// attached reports whether the table of a kind is attached.
func (s *Keeper) attached(ctx context.Context, kind schema.KindID) bool {
	id, err := s.Names.Kind(ctx, kind)
	return err == nil && s.rows.Of(id) != nil
}

// rowKeys returns the targets of an establishment. Targets with a uid have a shadow, or had one: a new one
// would not be the same.
func (ids *establishIDs) rowKeys() []rows.Key {
	keys := make([]rows.Key, len(ids.targetNames))
	for i := range keys {
		keys[i] = rows.Key{Kind: ids.targetKinds[i], Name: ids.targetNames[i]}
	}
	return keys
}

// ensureRows locks the rows that are targets, inserts their shadows, and returns the missing ones.
func (s *Keeper) ensureRows(ctx context.Context, tx pgx.Tx, e *establishment) (map[rows.Key]bool, error) {
	absent, err := s.rows.Ensure(ctx, tx, e.ids.rowKeys())
	if db.HasCode(err, db.CodeLockNotAvailable) { // a transaction of the users deletes one of them, and is not decided
		return nil, s.refusals(e.refs, same(peer.TargetClosing, len(e.refs)))
	}
	return setOf(absent), err
}

// refuseRows refuses targets whose row is deleted. The deletion of a row is carried out later than the row is
// gone.
func (s *Keeper) refuseRows(ctx context.Context, tx pgx.Tx, e *establishment, absent map[rows.Key]bool) error {
	keys := e.ids.rowKeys()
	going, err := s.rows.Going(ctx, tx, keys)
	if err != nil {
		return err
	}
	goes := setOf(going)
	for i, k := range keys {
		switch {
		case absent[k] && e.refused[i] == "":
			e.refused[i] = peer.TargetMissing
		case goes[k]:
			e.refused[i] = peer.TargetDeleting
		}
	}
	return nil
}

func same(reason peer.Reason, n int) []peer.Reason {
	out := make([]peer.Reason, n)
	for i := range out {
		out[i] = reason
	}
	return out
}

func setOf(keys []rows.Key) map[rows.Key]bool {
	set := map[rows.Key]bool{}
	for _, k := range keys {
		set[k] = true
	}
	return set
}
