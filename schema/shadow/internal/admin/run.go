package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"
)

const (
	// tidyEvery is the time between two looks for expired rows; forgetEvery that between two looks for
	// targets without references, because a key of an attached table changes only when no other deployment
	// has an entry of it.
	tidyEvery   = time.Minute
	forgetEvery = 10 * time.Second
)

// RunTidy removes expired rows, in small steps, until ctx ends. It returns nil.
func (s *Admin) RunTidy(ctx context.Context) error {
	for next := time.Now().Add(tidyEvery); ; {
		wait := min(forgetEvery, time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if time.Now().Before(next) {
			if _, err := s.tidyForeignTargets(ctx, tidied); err != nil && ctx.Err() == nil {
				s.Log.Warn("targets without references could not be removed, retrying", zap.Error(err))
			}
			continue
		}
		more, err := s.Tidy(ctx)
		if next = time.Now().Add(tidyEvery); more {
			next = time.Now().Add(time.Second)
		}
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("expired rows could not be removed, retrying", zap.Error(err))
		}
	}
}

// EpochConfig has the sources of deployments for FollowEpochs, and the channel that it notifies.
type EpochConfig struct {
	// Ask asks the registry for the environment; Kept returns the environment that is stored in the database,
	// nil for none.
	Ask, Kept func(context.Context) (*schema.Environment, error)
	// Latest returns the newest environment that the process has, nil for none.
	Latest func() *schema.Environment
	// Renewed is sent an entry for each new epoch. It has one place.
	Renewed chan<- struct{}
}

// FollowEpochs detects that the database was restored or failed over: at once when a transaction meets it,
// else with the look that is due every second, unless a renewal has looked. In a new epoch it recovers from
// the deployments that may refer to resources here: the deployments of the registry's environment and of the
// stored one, since either may lack some. A deployment that a later environment adds may have existed before,
// unknown to the registry, and is recovered from as well. It returns nil when ctx ends.
func (s *Admin) FollowEpochs(ctx context.Context, cfg EpochConfig) error {
	s.gate.Follow(cfg.Latest)
	f := epochFollower{EpochConfig: cfg, store: s, last: s.gate.PresentEpoch()}
	for failed, looked := false, false; ; {
		err := f.step(ctx, looked)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failed {
			s.Log.Warn("the epoch of the database is not settled, retrying every second", zap.Error(err))
		}
		failed, looked = err != nil, false
		select {
		case <-ctx.Done():
			return nil
		case <-s.gate.EpochChanged():
		case <-s.gate.Looked():
			looked = true
		case <-time.After(s.untilLook(err)):
		}
	}
}

// untilLook returns the time until the next look. A step that failed is repeated after a second.
func (s *Admin) untilLook(failed error) time.Duration {
	if failed != nil {
		return gate.LookInterval
	}
	return time.Until(s.gate.LookDue())
}

type epochFollower struct {
	EpochConfig
	store *Admin
	last  uuid.UUID           // the epoch of the last entry in Renewed
	seen  *schema.Environment // the environment that was recovered from
}

// step notices the epoch, unless a renewal has looked and found none, and recovers.
func (f *epochFollower) step(ctx context.Context, looked bool) (err error) {
	awaiting := false
	if !looked {
		awaiting, err = f.store.gate.NoticeEpoch(ctx)
	}
	if epoch := f.store.gate.PresentEpoch(); epoch != f.last {
		f.last = epoch
		select {
		case f.Renewed <- struct{}{}:
		default: // the earlier entry is not received yet
		}
	}
	if err != nil {
		return err
	}
	if awaiting {
		err := f.recover(ctx)
		f.store.gate.AwaitsList(err)
		return err
	}
	f.store.gate.AwaitsList(nil)
	env := f.Latest()
	if _, listed := env.Deployment(f.store.Deployment()); !listed || env == f.seen {
		return nil // before the first environment no deployment is known to be a stranger
	}
	if err := f.store.gate.Recover(ctx, env); err != nil {
		return err
	}
	f.seen = env
	return nil
}

func (f *epochFollower) recover(ctx context.Context) error {
	env, err := f.Ask(ctx)
	if err != nil {
		return err
	}
	if len(env.Unheard) > 0 {
		return fmt.Errorf(
			"the registry's list of deployments may have lost some: %s have not reported a revision since its last start: "+
				"start them, disable them, or remove deployments that no longer exist", strings.Join(env.Unheard, ", "))
	}
	if _, listed := env.Deployment(f.store.Deployment()); env.Incomplete || !listed {
		return errors.New(
			"the deployments that may refer to resources here are not known: the registry's database was restored or failed over, or is empty, " +
				"and may lack deployments: db-controller apply the files that describe all of them, or remove deployments that no longer exist")
	}
	kept, err := f.Kept(ctx)
	if err != nil {
		return err
	}
	if kept != nil {
		env = env.With(kept)
	}
	return f.store.gate.Recover(ctx, env)
}

// AuditConfig of RunAudits.
type AuditConfig struct {
	// Pace returns the pause between two audits (0: no audits), and the rows a second that an audit reads;
	// Repaced says that it has changed.
	Pace    func() (pause time.Duration, rate int)
	Repaced <-chan struct{}
	// Leads reports whether this process does the work of which one process of the deployment is enough.
	Leads func() bool
	// Audited is called with the result of each complete audit.
	Audited func(verify.Verified, map[verify.DifferenceKind]int)
}

// auditBodies is the number of bodies from which one audit derives references: reading all bodies each time
// would cost more than the rest of the audit.
const auditBodies = 10_000

// RunAudits compares with the other deployments, again and again, slowly, and repairs nothing. It returns nil
// when ctx ends.
func (s *Admin) RunAudits(ctx context.Context, cfg AuditConfig) error {
	for cfg.wait(ctx) {
		if !cfg.Leads() {
			continue
		}
		_, rate := cfg.Pace()
		done, found, err := s.runAudit(ctx, rate)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.Log.Warn("an audit failed, it starts again", zap.Error(err))
			continue
		}
		cfg.Audited(done, found)
	}
	return nil
}

// wait returns true when the next audit is due, false when ctx ends.
func (c AuditConfig) wait(ctx context.Context) bool {
	for began := time.Now(); ; {
		var due <-chan time.Time // never without audits
		if pause, _ := c.Pace(); pause > 0 {
			due = time.After(time.Until(began.Add(pause)))
		}
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-c.Repaced:
		}
	}
}

func (s *Admin) runAudit(ctx context.Context, rate int) (verify.Verified, map[verify.DifferenceKind]int, error) {
	began, found := time.Now(), map[verify.DifferenceKind]int{}
	done, err := s.verify.Verify(ctx, verify.Verification{
		Bodies: auditBodies,
		Report: func(d verify.Difference) error {
			found[d.Kind]++
			s.Log.Warn("an audit found a difference", zap.String("kind", string(d.Kind)),
				zap.Stringer("holder", d.Holder),
				zap.Stringer("target", d.Target), zap.String("path", d.Path), zap.String("cause", d.Cause()),
				zap.String("remedy", d.Remedy()))
			return nil
		},
		Progress: func(ctx context.Context, so verify.Verified) error {
			due := began.Add(time.Duration(so.Rows()) * time.Second / time.Duration(rate))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Until(due)):
				return nil
			}
		},
	})
	return done, found, err
}
