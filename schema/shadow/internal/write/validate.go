package write

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

var errOnlyValidated = errors.New("validated: the transaction is rolled back")

// Validate is ValidateBatch for one write.
func (s *Writer) Validate(ctx context.Context, w peer.Write) (*peer.Resource, error) {
	would, err := s.ValidateBatch(ctx, []peer.Write{w}, "")
	if err != nil {
		return nil, err
	}
	return &would[0], nil
}

// ValidateBatch returns the resources that Save would store, or fails as it would; nothing is stored. An
// existing resource keeps its revision and times, and a new resource has no uid. Other deployments check
// their targets without writing blockades: a later write may still fail. token is a page token of an earlier
// *RefusedError that did not list all refusals: the error then lists the next ones.
func (s *Writer) ValidateBatch(ctx context.Context, writes []peer.Write, token string) ([]peer.Resource, error) {
	would, err := s.settled(ctx, writes, func(ctx context.Context, unread bool) ([]peer.Resource, error) {
		return s.validateOnce(ctx, writes, unread)
	})
	var refused *peer.RefusedError
	if token == "" || !errors.As(err, &refused) {
		return would, err
	}
	if refused, err = refused.After(token); err != nil {
		return nil, err
	}
	return nil, refused
}

// validateOnce runs the statements of a save in a transaction, which it rolls back.
func (s *Writer) validateOnce(ctx context.Context, writes []peer.Write, unread bool) ([]peer.Resource, error) {
	sv, err := s.preparer.Prepare(ctx, s.Pool, writes, unread)
	if err != nil {
		return nil, err
	}
	if err := s.checkPinned(ctx, sv); err != nil {
		return nil, err
	}
	if err := s.rights.take(ctx, s.Pool, sv); err != nil {
		return nil, err
	}
	if len(sv.Foreign) > 0 {
		if err := s.stillRuns(ctx, sv); err != nil {
			return nil, err
		}
		if err := s.askWhether(ctx, sv); err != nil {
			return nil, err
		}
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		if err := s.write(ctx, tx, sv, db.Stay); err != nil {
			return err
		}
		return errOnlyValidated
	})
	if !errors.Is(err, errOnlyValidated) {
		return nil, err
	}
	for i, wr := range sv.Writes {
		asBefore(wr, &sv.Saved[i])
	}
	return sv.Saved, nil
}

// asBefore removes the fields of a resource that only a stored write has.
func asBefore(wr *prepare.Writing, r *peer.Resource) {
	if wr.Before == nil {
		r.UID, r.Revision, r.CreatedAt, r.UpdatedAt = uuid.Nil, 0, time.Time{}, time.Time{}
		return
	}
	r.Revision, r.UpdatedAt = wr.Before.Revision, wr.Before.UpdatedAt
}

// askWhether asks the deployments of all new references, concurrently, whether they could be established.
func (s *Writer) askWhether(ctx context.Context, sv *prepare.Saving) error {
	var (
		mu      sync.Mutex
		refused peer.RefusedError // guarded by mu
		wg      sync.WaitGroup
	)
	for target, refs := range sv.Foreign {
		wg.Go(func() {
			failed := s.askAbout(ctx, sv.Attempt, target, refs)
			mu.Lock()
			defer mu.Unlock()
			refused.Add(failed)
		})
	}
	wg.Wait()
	if refused.Total() > 0 {
		return refused.Sorted()
	}
	return nil
}

// askAbout returns all references that a deployment refuses: when a response does not list all, it asks about
// the others.
func (s *Writer) askAbout(ctx context.Context, id peer.AttemptID, target schema.DeploymentID,
	refs []*prepare.NewReference,
) *peer.RefusedError {
	all := &peer.RefusedError{}
	for {
		refused, _ := attempt.EstablishBy(ctx, s.attempts, s.Peers.WouldEstablish, id, target, refs)
		all.Add(refused)
		if refused == nil || refused.More == 0 {
			return all
		}
		named := map[string]bool{}
		for _, r := range refused.Refusals {
			named[strings.Join(r.Key(), " ")] = true
		}
		rest := slices.DeleteFunc(slices.Clone(refs), func(r *prepare.NewReference) bool {
			return named[strings.Join(peer.Refusal{Holder: r.Holder.Name, Path: r.Path, Target: r.Target}.Key(), " ")]
		})
		if len(rest) == len(refs) || len(rest) == 0 {
			return all
		}
		refs, all.More = rest, 0
	}
}
