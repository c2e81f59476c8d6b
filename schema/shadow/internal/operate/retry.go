package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	workRetried = "WORK_RETRIED"

	// Notes of attached tables wait in the database: values whose target does not exist up to an hour.
	retryDeletedRowsSQL = `UPDATE dbcontroller.deleted_row SET due = now() WHERE due > now()`
	retryLackingSQL     = `UPDATE dbcontroller.lacking SET due = now() WHERE due > now()`

	selectShadowSQL = `SELECT id, uid, state FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`
)

// Retry is an operator's decision (by) that the work for a deployment, or all work for the zero one, is tried
// at once by every process of this deployment, with the work here for that deployment's deletions. A process
// that does not hear of it tries again when the pause is over. The decision is recorded. It fails with
// *InvalidError.
func (s *Operations) Retry(ctx context.Context, of schema.DeploymentID, reason, by string) error {
	return s.retry(ctx, []schema.DeploymentID{of}, "", reason, by)
}

// RetryResource is Retry for the work of a resource. It returns the deployments that the resource waits for:
// the cause may be there. It fails with ErrNotFound and *InvalidError.
func (s *Operations) RetryResource(ctx context.Context, name, reason, by string) ([]schema.DeploymentID, error) {
	r, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	waitsFor, err := db.WaitsFor(ctx, s.Pool, r.id, r.uid)
	if err != nil {
		return nil, err
	}
	of := waitsFor
	if len(of) == 0 { // the decision is recorded all the same
		of = []schema.DeploymentID{s.Self}
	}
	return waitsFor, s.retry(ctx, of, name+" "+r.uid.String()+": ", reason, by)
}

func (s *Operations) retry(ctx context.Context, of []schema.DeploymentID, about, reason, by string) error {
	if reason == "" || len(reason) > 1000 {
		return &peer.InvalidError{
			Resource: "reason",
			Err:      errors.New("want 1 to 1000 characters; the reason is stored with the decision"),
		}
	}
	told := make([]string, len(of))
	ids := make([]int32, len(of))
	for i, d := range of {
		var err error
		if told[i] = d.String(); d.IsZero() {
			d, told[i] = s.Self, ""
		}
		if ids[i], err = s.Names.Deployment(ctx, d); err != nil {
			return err
		}
	}
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(retryDeletedRowsSQL)
		b.Queue(retryLackingSQL)
		for i := range of {
			b.Queue(recordSQL, ids[i], workRetried, about+reason, by)
			b.Queue(db.NotifyRetrySQL, told[i])
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("retry: %w", err)
	}
	for _, d := range of { // also where notifications do not arrive
		s.Retries.Ring(d)
	}
	s.Log.Warn("an operator has work tried at once", zap.Stringers("of", of), zap.String("about", about),
		zap.String("by", by), zap.String("reason", reason), requestid.Field(ctx))
	return nil
}

// ListenRetries returns a channel of the deployments whose work is to be tried at once, until ctx ends; the
// zero one stands for all.
func (s *Operations) ListenRetries(ctx context.Context) <-chan schema.DeploymentID {
	return s.Retries.Listen(ctx)
}
