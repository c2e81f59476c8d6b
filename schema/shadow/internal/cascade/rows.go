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

// rowsOf returns the rows of attached tables that a decision deletes: of members that are removed, and of those that are marked and
// not seen any more. The row of a member with a blocker stays until the member is removed.
func (s *Actor) rowsOf(d Decision) (keys []rows.Key) {
	if len(s.rows.Tables()) == 0 {
		return nil
	}
	going := slices.DeleteFunc(slices.Concat(d.Verdict.Remove, d.Verdict.Mark), func(id int64) bool {
		m := d.Closure.Members[id]
		return m.Rowless || m.Hidden || slices.Contains(d.Verdict.Visible, id)
	})
	for _, id := range going {
		m := d.Closure.Members[id]
		keys = append(keys, rows.Key{Kind: m.Kind, Name: m.Name})
	}
	return keys
}

// unsetRows sets the columns of references in attached tables to NULL, in the rows of holders that are unset.
func (s *Actor) unsetRows(ctx context.Context, tx pgx.Tx, holders []unsetHolder, edges map[int64][]plan.Edge) error {
	type columns struct {
		kind  int32
		field int32
	}
	names := map[columns][]string{}
	var keys []rows.Key
	for _, h := range holders {
		if s.rows.Of(h.kind) == nil {
			continue
		}
		keys = append(keys, rows.Key{Kind: h.kind, Name: h.name})
		for _, e := range edges[h.id] {
			k := columns{h.kind, e.FieldID}
			names[k] = append(names[k], h.name)
		}
	}
	if err := s.rows.Take(ctx, tx, keys); err != nil {
		return err
	}
	for k, of := range names {
		path, err := s.Names.FieldOf(ctx, tx, k.field)
		if err != nil {
			return err
		}
		if err := s.rows.Unset(ctx, tx, k.kind, path, of); err != nil {
			return err
		}
	}
	return nil
}

// finalRows returns the rows that still exist of resources that are about to be removed: those that had blockers when they were marked.
func (s *Actor) finalRows(ctx context.Context, tx pgx.Tx, ids []int64) ([]rows.Key, error) {
	if len(s.rows.Tables()) == 0 || len(ids) == 0 {
		return nil, nil
	}
	found, err := tx.Query(ctx, `
SELECT s.kind_id, s.name FROM dbcontroller.shadow s WHERE s.id = ANY ($1) AND NOT s.hidden
    AND NOT EXISTS (SELECT FROM dbcontroller.captured c WHERE c.kind_id = s.kind_id AND c.name = s.name AND c.gone = s.uid)`, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[rows.Key])
}

// hidingBodies returns the kinds that hide, without those with tables: their rows go with the resource.
func (s *Actor) hidingBodies() []int32 {
	return slices.DeleteFunc(slices.Clone(s.hiding()), func(kind int32) bool { return s.rows.Of(kind) != nil })
}

// Gone is a resource whose row was deleted by SQL, and the user who did.
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

// RowsGone carries out the deletion of resources whose rows were deleted by SQL, with everything that cascades. Blockers that arrived
// too late for the statement to be refused keep the resource in DELETING. It ends the given rows of captured in the same
// transaction.
func (s *Actor) RowsGone(ctx context.Context, gone []Gone, captured []int64) error {
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
			d, err := s.DecideOn(ctx, tx, roots)
			if err != nil {
				return err
			}
			if err := s.CarryOut(ctx, tx, d); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		b.Queue(hideGoneSQL, idsOf(locked))
		b.Queue(`DELETE FROM dbcontroller.captured WHERE seq = ANY ($1)`, captured)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("delete resources whose rows are gone: %w", err)
		}
		return nil
	})
}

func (s *Actor) causeOfSQL(m *plan.Member, actor string) *schema.Cause {
	c := causeOr(nil, s.Self, m.Name, m.UID)
	c.ID, c.Actor = uuid.Must(uuid.NewV7()), "postgres/"+actor
	return c
}
