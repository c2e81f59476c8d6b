package target

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var countBlockadesSQL = db.Codes(`
SELECT deployment_id, count(*) FILTER (WHERE expires_at IS NOT NULL), count(*) FILTER (WHERE behaviour = {block})
FROM dbcontroller.blockade GROUP BY deployment_id`)

// countAtMost bounds the time spent counting to 1/countAtMost: between two counts of which the first took t,
// countAtMost*t passes.
const countAtMost = 20

// usage is the number of blockades of each holder's deployment, an upper bound for the blockades that this
// process establishes: the last count plus all blockades established since; releases are subtracted only by
// the next count. Before it refuses, it counts again, except for a deployment that was refused by a recent
// count.
type usage struct {
	counting   chan struct{} // semaphore of one: held while counting
	closed     chan struct{} // closed by close, which ends counts in the background
	background sync.WaitGroup

	mu        sync.Mutex
	used      map[int32]used      // by deployment; guarded by mu, like all below
	inFlight  map[int32]used      // the part of used whose transactions have not ended: a count may not see it
	refused   map[int32]time.Time // the last refusal by a count
	named     map[int32]int       // the number of names stored by this process for the deployment
	began     time.Time           // start of the last count; zero: never
	counted   time.Time           // its end; its start while it runs
	completed time.Time           // start of the last count that has ended
	took      time.Duration       // duration of that count
}

type used struct{ tentative, blocking int64 }

func (n used) plus(more used) used {
	return used{n.tentative + more.tentative, n.blocking + more.blocking}
}

func newUsage() *usage {
	return &usage{
		counting: make(chan struct{}, 1), closed: make(chan struct{}), used: map[int32]used{},
		inFlight: map[int32]used{}, refused: map[int32]time.Time{}, named: map[int32]int{},
	}
}

// add reserves the blockades that a deployment is about to establish. It returns the exceeded limit as text,
// and then reserves nothing. Counting millions of rows takes seconds: add waits for a count only before it
// refuses.
func (u *usage) add(ctx context.Context, q db.Querier, deployment int32, limits peer.Quotas,
	more used,
) (detail string, err error) {
	detail, due, hopeless := u.try(deployment, limits, more)
	if due {
		u.background.Go(func() { u.countInBackground(context.WithoutCancel(ctx), q) })
	}
	if detail == "" || hopeless {
		return detail, nil
	}
	if err := u.count(ctx, q); err != nil {
		return "", err
	}
	if detail, _, _ = u.try(deployment, limits, more); detail != "" {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.refused[deployment] = time.Now()
	}
	return detail, nil
}

// countInBackground counts while the caller goes on, until close.
func (u *usage) countInBackground(ctx context.Context, q db.Querier) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = u.count(ctx, q) // the next call near the limit tries again
	}()
	select {
	case <-done:
	case <-u.closed:
		cancel()
		<-done
	}
}

// close ends counts in the background, and returns when they have ended. Nothing may call add any more.
func (u *usage) close() {
	close(u.closed)
	u.background.Wait()
}

// try is add without counting. It also reports whether a count is due, and whether a recent count has refused
// the deployment, so that counting again is hopeless.
func (u *usage) try(deployment int32, limits peer.Quotas, more used) (detail string, due, hopeless bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	pause := max(time.Second, countAtMost*u.took)
	held := u.used[deployment]
	if detail = over(limits, held, more); detail != "" {
		return detail, false, time.Since(u.refused[deployment]) < pause
	}
	near := held.tentative > limits.Tentative/2 || held.blocking > limits.Blocking/2
	if due = u.began.IsZero() || near && time.Since(u.counted) > pause; due {
		u.began, u.counted = time.Now(), time.Now() // other calls do not begin a count too
	}
	u.used[deployment] = held.plus(more)
	u.inFlight[deployment] = u.inFlight[deployment].plus(more)
	return "", due, false
}

// maxNewNames is the maximum number of field paths and kinds that this process stores for one deployment:
// they are never removed, and a service has some hundreds.
const maxNewNames = 1000

// name reserves n new names for a deployment, and reports whether they are within maxNewNames.
func (u *usage) name(deployment int32, n int) bool {
	if n == 0 {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.named[deployment]+n > maxNewNames {
		return false
	}
	u.named[deployment] += n
	return true
}

// done marks blockades reserved by add as committed or aborted: either way the next count is right.
func (u *usage) done(deployment int32, added used) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if left := u.inFlight[deployment].plus(used{-added.tentative, -added.blocking}); left != (used{}) {
		u.inFlight[deployment] = left
	} else {
		delete(u.inFlight, deployment)
	}
}

func over(limits peer.Quotas, held, more used) string {
	switch {
	case held.tentative+more.tentative > limits.Tentative:
		return fmt.Sprintf("at most %d tentative blockades are allowed", limits.Tentative)
	case held.blocking+more.blocking > limits.Blocking:
		return fmt.Sprintf("at most %d blocking references are allowed", limits.Blocking)
	}
	return ""
}

// count replaces used by a count of the table, unless a count that began after the call has ended meanwhile.
func (u *usage) count(ctx context.Context, q db.Querier) error {
	called := time.Now()
	select {
	case u.counting <- struct{}{}:
		defer func() { <-u.counting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	u.mu.Lock()
	if u.completed.After(called) {
		u.mu.Unlock()
		return nil
	}
	before := maps.Clone(u.used)
	for id, inFlight := range u.inFlight {
		before[id] = before[id].plus(used{-inFlight.tentative, -inFlight.blocking})
	}
	u.began = began
	u.mu.Unlock()
	rows, err := q.Query(ctx, countBlockadesSQL)
	if err != nil {
		return fmt.Errorf("count blockades: %w", err)
	}
	fresh := map[int32]used{}
	var deployment int32
	var n used
	if _, err := pgx.ForEachRow(rows, []any{&deployment, &n.tentative, &n.blocking}, func() error {
		fresh[deployment] = n
		return nil
	}); err != nil {
		return fmt.Errorf("count blockades: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	// in-flight and new reservations are added, whether or not the count has seen their rows
	for id, held := range u.used {
		was := before[id]
		fresh[id] = fresh[id].plus(used{held.tentative - was.tentative, held.blocking - was.blocking})
	}
	u.used, u.counted, u.took, u.completed = fresh, time.Now(), time.Since(began), began
	return nil
}

// giveBack ends a reservation of blockades that were not stored.
func (u *usage) giveBack(deployment int32, added used) {
	u.mu.Lock()
	u.used[deployment] = u.used[deployment].plus(used{-added.tentative, -added.blocking})
	u.mu.Unlock()
	u.done(deployment, added)
}

// reservation is the part of a quota that the blockades of one call take. Its caller calls done when the
// transaction that writes them has ended, or giveBack if none does.
type reservation struct{ done, giveBack func() }

// limits returns the quota of a holder's deployment: the settings, or lower numbers of the environment.
func (s *Keeper) limits(holder schema.DeploymentID) peer.Quotas {
	limits := s.Tuning.Load().Quotas
	if of := s.Cfg.Limits.QuotaOf; of != nil {
		q := of(holder)
		limits.Tentative, limits.Blocking = lower(limits.Tentative, q.Tentative), lower(limits.Blocking, q.Blocking)
	}
	return limits
}

// lower returns the lower one of a limit and another one; the other one is 0 for none.
func lower(limit, other int64) int64 {
	if other == 0 {
		return limit
	}
	return min(limit, other)
}

// admit fails with a *RefusedError (QuotaExceeded) when the references exceed the quota of their holders'
// deployment.
func (s *Keeper) admit(ctx context.Context, holder int32, limits peer.Quotas,
	refs []peer.EstablishReference,
) (r reservation, err error) {
	more := used{tentative: int64(len(refs))}
	for _, r := range refs {
		if r.Behaviour == schema.Block {
			more.blocking++
		}
	}
	detail, err := s.usage.add(ctx, s.Pool, holder, limits, more)
	if err != nil {
		return r, err
	}
	if detail != "" {
		return r, s.tooMuch(refs, detail)
	}
	return reservation{
		done:     func() { s.usage.done(holder, more) },
		giveBack: func() { s.usage.giveBack(holder, more) },
	}, nil
}

func (s *Keeper) tooMuch(refs []peer.EstablishReference, detail string) error {
	e := &peer.RefusedError{Refusals: make([]peer.Refusal, len(refs))}
	for i, r := range refs {
		e.Refusals[i] = peer.Refusal{
			Holder: r.HolderName, Path: r.Path, Reason: peer.QuotaExceeded, Detail: detail,
			Target: schema.FullName{Deployment: s.Self, Name: r.TargetName},
		}
	}
	return e
}

// referableBy reports whether resources of a service may refer to resources of the kind. For references that
// are established again, it is enough that some version of the kind allowed it.
func referableBy(kind *schema.KindModel, service, self string, again bool) bool {
	listed := kind.ReferableBy
	if again {
		listed = kind.EverReferableBy
	}
	return service == self || len(listed) == 0 || slices.Contains(listed, service)
}
