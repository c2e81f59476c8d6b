package shadow

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

var errOnlyValidated = errors.New("nothing is to be stored")

// Validate answers what a write would store, after all checks of a save, or fails as Save would; nothing is stored.
// Other deployments are asked as well, without a blockade, so that no promise is made.
func (s *Store) Validate(ctx context.Context, w Write) (*Resource, error) {
	ctx, cancel := withDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	sv, err := s.prepare(ctx, s.pool, []Write{w})
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
		refused []Refusal // guarded by mu
		wg      sync.WaitGroup
	)
	for target, refs := range sv.foreign {
		wg.Go(func() {
			_, err := s.peers.WouldEstablish(ctx, target, establishRequest(refs))
			failed, _ := refusalsOf(refs, err)
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, failed...)
		})
	}
	wg.Wait()
	if len(refused) > 0 {
		return refusedError(refused)
	}
	return nil
}
