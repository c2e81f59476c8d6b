package write

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// write runs the statements of a save in its transaction, in two round trips: locks and checks, then writes,
// which last sends. It returns the resources in the order of the writes.
func (s *Writer) write(ctx context.Context, tx pgx.Tx, sv *prepare.Saving, last db.Sender) error {
	l, err := s.lock(ctx, tx, sv)
	if err != nil {
		return err
	}
	return s.store(ctx, tx, l, last, sv)
}

// store writes savings whose rows are locked. No statement's result decides whether the transaction commits:
// each fails by itself.
func (s *Writer) store(ctx context.Context, tx pgx.Tx, l *locked, last db.Sender, savings ...*prepare.Saving) error {
	b := &pgx.Batch{}
	queueResources(b, savings)
	s.queueDrops(b, savings)
	if err := s.queueReferences(ctx, b, savings); err != nil {
		return err
	}
	prepare.QueueOwners(b, savings)
	if awaitGenerations(savings) {
		if err := db.Stay(ctx, tx, b); err != nil {
			return storeError(err)
		}
		b = &pgx.Batch{}
	}
	for _, sv := range savings {
		sv.Saved = allSaved(sv, l.view.At)
		sv.Request.Queue(b, prepare.Outcome{Saved: sv.Saved})
	}
	if err := last(ctx, tx, b); err != nil {
		return storeError(err)
	}
	for _, sv := range savings {
		sv.Saved = allSaved(sv, l.view.At) // with the new generations
	}
	return nil
}

// awaitGenerations reports whether a generation that the statements of the write return is needed before the
// answer to the commit: for the outcome of a request, or for a commit whose answer is lost.
func awaitGenerations(savings []*prepare.Saving) bool {
	for sv, wr := range prepare.AllWrites(savings) {
		if wr.Before != nil && (sv.Request != nil || len(sv.Foreign) > 0) {
			return true
		}
	}
	return false
}

func storeError(err error) error {
	switch {
	case db.Violates(err, "attempt_pkey"):
		return peer.ErrAborted // a resolver has decided the attempt ABORTED
	case db.Violates(err, "shadow_name"):
		return db.ErrStale // another write has created the resource
	case db.LacksValue(err, "reference", "target_id"):
		return db.ErrStale // Tidy has removed the foreign target
	}
	return fmt.Errorf("write resources: %w", err)
}

func allSaved(sv *prepare.Saving, at time.Time) []peer.Resource {
	out := make([]peer.Resource, len(sv.Writes))
	for i, wr := range sv.Writes {
		out[i] = saved(wr, at)
	}
	return out
}

// saved returns the resource as the write stores it.
func saved(wr *prepare.Writing, at time.Time) peer.Resource {
	r := peer.Resource{
		UID: wr.ShadowUID, Kind: wr.Kind.Kind, Name: wr.Name, State: peer.Active,
		Revision: peer.Revision(wr.NewRevision), Generation: 1,
		Labels: wr.Labels, Body: []byte(wr.BodyText), CreatedAt: at, UpdatedAt: at, Owners: wr.Owners,
	}
	if wr.Before != nil {
		r.Generation, r.CreatedAt, r.BlockDeletion = wr.Before.Generation, wr.Before.CreatedAt, wr.Before.BlockDeletion
		r.Status, r.StatusGeneration = wr.Before.Status, wr.Before.StatusGeneration
	}
	return r
}

// ran is a version and an epoch that were the current ones at a time of this process's clock.
type ran struct {
	version *db.Version
	epoch   uuid.UUID
	at      time.Time
}

// trusted is the time for which the version and the epoch that a transaction has seen stand for a reading.
// They decide nothing: the transaction that commits reads again. It bounds the time in which a process that
// missed a switch asks other deployments in vain.
const trusted = 100 * time.Millisecond

// sawRunning notes that the version and the epoch of a write are the current ones.
func (s *Writer) sawRunning(sv *prepare.Saving) {
	s.ran.Store(&ran{sv.Version, sv.Epoch, time.Now()})
}

// stillRuns fails with ErrAborted when the version or the epoch of a write is not the current one, so that it
// could not commit. The writes of one version and epoch that ask at the same time share a reading.
func (s *Writer) stillRuns(ctx context.Context, sv *prepare.Saving) error {
	if seen := s.ran.Load(); seen != nil && seen.version == sv.Version && seen.epoch == sv.Epoch &&
		time.Since(seen.at) < trusted {
		return nil
	}
	read := s.reading.DoChan(fmt.Sprint(sv.Version.Generation, sv.Epoch), func() (any, error) {
		// Others wait for it when the first caller has left.
		ctx, cancel := context.WithTimeout(postgres.WithCaller(context.WithoutCancel(ctx),
			postgres.Caller{Lane: postgres.Writes}), gatheredTimeout)
		defer cancel()
		return nil, s.readRunning(ctx, sv)
	})
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case done := <-read:
		return done.Err
	}
}

func (s *Writer) readRunning(ctx context.Context, sv *prepare.Saving) error {
	var stored gate.Running
	var epoch *uuid.UUID
	err := s.Pool.QueryRow(ctx, `SELECT `+gate.RunningColumns+`, `+gate.EpochNowSQL+` FROM dbcontroller.meta m`).
		Scan(append(stored.Into(), &epoch)...)
	if err != nil {
		return fmt.Errorf("read the version: %w", err)
	}
	if epoch == nil || *epoch != sv.Epoch {
		s.gate.SignalEpochChanged()
		return fmt.Errorf("%w: the database failed over or was restored", peer.ErrAborted)
	}
	if err := s.gate.CheckVersion(sv.Version, stored); err != nil {
		return err
	}
	s.sawRunning(sv)
	return nil
}
