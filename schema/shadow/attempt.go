package shadow

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// establishAll asks every deployment concerned at the same time. When one refuses or does not answer, the attempt is
// decided ABORTED at once, and what was or may have been established is released.
func (s *Store) establishAll(ctx context.Context, sv *saving) error {
	var (
		mu      sync.Mutex
		refused []Refusal             // guarded by mu
		sent    []schema.DeploymentID // guarded by mu; where something may have been established
		wg      sync.WaitGroup
	)
	for target, refs := range sv.foreign {
		wg.Go(func() {
			failed, reached := s.establishOne(ctx, sv, target, refs)
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, failed...)
			if reached {
				sent = append(sent, target)
			}
		})
	}
	wg.Wait()
	if len(refused) == 0 {
		return nil
	}
	if len(sent) == 0 {
		return refusedError(refused)
	}
	if _, err := s.abandon(ctx, sv, sent); err != nil {
		s.log.Warn("an aborted attempt could not be recorded; its blockades are resolved when they expire") // I5
	}
	return refusedError(refused)
}

func refusedError(refused []Refusal) error {
	slices.SortFunc(refused, func(a, b Refusal) int {
		return slices.Compare([]string{a.Holder, a.Path, a.Target.String()}, []string{b.Holder, b.Path, b.Target.String()})
	})
	return &RefusedError{Refusals: refused}
}

// establishOne tells what was refused, and whether the deployment may have established something.
func (s *Store) establishOne(ctx context.Context, sv *saving, target schema.DeploymentID, refs []*newReference) (refusals []Refusal, reached bool) {
	if s.Barred(target) {
		for _, r := range refs {
			refusals = append(refusals, Refusal{Holder: r.holder.Name, Path: r.Path, Target: r.Target, Reason: DeploymentGone})
		}
		return refusals, false
	}
	answer, err := s.peers.Establish(ctx, target, sv.attempt, establishRequest(refs))
	if err == nil && len(answer.UIDs) != len(refs) {
		err = errors.New("it answered for another number of references than it was asked for")
	}
	if err != nil {
		return refusalsOf(refs, err)
	}
	for i, r := range refs {
		r.uid, r.epoch = answer.UIDs[i], answer.Epoch
	}
	return nil, true
}

func establishRequest(refs []*newReference) []EstablishReference {
	request := make([]EstablishReference, len(refs))
	for i, r := range refs {
		request[i] = EstablishReference{
			HolderUID: r.holder.uid, HolderKind: r.holder.kind.Kind, HolderName: r.holder.Name, Path: r.Path,
			TargetKind: r.TargetKind.Kind, TargetName: r.Target.Name, Behaviour: r.Behaviour,
		}
	}
	return request
}

// refusalsOf tells what an error of an establish refuses: what it names, or everything, which then may have been done.
func refusalsOf(refs []*newReference, err error) (refusals []Refusal, reached bool) {
	var refused *RefusedError
	switch {
	case err == nil:
		return nil, true
	case errors.As(err, &refused):
		return refused.Refusals, false // all or nothing
	}
	out := make([]Refusal, len(refs))
	for i, r := range refs {
		out[i] = Refusal{Holder: r.holder.Name, Path: r.Path, Target: r.Target, Reason: TargetUnreadable, Detail: err.Error()}
	}
	return out, !errors.Is(err, ErrNotSent)
}

const (
	decideAbortedSQL = `
INSERT INTO dbcontroller.attempt (id, committed) SELECT unnest($1::uuid[]), false
ON CONFLICT (id) DO NOTHING`

	standsSQL = `SELECT EXISTS (SELECT FROM dbcontroller.reference WHERE holder_id = ANY ($1) AND attempt = $2)`

	selectDecisionsSQL = `SELECT id, committed FROM dbcontroller.attempt WHERE id = ANY ($1)`

	releaseAttemptSQL = `
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT 2, $1, d, $2 FROM unnest($3::int[]) AS d`
)

// abandon makes sure that the attempt can never commit, and leaves the release of what it established as work. It
// tells when the attempt has committed after all.
func (s *Store) abandon(ctx context.Context, sv *saving, sent []schema.DeploymentID) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var deployments []int32
	for _, d := range sent {
		id, err := s.names.deployment(ctx, d)
		if err != nil {
			return false, err
		}
		deployments = append(deployments, id)
	}
	var holders []int64
	for _, wr := range sv.writes {
		holders = append(holders, wr.id)
	}
	err = s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		// Who was paused for long asks when the decision is forgotten; the references are what is left of it.
		if err := tx.QueryRow(ctx, standsSQL, holders, sv.attempt).Scan(&committed); err != nil || committed {
			return err
		}
		attempts := []AttemptID{sv.attempt}
		if _, err := tx.Exec(ctx, decideAbortedSQL, attempts); err != nil {
			return err
		}
		// Its own statement, so that it sees a commit that the insert waited for.
		if err := tx.QueryRow(ctx, selectDecisionsSQL, attempts).Scan(&attempts[0], &committed); err != nil || committed {
			return err
		}
		_, err := tx.Exec(ctx, releaseAttemptSQL, schema.Shard(sv.writes[0].Name), sv.attempt, deployments)
		return err
	})
	return committed, err
}
