package cascade

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/progress"
)

// tally counts what a decision does, by deletion.
func (s *Actor) tally(ctx context.Context, tx pgx.Tx, d Decision) error {
	var marked []int64 // earlier, and removed now
	for _, id := range d.Verdict.Mark {
		s.tallyMember(tx, d.Closure.Members[id], progress.Counts{Found: 1})
	}
	for _, id := range d.Verdict.Remove {
		if m := d.Closure.Members[id]; m.State == peer.Active {
			s.tallyMember(tx, m, progress.Counts{Found: 1, Removed: 1})
		} else {
			marked = append(marked, id)
		}
	}
	for _, e := range d.Verdict.Unset {
		s.tallyMember(tx, d.Closure.Members[e.TargetID], progress.Counts{Unset: 1})
	}
	return s.tallyFinalised(ctx, tx, marked)
}

func (s *Actor) tallyMember(tx pgx.Tx, m *plan.Member, c progress.Counts) {
	if m.State != peer.Active || m.Why.Cause == nil {
		return // counted when it was marked
	}
	s.progress.Add(tx, m.Why.Cause, c)
	if m.Why.How == peer.Requested && c.Removed > 0 {
		s.progress.Ended(tx, m.Why.Cause.At)
	}
}

var finalisedSQL = db.Codes(`
SELECT x.deletion_id, min(x.root), count(*), min(x.at) FILTER (WHERE x.how = {requested})
FROM dbcontroller.shadow s JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid JOIN dbcontroller.cause x ON x.id = r.cause_id
WHERE s.id = ANY ($1) GROUP BY 1`)

// tallyFinalised counts resources in DELETING that are about to be removed.
func (s *Actor) tallyFinalised(ctx context.Context, tx pgx.Tx, free []int64) error {
	if len(free) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, finalisedSQL, free)
	if err != nil {
		return fmt.Errorf("count removals: %w", err)
	}
	var cause schema.Cause
	var n int64
	var began *time.Time
	_, err = pgx.ForEachRow(rows, []any{&cause.ID, &cause.Root, &n, &began}, func() error {
		s.progress.Add(tx, &schema.Cause{ID: cause.ID, Root: cause.Root}, progress.Counts{Removed: n})
		if began != nil {
			s.progress.Ended(tx, *began)
		}
		return nil
	})
	return err
}
