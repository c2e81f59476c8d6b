package write

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// localRows returns the local targets of new references, without targets that the write creates.
func (s *Writer) localRows(sv *prepare.Saving) (keys []rows.Key) {
	if len(s.rows.Tables()) == 0 {
		return nil
	}
	created := map[rows.Key]bool{}
	for _, wr := range sv.Writes {
		created[rows.Key{Kind: wr.KindID, Name: wr.Name}] = wr.Before == nil
	}
	kinds, names, _ := localTargets(s.Self, []*prepare.Saving{sv})
	for i := range kinds {
		if k := (rows.Key{Kind: kinds[i], Name: names[i]}); !created[k] {
			keys = append(keys, k)
		}
	}
	return keys
}

// touchesRows reports whether a saving refers to rows of attached tables here: it locks them, and waits for
// them, in a transaction of its own.
func (s *Writer) touchesRows(sv *prepare.Saving) bool {
	return s.rows.Any(s.localRows(sv))
}

// ensureRows locks the rows among the local targets, before any shadow, and gives them shadows.
func (s *Writer) ensureRows(ctx context.Context, tx pgx.Tx, sv *prepare.Saving) error {
	var err error
	sv.LocalRows = s.localRows(sv)
	sv.Absent, err = s.rows.Ensure(ctx, tx, sv.LocalRows)
	if db.HasCode(err, db.CodeLockNotAvailable) {
		return fmt.Errorf("%w: another transaction deletes the row of a target", peer.ErrAborted)
	}
	return err
}

// refuseGoing refuses local targets whose row is deleted, also when the deletion is not carried out yet.
func (s *Writer) refuseGoing(ctx context.Context, tx pgx.Tx, sv *prepare.Saving, l *locked) error {
	going, err := s.rows.Going(ctx, tx, sv.LocalRows)
	if err != nil {
		return err
	}
	for _, k := range append(going, sv.Absent...) {
		for _, wr := range sv.Writes {
			for _, ref := range wr.Add {
				if ref.Target.Deployment == s.Self && ref.Target.Name == k.Name {
					l.refused[sv] = append(l.refused[sv], peer.Refusal{
						Holder: wr.Name, Path: ref.Path,
						Target: ref.Target, Reason: peer.TargetDeleting,
					})
				}
			}
		}
	}
	return nil
}
