package operate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	pauseSQL = `UPDATE dbcontroller.deployment SET paused = $2 WHERE id = $1 AND paused <> $2`

	pauseHandlerSQL = `
UPDATE dbcontroller.deployment SET paused_handlers = CASE WHEN $2 THEN array_append(paused_handlers, $3) ELSE array_remove(paused_handlers, $3) END
WHERE id = $1 AND COALESCE($3 = ANY (paused_handlers), false) <> $2`

	// Of this deployment first. The decision is the newest one about the same.
	pausesSQL = `
SELECT d.service, d.region, p.handler, COALESCE(w.reason, ''), COALESCE(w.said_by, ''), COALESCE(w.said_at, now())
FROM dbcontroller.deployment d
CROSS JOIN LATERAL (SELECT '' WHERE d.paused UNION ALL SELECT unnest(d.paused_handlers)) AS p (handler)
LEFT JOIN LATERAL (
    SELECT reason, said_by, said_at FROM dbcontroller.word w
    WHERE w.deployment_id = d.id AND w.what = COALESCE(NULLIF(p.handler, ''), 'DELETIONS') || '_PAUSED' ORDER BY w.seq DESC LIMIT 1
) AS w ON true
ORDER BY d.id <> $1, d.service, d.region, p.handler`

	deletions = "DELETIONS"
)

// Pause is a pause of deletions or of a handler here, and the decision.
type Pause struct {
	// Of is this deployment for a pause as a whole, or the other deployment for whose deletions or work
	// nothing is done.
	Of schema.DeploymentID
	// Handler is empty for deletions: all marks and removals here, or the work for the deletions of Of.
	Handler    schema.Handler
	Reason, By string
	At         time.Time
}

// Pause is an operator's decision that nothing is marked or removed here (of this deployment), or that
// nothing is done here for the deletions of another deployment; with a handler, that this handler does
// nothing at all, or nothing for another deployment; or that this goes on, at once in every process.
// Transactions that have checked the pause before end; a handler stops within handlerPausesKept. It is
// idempotent; the decision is recorded with its reason and its author (by).
func (s *Operations) Pause(ctx context.Context, of schema.DeploymentID, handler schema.Handler, paused bool, reason,
	by string,
) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	what, statement, args := deletions, pauseSQL, []any{id, paused}
	if handler != "" {
		what, statement, args = string(handler), pauseHandlerSQL, append(args, string(handler))
	}
	if what += "_RESUMED"; paused {
		what = what[:len(what)-len("_RESUMED")] + "_PAUSED"
	}
	whose := of
	if of == s.Self {
		whose = schema.DeploymentID{}
	}
	err = s.gate.RecordDecision(ctx, id, what, reason, by, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, statement, args...)
		if err == nil && !paused {
			_, err = tx.Exec(ctx, db.NotifyRetrySQL, retryPayload(whose))
		}
		return tag.RowsAffected() > 0, err
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w", what, of, err)
	}
	s.handlerPauses.forget()
	if !paused { // also where notifications do not arrive
		s.Retries.Ring(whose)
	}
	s.Log.Warn("an operator has paused or resumed work", zap.String("what", what), zap.Stringer("for", of),
		zap.String("by", by), zap.String("reason", reason), requestid.Field(ctx))
	return nil
}

func retryPayload(of schema.DeploymentID) string {
	if of.IsZero() {
		return ""
	}
	return of.String()
}

// Pauses lists the pauses here, the pause of the whole deployment first.
func (s *Operations) Pauses(ctx context.Context) ([]Pause, error) {
	rows, err := s.Pool.Query(ctx, pausesSQL, s.SelfID)
	if err != nil {
		return nil, fmt.Errorf("read the pauses: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Pause, err error) {
		err = row.Scan(&p.Of.Service, &p.Of.Region, &p.Handler, &p.Reason, &p.By, &p.At)
		return p, err
	})
}

// handlerPausesKept is the time for which a process goes by the paused handlers that it has read: a pause
// takes effect within this time. A resume ends it.
const handlerPausesKept = time.Second

// handlerPauses are the paused handlers that this process has read.
type handlerPauses struct {
	mu sync.Mutex
	// guarded by mu
	read  time.Time
	known []Pause
}

func (p *handlerPauses) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = time.Time{}
}

// CheckHandler fails with *UnavailableError while a handler is paused, as a whole or for a deployment.
func (s *Operations) CheckHandler(ctx context.Context, handler schema.Handler, of schema.DeploymentID) error {
	p := &s.handlerPauses
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) > handlerPausesKept {
		known, err := s.Pauses(ctx)
		if err != nil {
			return err
		}
		p.known, p.read = known, time.Now()
	}
	for _, k := range p.known {
		if k.Handler == handler && (k.Of == of || k.Of == s.Self) {
			return &peer.UnavailableError{
				Deployments: []schema.DeploymentID{k.Of},
				Err:         fmt.Errorf("%s: %w", handler.Text(), peer.ErrHandlerPaused),
			}
		}
	}
	return nil
}
