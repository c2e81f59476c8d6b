package shadow

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// establishAll asks every deployment concerned at the same time. When one refuses or does not answer, the attempt is
// decided ABORTED at once, and what was or may have been established is released.
func (s *Store) establishAll(ctx context.Context, sv *saving) error {
	var (
		mu      sync.Mutex
		refused RefusedError // guarded by mu
		// Where something was established, and where it may have been; guarded by mu.
		established, unanswered []schema.DeploymentID
		wg                      sync.WaitGroup
	)
	for target, refs := range sv.foreign {
		wg.Go(func() {
			failed, reached := s.establishOne(ctx, sv, target, refs)
			mu.Lock()
			defer mu.Unlock()
			refused.add(failed)
			switch {
			case failed == nil:
				established = append(established, target)
			case reached:
				unanswered = append(unanswered, target)
			}
		})
	}
	wg.Wait()
	if refused.Total() == 0 {
		return nil
	}
	if len(established)+len(unanswered) == 0 {
		return refused.sorted()
	}
	if _, err := s.abandon(ctx, sv, established, unanswered); err != nil {
		s.log.Warn("an aborted attempt could not be recorded; its blockades are resolved when they expire", zap.Error(err)) // I5
	}
	return refused.sorted()
}

// establishOne tells what was refused, and whether the deployment may have established something.
func (s *Store) establishOne(ctx context.Context, sv *saving, target schema.DeploymentID, refs []*newReference) (refused *RefusedError, reached bool) {
	if s.IsDecommissioned(target) {
		return refuseAll(refs, TargetDecommissioned, ""), false
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
func refusalsOf(refs []*newReference, err error) (refused *RefusedError, reached bool) {
	switch {
	case err == nil:
		return nil, true
	case errors.As(err, &refused):
		return refused, false // all or nothing
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrNotSent):
		return refuseAll(refs, TargetSlow, ""), true
	}
	return refuseAll(refs, TargetUnreadable, err.Error()), !errors.Is(err, ErrNotSent)
}

func refuseAll(refs []*newReference, reason Reason, detail string) *RefusedError {
	e := &RefusedError{Refusals: make([]Refusal, len(refs))}
	for i, r := range refs {
		e.Refusals[i] = Refusal{Holder: r.holder.Name, Path: r.Path, Target: r.Target, Reason: reason, Detail: detail}
	}
	return e
}

const (
	decideAbortedSQL = `
INSERT INTO dbcontroller.attempt (id, committed) SELECT unnest($1::uuid[]), false
ON CONFLICT (id) DO NOTHING`

	standsSQL          = `SELECT EXISTS (SELECT FROM dbcontroller.reference WHERE holder_id = ANY ($1) AND attempt = $2)`
	selectDecisionsSQL = `SELECT id, committed FROM dbcontroller.attempt WHERE id = ANY ($1)`
)

var (
	releaseAttemptSQL = codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT {release}, $1, d, $2 FROM unnest($3::int[]) AS d`)

	// Where nobody knows whether it established anything, one release stands for all attempts of a write that is repeated. What later
	// ones may have established expires, is asked about, and is gone.
	releaseChainSQL = codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, chain)
SELECT {release}, $1, d, $2, $4 FROM unnest($3::int[]) AS d
ON CONFLICT (chain, deployment_id) WHERE chain IS NOT NULL DO NOTHING`)
)

// chain names the attempts of one write that is repeated: those for the same holders.
func (sv *saving) chain() uuid.UUID {
	names := make([]string, len(sv.writes))
	for i, wr := range sv.writes {
		names[i] = wr.Name
	}
	return uuid.NewSHA1(uuid.Nil, []byte(strings.Join(names, "\n")))
}

// abandon makes sure that the attempt can never commit, and leaves the release of what it established, or may have, as work. It
// tells when the attempt has committed after all.
func (s *Store) abandon(ctx context.Context, sv *saving, established, unanswered []schema.DeploymentID) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var numbers [2][]int32
	for i, of := range [][]schema.DeploymentID{established, unanswered} {
		for _, d := range of {
			id, err := s.names.deployment(ctx, d)
			if err != nil {
				return false, err
			}
			numbers[i] = append(numbers[i], id)
		}
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
		shard := schema.Shard(sv.writes[0].Name)
		b := &pgx.Batch{}
		b.Queue(releaseAttemptSQL, shard, sv.attempt, numbers[0])
		b.Queue(releaseChainSQL, shard, sv.attempt, numbers[1], sv.chain())
		return tx.SendBatch(ctx, b).Close()
	})
	return committed, err
}

// newAttempt returns a UUIDv7 by the clock of this process (RFC 9562, section 5.7: its first 48 bits are milliseconds).
func (s *Store) newAttempt() AttemptID {
	id, ms := uuid.Must(uuid.NewV7()), s.now().UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i], ms = byte(ms), ms>>8
	}
	return id
}
