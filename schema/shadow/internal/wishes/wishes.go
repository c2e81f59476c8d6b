// Package wishes acquires the rights that applications ask for (dbcontroller.acquire), before they write rows of strict tables.
package wishes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Granter answers wishes.
type Granter struct {
	*db.DB
	rows   *rows.Rows
	rights *rights.Rights

	mu       sync.Mutex
	asked    map[string]time.Time         // guarded by mu; when a wish was last followed
	asking   map[schema.DeploymentID]bool // guarded by mu; deployments with a call under way
	returned time.Time                    // guarded by mu; when unused rights were last looked for
}

// New joins the parts.
func New(rs *rows.Rows, r *rights.Rights) *Granter {
	return &Granter{DB: rs.DB, rows: rs, rights: r, asked: map[string]time.Time{}, asking: map[schema.DeploymentID]bool{}}
}

const (
	// idle is the pause between two looks for wishes; unused that while no strict table is attached.
	idle   = 25 * time.Millisecond
	unused = 2 * time.Second
	// again is the time after which an unanswered target is asked for again: the answer to the confirm may be on its way.
	again = time.Second
	// patience is the age at which a wish is answered with the last problem, although that may pass.
	patience = 8 * time.Second
	// batch is the maximum number of wishes of a look, and batchOfOne that for one deployment: those of a deployment that is away leave
	// places for the others (I20).
	batch      = 5000
	batchOfOne = 500
)

var (
	selectWishesSQL = `
SELECT target, target || asked_at, now() - asked_at > $1::interval FROM (
    SELECT target, asked_at, row_number() OVER (PARTITION BY split_part(target, '/', 3), split_part(target, '/', 4) ORDER BY asked_at, target) AS place
    FROM dbcontroller.wish WHERE NOT answered) AS w
WHERE place <= $2 ORDER BY place, asked_at, target LIMIT $3`

	answerSQL = `
UPDATE dbcontroller.wish w SET answered = true, problem = i.problem, missing = i.missing
FROM unnest($1::text[], $2::text[], $3::boolean[]) AS i (target, problem, missing) WHERE w.target = i.target AND NOT w.answered`

	// One uid has the right, and nobody is about to end it, as in the trigger. A right that is about to end is asked for anew.
	selectHeldSQL = `
SELECT i.n - 1 FROM unnest($1::int[], $2::int[], $3::text[], $4::boolean[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, block, n)
WHERE 1 = (SELECT count(*) FROM dbcontroller.foreign_target f
    WHERE f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name AND ` + db.NotEndingSQL + `
        AND CASE WHEN i.block THEN ` + db.BlockRightCountsSQL + ` ELSE ` + db.RightCountsSQL + ` END)`

	tidySQL = `DELETE FROM dbcontroller.wish WHERE asked_at < now() - interval '5 min' OR asked_at > now() + interval '5 min'`

	tidyPinsSQL = `DELETE FROM dbcontroller.pin p WHERE NOT EXISTS (SELECT FROM dbcontroller.captured c WHERE c.statement = p.statement AND c.statement IS NOT NULL)`

	// Rights that were asked for, and that nothing here uses any more.
	returnSQL = db.LookAtRights(db.Codes(`dbcontroller.foreign_target f
WHERE f.block_attempt IS NOT NULL AND f.kept_until IS NOT NULL AND NOT ` + db.KeptSQL + ` AND NOT ` + db.PinnedSQL + `
    AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour = {block} AND NOT r.dangling)
    AND NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {look_at_right} AND w.target_id = f.id)
LIMIT 1000`))
)

// RunWishes answers wishes while leads returns true, until ctx ends. It returns nil.
func (s *Granter) RunWishes(ctx context.Context, leads func() bool) error {
	var asks sync.WaitGroup
	defer asks.Wait()
	for failed := false; ; {
		strict := s.strict()
		var err error
		if strict && leads() && s.Version.Load() != nil {
			err = s.look(ctx, &asks)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failed {
			s.Log.Warn("rights that an application asks for could not be acquired, retrying", zap.Error(err))
		}
		failed = err != nil
		pause := idle
		if !strict || failed {
			pause = unused
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (s *Granter) strict() bool {
	for _, t := range s.rows.Tables() {
		if t.Definition.Strict() {
			return true
		}
	}
	return false
}

// asking is a wish under way.
type asking struct {
	rights.Asked
	text string
	once string // the wish, and when it was asked
	late bool   // it is answered now, with the obstacle if there is one
}

// GrantWishes asks once for the rights of the wishes that are not answered, and answers those whose rights are there or refused.
func (s *Granter) GrantWishes(ctx context.Context) error {
	var asks sync.WaitGroup
	defer asks.Wait()
	return s.look(ctx, &asks)
}

// look answers the wishes whose rights are there, and begins to ask for the others. A deployment is asked by one call at a time, and none
// waits for the answer of another one.
func (s *Granter) look(ctx context.Context, asks *sync.WaitGroup) error {
	if err := s.tidy(ctx); err != nil {
		return err
	}
	rows, err := s.Pool.Query(ctx, selectWishesSQL, patience, batchOfOne, batch)
	if err != nil {
		return fmt.Errorf("read wishes: %w", err)
	}
	var all []asking
	answers := map[string]error{}
	var a asking
	_, err = pgx.ForEachRow(rows, []any{&a.text, &a.once, &a.late}, func() error {
		if a.Asked, err = s.needs(a.text); err != nil {
			answers[a.text] = err
		} else {
			all = append(all, a)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read wishes: %w", err)
	}
	if all, err = s.held(ctx, all, answers); err != nil {
		return err
	}
	if err := s.answer(ctx, answers); err != nil {
		return err
	}
	for at, of := range s.due(all) {
		asks.Go(func() {
			defer s.done(at)
			if err := s.answer(ctx, s.ask(ctx, at, of)); err != nil && ctx.Err() == nil {
				s.Log.Warn("the answers to wishes could not be stored; their targets are asked for again", zap.Stringer("deployment", at), zap.Error(err))
			}
		})
	}
	return nil
}

// needs reads a wish, and finds the strict references that it is for.
func (s *Granter) needs(text string) (out rights.Asked, err error) {
	right, name, _ := strings.Cut(text, " ")
	if out.Target, err = schema.ParseFullName(name); err != nil {
		return out, err
	}
	out.Block = right == "BLOCK"
	for _, t := range s.rows.Tables() {
		for _, r := range t.Definition.References {
			if r.Strict != nil && r.Strict.Blocks == out.Block && names(r.Strict, out.Target) && (out.Block || right == "ACT") {
				out.Kind = r.Strict.Kind
				return out, nil
			}
		}
	}
	return out, fmt.Errorf("no strict reference of an attached table needs %s", text)
}

func names(r *schema.Strict, target schema.FullName) bool {
	return r.Kind.Service == target.Deployment.Service && (r.Collection == "" || strings.HasPrefix(target.Name, r.Collection+"/"))
}

// held answers the wishes whose rights are there, and returns the others.
func (s *Granter) held(ctx context.Context, all []asking, answers map[string]error) (left []asking, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	deployments, kinds, names, block := make([]int32, len(all)), make([]int32, len(all)), make([]string, len(all)), make([]bool, len(all))
	for i, a := range all {
		if deployments[i], err = s.Names.Deployment(ctx, a.Target.Deployment); err != nil {
			return nil, err
		}
		if kinds[i], err = s.Names.Kind(ctx, a.Kind); err != nil {
			return nil, err
		}
		names[i], block[i] = a.Target.Name, a.Block
	}
	rows, err := s.Pool.Query(ctx, selectHeldSQL, deployments, kinds, names, block)
	if err != nil {
		return nil, fmt.Errorf("read rights: %w", err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("read rights: %w", err)
	}
	for i, a := range all {
		if slices.Contains(there, i) {
			answers[a.text] = nil
		} else {
			left = append(left, a)
		}
	}
	return left, nil
}

// ask asks a deployment for rights, and returns the answers that are known then.
func (s *Granter) ask(ctx context.Context, at schema.DeploymentID, of []asking) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	asked := make([]rights.Asked, len(of))
	for i, a := range of {
		asked[i] = a.Asked
	}
	refused, err := s.rights.AcquireAsked(ctx, at, asked)
	answers := map[string]error{}
	for _, a := range of {
		why := refused[a.Target.Name]
		var named *peer.RefusedError
		switch {
		case errors.As(why, &named) && named.All(peer.Stands(peer.Final)), a.late && why != nil:
			answers[a.text] = why
		case a.late:
			answers[a.text] = fmt.Errorf("the right to refer to it was not given in %s: %w", patience, errors.Join(err, why))
		}
	}
	if err != nil {
		s.Log.Debug("rights that an application asks for were not given yet", zap.Stringer("deployment", at), zap.Error(err))
	}
	return answers
}

// due returns the wishes to ask for now, by deployment: those that are late, or were not asked for a moment ago. No call to these
// deployments is under way; the caller ends each by done.
func (s *Granter) due(all []asking) map[schema.DeploymentID][]asking {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) > 2*batch {
		clear(s.asked)
	}
	now, due := time.Now(), map[schema.DeploymentID][]asking{}
	for _, a := range all {
		at := a.Target.Deployment
		if s.asking[at] || !a.late && now.Sub(s.asked[a.once]) < again {
			continue
		}
		s.asked[a.once] = now
		due[at] = append(due[at], a)
	}
	for at := range due {
		s.asking[at] = true
	}
	return due
}

func (s *Granter) done(at schema.DeploymentID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, at)
}

func (s *Granter) answer(ctx context.Context, answers map[string]error) error {
	if len(answers) == 0 {
		return nil
	}
	var targets []string
	var problems []*string
	var missing []bool
	for target, err := range answers {
		var problem *string
		var named *peer.RefusedError
		absent := false
		if err != nil {
			text := err.Error()
			if absent = errors.As(err, &named) && named.All(func(r peer.Reason) bool { return r == peer.TargetMissing }); absent {
				_, name, _ := strings.Cut(target, " ")
				text = name + " does not exist"
			}
			problem = &text
		}
		targets, problems, missing = append(targets, target), append(problems, problem), append(missing, absent)
	}
	if _, err := s.Pool.Exec(ctx, answerSQL, targets, problems, missing); err != nil {
		return fmt.Errorf("answer wishes: %w", err)
	}
	return nil
}

// tidy removes old wishes and pins, and looks for rights that are not used, every two seconds.
func (s *Granter) tidy(ctx context.Context) error {
	s.mu.Lock()
	due := time.Since(s.returned) > unused
	if due {
		s.returned = time.Now()
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(tidySQL)
		b.Queue(tidyPinsSQL)
		b.Queue(returnSQL)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("tidy wishes: %w", err)
	}
	return nil
}
