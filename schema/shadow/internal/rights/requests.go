package rights

import (
	"cmp"
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
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Granter acquires the rights of attached tables: rights that statements ask for before they write rows
// (dbcontroller.acquire), and rights that rows lack (dbcontroller.lacking).
type Granter struct {
	*db.DB
	gate   *gate.Gate
	rows   *rows.Rows
	rights *Rights

	pauses *db.LatePauses // of values without a right

	mu       sync.Mutex
	asked    map[string]time.Time         // guarded by mu; when a request was last followed
	asking   map[schema.DeploymentID]bool // guarded by mu; deployments with a call under way
	returned time.Time                    // guarded by mu; when unused rights were last looked for
	// guarded by mu; when values without a right were last looked for; settling: they are at the moment
	settled  time.Time
	settling bool
}

// NewGranter joins the parts.
func NewGranter(g *gate.Gate, rs *rows.Rows, r *Rights) *Granter {
	return &Granter{
		DB: rs.DB, gate: g, rows: rs, rights: r, pauses: db.NewLatePauses("lacking"),
		asked: map[string]time.Time{}, asking: map[schema.DeploymentID]bool{},
	}
}

const (
	// requestsIdle is the pause between two looks while requests are open, or while no process would tell of
	// a new one; requestsRare is the pause after a failure, and between two looks for unused rights.
	// Otherwise it is lackingEvery.
	requestsIdle = 25 * time.Millisecond
	requestsRare = 2 * time.Second
	// askedAgainAfter is the time after which an unanswered target is asked for again: the answer to the
	// confirm may be on its way.
	askedAgainAfter = time.Second
	// requestPatience is the age at which a request is answered with the last problem, although that may
	// pass.
	requestPatience = 8 * time.Second
	// requestsBatch is the maximum number of requests of a look, and requestsOfOne the maximum for one
	// deployment: requests for a deployment that is away leave places for the others (I20).
	requestsBatch = 5000
	requestsOfOne = 500
	// deploymentsOfLook is the maximum number of deployments of a look. Requests for a deployment that the
	// environment does not list are answered at once.
	deploymentsOfLook = 1000
)

var (
	// SelectRequestsSQL finds the open requests of rights. A step of its recursion finds the next deployment
	// by the index, and each of them has the same share of a look: very many requests for one, or for very
	// many, cost a look little.
	SelectRequestsSQL = `
WITH RECURSIVE d AS (
    (SELECT split_part(target, '/', 3) AS service, split_part(target, '/', 4) AS region FROM dbcontroller.right_request WHERE NOT answered ORDER BY 1, 2 LIMIT 1)
    UNION ALL
    SELECT n.service, n.region FROM d CROSS JOIN LATERAL (
        SELECT split_part(w.target, '/', 3) AS service, split_part(w.target, '/', 4) AS region FROM dbcontroller.right_request w
        WHERE NOT w.answered AND (split_part(w.target, '/', 3), split_part(w.target, '/', 4)) > (d.service, d.region) ORDER BY 1, 2 LIMIT 1
    ) AS n
), first AS (
    SELECT * FROM d LIMIT $4
)
SELECT w.target, w.asks, w.target || w.asked_at || COALESCE(w.answers, 0), now() - w.asked_at > $1::interval, w.asked_by FROM first CROSS JOIN LATERAL (
    SELECT target, asks, answers, asked_at, asked_by FROM dbcontroller.right_request
    WHERE NOT answered AND split_part(target, '/', 3) = first.service AND split_part(target, '/', 4) = first.region
    ORDER BY asked_at, target LIMIT LEAST($2, $3 / (SELECT count(*) FROM first))
) AS w`

	// A target may have been created after the question that is answered: a later asker waits for the answer
	// to the last question. A right is there for all.
	answerSQL = `
UPDATE dbcontroller.right_request w SET answered = i.problem IS NULL OR w.asks = i.asks, answers = i.asks, problem = i.problem, missing = i.missing
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::boolean[]) AS i (target, asks, problem, missing) WHERE w.target = i.target AND NOT w.answered AND COALESCE(w.answers, 0) < i.asks`

	tidySQL = `DELETE FROM dbcontroller.right_request WHERE asked_at < now() - interval '5 min' OR asked_at > now() + interval '5 min'`

	// Rights that were asked for: they are not used any more, or their use is not known yet.
	returnUnusedSQL = db.LookAtRights(db.Codes(`dbcontroller.foreign_target f
WHERE f.block_attempt IS NOT NULL AND f.kept_until IS NOT NULL AND NOT ` + db.KeptSQL + `
    AND (f.asked_by IS NOT NULL OR NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour = {block} AND NOT r.dangling))
    AND NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {look_at_right} AND w.target_id = f.id)
LIMIT 1000`))
)

// RunRequests answers requests while leads returns true, until ctx ends. It returns nil.
func (s *Granter) RunRequests(ctx context.Context, leads func() bool) error {
	var asks sync.WaitGroup
	defer asks.Wait()
	for failed := false; ; {
		attached := s.Attached() // before they are counted
		asked, strict, open := s.Asked(), s.strict(), false
		settles, acts := s.rows.Refer() || s.rows.Unwalked(), leads() && s.Version.Load() != nil
		var err error
		if settles && acts {
			s.settleBeside(ctx, &asks)
		}
		if strict && acts {
			open, err = s.look(ctx, &asks)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failed {
			s.Log.Warn("rights that an application asks for could not be acquired, retrying", zap.Error(err))
		}
		failed = err != nil
		due, wakes := time.After(requestsIdle), asked
		switch {
		case failed:
			due, wakes = time.After(requestsRare), nil
		case !settles:
			due, wakes = nil, attached
		case !open && (!strict || s.NotificationsAlive()):
			due = time.After(lackingEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wakes:
		case <-due:
		}
	}
}

// settleBeside settles values without a right, beside the requests of statements.
func (s *Granter) settleBeside(ctx context.Context, asks *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settling || time.Since(s.settled) < lackingEvery {
		return
	}
	s.settling = true
	asks.Go(func() {
		more, err := s.AcquireForRows(ctx)
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("rights of rows could not be acquired, retrying", zap.Error(err))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.settling = false; !more || err != nil {
			s.settled = time.Now()
		}
	})
}

func (s *Granter) strict() bool {
	for _, t := range s.rows.Tables() {
		if t.Definition.Strict() {
			return true
		}
	}
	return false
}

// asking is a request under way.
type asking struct {
	Asked
	question
	once string // the request, and when it was asked
	late bool   // it is answered now, with the obstacle if there is one
}

// question is a request as it was asked last, by the number of that question.
type question struct {
	text string
	asks int64
}

// AnswerRequests asks once for the rights of the requests that are not answered, and answers those whose
// rights are there or refused.
func (s *Granter) AnswerRequests(ctx context.Context) error {
	var asks sync.WaitGroup
	defer asks.Wait()
	_, err := s.look(ctx, &asks)
	return err
}

// look answers the requests whose rights are there, and begins to ask for the others. A deployment is asked
// by one call at a time, and none waits for the answer of another one. It reports whether requests are open.
func (s *Granter) look(ctx context.Context, asks *sync.WaitGroup) (open bool, err error) {
	if err := s.tidy(ctx); err != nil {
		return false, err
	}
	rows, err := s.Pool.Query(ctx, SelectRequestsSQL, requestPatience, requestsOfOne, requestsBatch, deploymentsOfLook)
	if err != nil {
		return false, fmt.Errorf("read requests of rights: %w", err)
	}
	var all []asking
	answers := map[question]error{}
	var a asking
	var by string
	_, err = pgx.ForEachRow(rows, []any{&a.text, &a.asks, &a.once, &a.late, &by}, func() error {
		if a.Asked, err = s.needs(a.text); err != nil {
			answers[a.question] = err
		} else {
			if a.By = ""; a.Block {
				a.By = by
			}
			all = append(all, a)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read requests of rights: %w", err)
	}
	if all, err = s.named(ctx, all, answers); err != nil {
		return false, err
	}
	if all, err = s.held(ctx, all, answers); err != nil {
		return false, err
	}
	if err := s.answer(ctx, answers); err != nil {
		return false, err
	}
	if len(answers) > 0 {
		s.WakeAsked() // there may be more than one look takes
	}
	for at, of := range s.due(all) {
		asks.Go(func() {
			defer s.WakeAsked() // the rights may be there, and others wait for their turn
			defer s.done(at)
			if err := s.answer(ctx, s.ask(ctx, at, of)); err != nil && ctx.Err() == nil {
				s.Log.Warn("the answers to requests of rights could not be stored; their targets are asked for again",
					zap.Stringer("deployment", at), zap.Error(err))
			}
		})
	}
	return len(all) > 0, nil
}

// needs reads a request, and finds the strict references that it is for.
func (s *Granter) needs(text string) (out Asked, err error) {
	right, name, _ := strings.Cut(text, " ")
	if out.Target, err = schema.ParseFullName(name); err != nil {
		return out, errors.Join(errUnnamed, err)
	}
	out.Block = right == "BLOCK"
	for _, t := range s.rows.Tables() {
		for _, r := range t.Definition.References {
			if r.Strict && r.Blocks() == out.Block && names(r.Target, out.Target) && (out.Block || right == "ACT") {
				out.Kind = r.Target.Kind
				return out, nil
			}
		}
	}
	return out, fmt.Errorf("no strict reference of an attached table needs %s", text)
}

// errUnconfirmed: the deployment has answered, and its answer to the confirm, which gives the right, is under
// way.
var errUnconfirmed = errors.New("its deployment has not confirmed it yet")

// errUnnamed: the value of a column, such as the empty text, names nothing that could exist.
var errUnnamed = errors.New("no name of a resource")

func names(r schema.RowTarget, target schema.FullName) bool {
	return r.Kind.Service == target.Deployment.Service &&
		(r.Collection == "" || strings.HasPrefix(target.Name, r.Collection+"/"))
}

// named answers the requests whose deployments are made up, and returns the others.
func (s *Granter) named(ctx context.Context, all []asking, answers map[question]error) (left []asking, err error) {
	checked := map[schema.DeploymentID]error{}
	for _, a := range all {
		at := a.Target.Deployment
		if _, done := checked[at]; !done {
			checked[at] = s.gate.CheckNamed(ctx, at)
		}
		var away *peer.UnavailableError
		switch {
		case errors.As(checked[at], &away):
			answers[a.question] = checked[at]
		case checked[at] != nil:
			return nil, checked[at]
		default:
			left = append(left, a)
		}
	}
	return left, nil
}

// held answers the requests whose rights are there, and returns the others.
func (s *Granter) held(ctx context.Context, all []asking, answers map[question]error) (left []asking, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	asked := make([]Asked, len(all))
	for i, a := range all {
		asked[i] = a.Asked
	}
	held, err := s.rights.held(ctx, asked)
	if err != nil {
		return nil, err
	}
	for i, a := range all {
		if held[i] {
			answers[a.question] = nil
		} else {
			left = append(left, a)
		}
	}
	return left, nil
}

// ask asks a deployment for rights, and returns the answers that are known then.
func (s *Granter) ask(ctx context.Context, at schema.DeploymentID, of []asking) map[question]error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	answers := map[question]error{}
	of, err := s.admit(ctx, at, of, answers)
	if len(of) == 0 {
		return answers
	}
	asked := make([]Asked, len(of))
	for i, a := range of {
		asked[i] = a.Asked
	}
	var refused map[string]error
	if err == nil {
		refused, err = s.rights.acquireAsked(ctx, at, asked, toUse)
	}
	for _, a := range of {
		why := refused[a.Target.Name]
		var named *peer.RefusedError
		switch {
		case errors.As(why, &named) && named.All(peer.Stands(peer.Final)), a.late && why != nil:
			answers[a.question] = why
		case a.late:
			answers[a.question] = fmt.Errorf("the right to refer to it was not given in %s: %w", requestPatience,
				cmp.Or(errors.Join(err, why), errUnconfirmed))
		}
	}
	if err != nil {
		s.Log.Debug("rights that an application asks for were not given yet", zap.Stringer("deployment", at),
			zap.Error(err))
	}
	return answers
}

// admit answers the requests of callers that have too many unused rights to block, and returns the others. A
// right to act refuses no deletion.
func (s *Granter) admit(ctx context.Context, at schema.DeploymentID, of []asking,
	answers map[question]error,
) ([]asking, error) {
	wanted := map[string]int{}
	for _, a := range of {
		if a.Block {
			wanted[a.By]++
		}
	}
	if len(wanted) == 0 {
		return of, nil
	}
	admitted, err := s.rights.admit(ctx, at, wanted)
	if err != nil {
		return of, err
	}
	return slices.DeleteFunc(of, func(a asking) bool {
		switch {
		case !a.Block:
			return false
		case admitted[a.By] > 0:
			admitted[a.By]--
			return false
		}
		answers[a.question] = fmt.Errorf(
			"%s has %d rights to block resources of %s that no row uses, and more are not given to one role: "+
				"write fewer rows with new targets in a transaction; rights that are not used are returned after %s. The number is the setting --max-unused-rights of serve", a.By, s.Tuning.Load().Quotas.Unused, at, toUse)
		return true
	}), nil
}

// due returns the requests to ask for now, by deployment: late ones, and ones that were not asked for within
// again. No call to these deployments is under way; the caller ends each by done.
func (s *Granter) due(all []asking) map[schema.DeploymentID][]asking {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) > 2*requestsBatch {
		clear(s.asked)
	}
	now, due := time.Now(), map[schema.DeploymentID][]asking{}
	for _, a := range all {
		at := a.Target.Deployment
		if s.asking[at] || !a.late && now.Sub(s.asked[a.once]) < askedAgainAfter {
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

func (s *Granter) answer(ctx context.Context, answers map[question]error) error {
	if len(answers) == 0 {
		return nil
	}
	var targets []string
	var asks []int64
	var problems []*string
	var missing []bool
	for q, err := range answers {
		var problem *string
		var named *peer.RefusedError
		absent := false
		if err != nil {
			text := err.Error()
			absent = errors.Is(err, errUnnamed) || errors.As(err, &named) && named.All(func(r peer.Reason) bool {
				return r == peer.TargetMissing
			})
			if absent {
				_, name, _ := strings.Cut(q.text, " ")
				text = name + " does not exist"
			}
			problem = &text
		}
		targets, asks, problems, missing = append(targets, q.text), append(asks, q.asks), append(problems, problem),
			append(missing, absent)
	}
	if _, err := s.Pool.Exec(ctx, answerSQL, targets, asks, problems, missing); err != nil {
		return fmt.Errorf("answer requests of rights: %w", err)
	}
	return nil
}

// tidy removes old requests of rights, and looks for rights that are not used, every two seconds.
func (s *Granter) tidy(ctx context.Context) error {
	s.mu.Lock()
	due := time.Since(s.returned) > requestsRare
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
		b.Queue(returnUnusedSQL)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("tidy requests of rights: %w", err)
	}
	return nil
}
