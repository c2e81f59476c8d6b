package cascade

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// finalRows returns the rows that still exist of resources that are about to be removed: the resources had
// blockers when they were marked.
func (s *Actor) finalRows(ctx context.Context, tx pgx.Tx, ids []int64, behind bool) ([]rows.Key, error) {
	if err := s.rows.Refresh(ctx, tx, behind); err != nil || len(s.rows.Tables()) == 0 || len(ids) == 0 {
		return nil, err
	}
	found, err := tx.Query(ctx, `
SELECT s.kind_id, s.name FROM dbcontroller.shadow s WHERE s.id = ANY ($1) AND NOT s.hidden
    AND NOT EXISTS (SELECT FROM dbcontroller.deleted_row d WHERE d.kind_id = s.kind_id AND d.name = s.name AND d.gone = s.uid)`, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[rows.Key])
}

// hidingBodies returns the kinds that hide, without kinds with tables: their rows go with the resource.
func (s *Actor) hidingBodies() []int32 {
	return slices.DeleteFunc(slices.Clone(s.hiding()), func(kind int32) bool { return s.rows.Of(kind) != nil })
}

// Gone is a resource whose row was deleted by SQL, and the deleting user.
type Gone struct {
	ID    int64
	Actor string
}

var hideGoneSQL = db.Codes(`
WITH hiding AS (
    UPDATE dbcontroller.shadow s SET hidden = true, revision = nextval('dbcontroller.revision')
    WHERE id = ANY ($1) AND state = {deleting} AND NOT hidden
    RETURNING uid, revision, generation, kind_id, created_at, name
)` + db.ChangeGone(`revision`, `hiding`))

// RowsGone carries out the deletion of resources whose rows were deleted by SQL, with all cascades. Blockers
// that arrived too late for the statement to be refused keep the resource in DELETING. It ends the given
// notes in the same transaction.
func (s *Actor) RowsGone(ctx context.Context, gone []Gone, notes []int64) error {
	actors := map[int64]string{}
	ids := make([]int64, len(gone))
	for i, g := range gone {
		ids[i], actors[g.ID] = g.ID, g.Actor
	}
	return s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
		locked, err := LockMembers(ctx, tx, ids)
		if err != nil {
			return err
		}
		var roots []*plan.Member
		for _, m := range locked {
			if m.Rowless = true; m.State != peer.Active {
				continue
			}
			m.Why = plan.Reason{How: peer.Requested, Cause: s.causeOfSQL(m, actors[m.ID])}
			roots = append(roots, m)
		}
		if len(roots) > 0 {
			d, err := s.decideOn(ctx, tx, roots)
			if err != nil {
				return err
			}
			if err := s.carryOut(ctx, tx, d); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		b.Queue(hideGoneSQL, IDsOf(locked))
		b.Queue(`DELETE FROM dbcontroller.deleted_row WHERE seq = ANY ($1)`, notes)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("delete resources whose rows are gone: %w", err)
		}
		return nil
	})
}

// RowsCascade carries out the deletion of resources whose rows name a target that is gone. still returns the
// names of the rows that name it, under the locks of the resources and of the rows.
func (s *Actor) RowsCascade(ctx context.Context, ids []int64, why plan.Reason,
	still func(pgx.Tx) (map[string]bool, error),
) error {
	return s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
		locked, err := LockMembers(ctx, tx, ids)
		if err != nil {
			return err
		}
		keys := make([]rows.Key, len(locked))
		for i, m := range locked {
			keys[i] = rows.Key{Kind: m.Kind, Name: m.Name}
		}
		if err := s.rows.Take(ctx, tx, keys, false); err != nil {
			return err
		}
		named, err := still(tx)
		if err != nil {
			return err
		}
		var roots []*plan.Member
		for _, m := range locked {
			if m.State == peer.Active && named[m.Name] {
				m.Why = why
				roots = append(roots, m)
			}
		}
		if len(roots) == 0 {
			return nil
		}
		d, err := s.decideOn(ctx, tx, roots)
		if err != nil {
			return err
		}
		return s.carryOut(ctx, tx, d)
	})
}

func (s *Actor) causeOfSQL(m *plan.Member, actor string) *schema.Cause {
	c := CauseOr(nil, s.Self, m.Name, m.UID)
	c.ID, c.Actor = uuid.Must(uuid.NewV7()), "postgres/"+actor
	return c
}
