package write

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var errOnlyValidated = errors.New("validated: the transaction is rolled back")

// Validate returns the resource that a write would store, after all checks of Save, or fails as Save would; nothing is stored. Other
// deployments check their targets without writing blockades: a later write may still fail.
func (s *Writer) Validate(ctx context.Context, w peer.Write) (*peer.Resource, error) {
	return s.ValidateBatch(ctx, []peer.Write{w}, "")
}

// ValidateBatch validates a batch of writes and returns the first resource. token is a page token of an earlier *RefusedError that did
// not list all refusals: the error then lists those after it.
func (s *Writer) ValidateBatch(ctx context.Context, writes []peer.Write, token string) (*peer.Resource, error) {
	would, err := s.validateBatch(ctx, writes)
	var refused *peer.RefusedError
	if token == "" || !errors.As(err, &refused) {
		return would, err
	}
	if refused, err = refused.After(token); err != nil {
		return nil, err
	}
	return nil, refused
}

func (s *Writer) validateBatch(ctx context.Context, writes []peer.Write) (*peer.Resource, error) {
	ctx, cancel := db.WithDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	sv, err := s.prepare(ctx, s.Pool, writes, false)
	if err != nil {
		return nil, err
	}
	if err := s.delegate(ctx, s.Pool, sv); err != nil {
		return nil, err
	}
	if err := s.askWhether(ctx, sv); err != nil {
		return nil, err
	}
	// The locks and checks of a save, then a rollback.
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		if _, err := s.lock(ctx, tx, sv); err != nil {
			return err
		}
		return errOnlyValidated
	})
	switch {
	case errors.Is(err, db.ErrStale):
		return nil, peer.ErrAborted
	case err != nil && !errors.Is(err, errOnlyValidated):
		return nil, err
	}
	wr := sv.writes[0]
	out := &peer.Resource{Kind: wr.kind.Kind, Name: wr.Name, State: peer.Active, Generation: 1, Labels: wr.Labels, Body: []byte(wr.body), Owners: wr.Owners}
	if b := wr.before; b != nil {
		out.UID, out.Revision, out.Generation, out.CreatedAt, out.UpdatedAt = b.UID, b.Revision, b.Generation, b.CreatedAt, b.UpdatedAt
		out.BlockDeletion = b.BlockDeletion
	}
	return out, nil
}

// askWhether asks the deployments of all new references, concurrently, whether they could be established.
func (s *Writer) askWhether(ctx context.Context, sv *saving) error {
	var (
		mu      sync.Mutex
		refused peer.RefusedError // guarded by mu
		wg      sync.WaitGroup
	)
	for target, refs := range sv.foreign {
		wg.Go(func() {
			failed := s.askAbout(ctx, target, refs)
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

// askAbout returns all references that a deployment refuses: when a response does not list all, it asks about the others.
func (s *Writer) askAbout(ctx context.Context, target schema.DeploymentID, refs []*newReference) *peer.RefusedError {
	all := &peer.RefusedError{}
	for {
		_, err := s.Peers.WouldEstablish(ctx, target, establishRequest(refs))
		refused, _ := refusalsOf(refs, err)
		all.Add(refused)
		if refused == nil || refused.More == 0 {
			return all
		}
		named := map[string]bool{}
		for _, r := range refused.Refusals {
			named[strings.Join(r.Key(), " ")] = true
		}
		rest := slices.DeleteFunc(slices.Clone(refs), func(r *newReference) bool {
			return named[strings.Join(peer.Refusal{Holder: r.holder.Name, Path: r.Path, Target: r.Target}.Key(), " ")]
		})
		if len(rest) == len(refs) || len(rest) == 0 {
			return all
		}
		refs, all.More = rest, 0
	}
}
