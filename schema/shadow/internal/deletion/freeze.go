package deletion

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// freeze is the plan of an atomic deletion: its members here are frozen, and it is read behind their locks.
// Rights to the targets end first: a holder that was written under one is found behind its end. While a
// tentative attempt refers to a member, the plan is read again: it may have committed.
func (p *planning) freeze(ctx context.Context) (*peer.Plan, error) {
	s := p.store
	if err := p.verifyTargets(ctx); err != nil {
		return nil, err
	}
	if err := p.endRights(ctx); err != nil {
		return nil, err
	}
	freezing := target.Freezing{Freeze: p.question.Freeze, Own: s.gate.PresentEpoch(), Find: p.find, Look: p.look}
	waiting, cancel := peer.InPart(ctx, 2, 3)
	defer cancel()
	closed := newClosing(s.gate)
	defer closed.end(ctx)
	for pauses := (retry.Backoff{First: 2 * time.Millisecond, Max: 100 * time.Millisecond}); ; {
		all, err := s.target.Freeze(ctx, freezing)
		if db.HasCode(err, db.CodeLockNotAvailable) && pauses.Wait(ctx) == nil {
			// A busy member takes no new references, so that its locks end.
			if err := closed.close(ctx, p.ids); err != nil {
				return nil, fmt.Errorf("plan an atomic deletion: %w", err)
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("plan an atomic deletion: %w", err)
		}
		if p.plan.Epoch = freezing.Own; p.plan.Truncated || p.plan.NotAtomic != "" {
			return p.plan, nil
		}
		if !all {
			continue
		}
		asked := s.askAll(ctx, p.obstacle.blockades, peer.RecallEnds)
		if asked.moved || len(asked.undecided) > 0 && pauses.Wait(waiting) == nil {
			continue
		}
		p.plan.Blockers = append(p.plan.Blockers, asked.blockers()...)
		p.plan.Truncated = asked.more || p.obstacle.tooMany() || len(p.plan.Blockers) >= peer.PlanLimit
		return p.plan, ctx.Err()
	}
}

// find returns the ids of the members here.
func (p *planning) find(ctx context.Context, tx pgx.Tx) ([]int64, error) {
	p.begin()
	err := p.closure(ctx, tx)
	return append([]int64{}, p.ids...), err
}

// look reads the plan, and returns its members.
func (p *planning) look(ctx context.Context, tx pgx.Tx) ([]target.Member, error) {
	if err := p.read(ctx, tx); err != nil {
		return nil, err
	}
	if len(p.rows.vias) > 0 {
		p.plan.NotAtomic = "resources that are rows of an attached table go along"
	}
	members := make([]target.Member, len(p.ids))
	for i, id := range p.ids {
		if members[i].ID = id; len(p.reasons[id]) > 0 {
			members[i].Via = p.reasons[id][0].Target
		}
	}
	return members, nil
}

// verifyTargets asks the other deployments whether the deletion has frozen its targets there. A deployment
// that calls itself a coordinator freezes no more than the holders of its own resources, which it could
// delete, with their holders.
func (p *planning) verifyTargets(ctx context.Context) error {
	s, f := p.store, p.question.Freeze
	at := map[schema.DeploymentID][]peer.Question{}
	for _, t := range p.question.Targets {
		if t.Deployment != f.Coordinator {
			at[t.Deployment] = append(at[t.Deployment], peer.Question{Key: peer.FrozenKey(f.Deletion, t.UID)})
		}
	}
	asking, asked := errgroup.WithContext(ctx)
	for d, questions := range at {
		asking.Go(func() error {
			ask := s.Peers.Resolve
			if d == s.Self {
				ask = s.attempts.Answer
			}
			answers, err := ask(asked, d, questions)
			if err != nil {
				err = fmt.Errorf("ask %s whether the deletion has frozen its resources: %w", d, err)
				if d == s.Self {
					return err
				}
				return &peer.UnavailableError{Deployments: []schema.DeploymentID{d}, Err: err}
			}
			for i := range questions {
				if i >= len(answers.Verdicts) || answers.Verdicts[i] == peer.Undecided {
					return fmt.Errorf("%w: the deletion has not frozen the resource %s of %s", peer.ErrAborted,
						questions[i].Key.TargetUID, d)
				}
			}
			return nil
		})
	}
	return asking.Wait()
}

// endRights ends the rights of this deployment to the targets of the question.
func (p *planning) endRights(ctx context.Context) error {
	of := map[schema.DeploymentID][]uuid.UUID{}
	for _, t := range p.question.Targets {
		of[t.Deployment] = append(of[t.Deployment], t.UID)
	}
	for d, uids := range of {
		if err := p.store.follow.EndRights(ctx, d, uids); err != nil {
			return err
		}
	}
	return nil
}
