package cascade

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// A scheduled deletion keeps nothing: it looks again when it is carried out.
const selectFrozenOwneesSQL = `
SELECT m.target_id, bool_or(f.committed) FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion)
WHERE m.target_id = ANY ($1) AND (f.committed OR f.purge_at IS NULL) GROUP BY m.target_id`

// heedFrozen decides about members of atomic deletions that would stay without owners: nothing would mark
// them then, and they would be frozen for ever. A member of a committed deletion goes with its last owner,
// whichever deletions took the owners. While it is not known here whether the deletion is committed, or when
// a person drops the owner, the change fails with ErrAborted. The ownees are locked.
func (e *ownerEdit) heedFrozen(ctx context.Context, tx pgx.Tx, locked []*plan.Member) error {
	names := map[int64]string{}
	var ids []int64
	for _, m := range locked {
		if m.Frozen && m.State == peer.Active && e.left[m.ID] == 0 && e.changed[m.ID] && !e.collects(m.ID) {
			ids, names[m.ID] = append(ids, m.ID), m.Name
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, selectFrozenOwneesSQL, ids)
	if err != nil {
		return fmt.Errorf("read frozen ownees: %w", err)
	}
	waits := ""
	var id int64
	var committed bool
	_, err = pgx.ForEachRow(rows, []any{&id, &committed}, func() error {
		switch {
		case committed && !e.change.Stays:
			e.deletes[id] = true
		case e.change.Stays || e.lostBefore(id):
			waits = names[id]
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read frozen ownees: %w", err)
	}
	if waits != "" {
		return db.UndecidedFreeze.Refuse(waits)
	}
	return nil
}

// lostBefore reports whether an ownee has lost an owner without unset_on_delete, which makes it a member
// together with the others.
func (e *ownerEdit) lostBefore(ownee int64) bool {
	for in := range e.before {
		if in.ownee == ownee {
			return true
		}
	}
	return false
}
