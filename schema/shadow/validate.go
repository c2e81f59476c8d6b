package shadow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

var errOnlyValidated = errors.New("nothing is to be stored")

// Validate answers what a write would store, after all checks of a save, or fails as Save would; nothing is stored.
// Other deployments are asked as well, without a blockade, so that no promise is made.
func (s *Store) Validate(ctx context.Context, w Write) (*Resource, error) {
	return s.ValidateBatch(ctx, []Write{w}, "")
}

// ValidateBatch is Validate for the first of several writes in one batch. With a page token, which stands in a refusal that does not name
// all references, it names the next ones.
func (s *Store) ValidateBatch(ctx context.Context, writes []Write, token string) (*Resource, error) {
	would, err := s.validateBatch(ctx, writes)
	var refused *RefusedError
	if token == "" || !errors.As(err, &refused) {
		return would, err
	}
	if refused, err = refused.after(token); err != nil {
		return nil, err
	}
	return nil, refused
}

func (s *Store) validateBatch(ctx context.Context, writes []Write) (*Resource, error) {
	ctx, cancel := withDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	sv, err := s.prepare(ctx, s.pool, writes)
	if err != nil {
		return nil, err
	}
	if err := s.askWhether(ctx, sv); err != nil {
		return nil, err
	}
	// The locks of a save, and what it checks under them; then back.
	err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		if _, _, err := s.lock(ctx, tx, sv); err != nil {
			return err
		}
		return errOnlyValidated
	})
	switch {
	case errors.Is(err, errStale):
		return nil, ErrAborted
	case err != nil && !errors.Is(err, errOnlyValidated):
		return nil, err
	}
	wr := sv.writes[0]
	out := &Resource{Kind: wr.kind.Kind, Name: wr.Name, State: Active, Generation: 1, Labels: wr.Labels, Body: []byte(wr.body), Owners: wr.Owners}
	if b := wr.before; b != nil {
		out.UID, out.Revision, out.Generation, out.CreatedAt, out.UpdatedAt = b.uid, b.revision, b.generation, b.createdAt, b.updatedAt
		out.BlockDeletion = b.blockDeletion
	}
	return out, nil
}

// askWhether asks every deployment concerned, at the same time, whether the references could be established.
func (s *Store) askWhether(ctx context.Context, sv *saving) error {
	var (
		mu      sync.Mutex
		refused RefusedError // guarded by mu
		wg      sync.WaitGroup
	)
	for target, refs := range sv.foreign {
		wg.Go(func() {
			failed := s.askAbout(ctx, target, refs)
			mu.Lock()
			defer mu.Unlock()
			refused.add(failed)
		})
	}
	wg.Wait()
	if refused.Total() > 0 {
		return refused.sorted()
	}
	return nil
}

// askAbout names every reference that a deployment refuses: where an answer has no room for all, it asks about the rest.
func (s *Store) askAbout(ctx context.Context, target schema.DeploymentID, refs []*newReference) *RefusedError {
	all := &RefusedError{}
	for {
		_, err := s.peers.WouldEstablish(ctx, target, establishRequest(refs))
		refused, _ := refusalsOf(refs, err)
		all.add(refused)
		if refused == nil || refused.More == 0 {
			return all
		}
		named := map[string]bool{}
		for _, r := range refused.Refusals {
			named[strings.Join(r.key(), " ")] = true
		}
		rest := slices.DeleteFunc(slices.Clone(refs), func(r *newReference) bool {
			return named[strings.Join(Refusal{Holder: r.holder.Name, Path: r.Path, Target: r.Target}.key(), " ")]
		})
		if len(rest) == len(refs) || len(rest) == 0 {
			return all
		}
		refs, all.More = rest, 0
	}
}
