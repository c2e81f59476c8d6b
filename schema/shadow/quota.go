package shadow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// Quotas bound what the holders of one deployment may have here at a time: to refer to a resource is to be able to keep
// it, or for a while to keep others from it.
type Quotas struct {
	// Tentative blockades, of attempts under way (default 100,000).
	Tentative int64
	// Blocking references, confirmed or under way (default 10,000,000).
	Blocking int64
}

var countBlockadesSQL = codes(`
SELECT deployment_id, count(*) FILTER (WHERE expires_at IS NOT NULL), count(*) FILTER (WHERE behaviour = {block})
FROM dbcontroller.blockade GROUP BY deployment_id`)

// countAtMost is how much of the time may go into counting: one part in so many.
const countAtMost = 20

// usage is about what each holder's deployment has: as counted last, and what came since. What was settled or released
// since counts on, so it never tells too little of what this process has established. Before it refuses, it counts again;
// but who was refused by a count is not worth another one for a while.
type usage struct {
	limits Quotas

	counting chan struct{} // one place: who counts

	mu      sync.Mutex
	used    map[int32]used      // guarded by mu, as what follows
	flying  map[int32]used      // of it, what a count may not see yet
	refused map[int32]time.Time // when a count said that it was too much
	named   map[int32]int       // how many names were stored for it
	began   time.Time           // when the last count began; zero: never
	counted time.Time           // when it ended
	done    time.Time           // when the last one began that has ended
	took    time.Duration
}

type used struct{ tentative, blocking int64 }

func (n used) plus(more used) used {
	return used{n.tentative + more.tentative, n.blocking + more.blocking}
}

func newUsage(q Quotas) *usage {
	if q.Tentative <= 0 {
		q.Tentative = 100_000
	}
	if q.Blocking <= 0 {
		q.Blocking = 10_000_000
	}
	return &usage{limits: q, counting: make(chan struct{}, 1), used: map[int32]used{}, flying: map[int32]used{}, refused: map[int32]time.Time{}, named: map[int32]int{}}
}

// add counts what a deployment is about to establish, unless it is too much; then it tells what for. Counting takes
// seconds where there are millions of rows: it is waited for only before something is refused.
func (u *usage) add(ctx context.Context, q querier, deployment int32, more used) (detail string, err error) {
	detail, due, hopeless := u.try(deployment, more)
	if due {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			_ = u.count(ctx, q) // the next one who comes near the limit tries again
		}()
	}
	if detail == "" || hopeless {
		return detail, nil
	}
	if err := u.count(ctx, q); err != nil {
		return "", err
	}
	if detail, _, _ = u.try(deployment, more); detail != "" {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.refused[deployment] = time.Now()
	}
	return detail, nil
}

// try tells also whether it is time to count, and whether a count just now has said the same.
func (u *usage) try(deployment int32, more used) (detail string, due, hopeless bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	pause := max(time.Second, countAtMost*u.took)
	now := u.used[deployment]
	if detail = u.over(now, more); detail != "" {
		return detail, false, time.Since(u.refused[deployment]) < pause
	}
	near := now.tentative > u.limits.Tentative/2 || now.blocking > u.limits.Blocking/2
	if due = u.began.IsZero() || near && time.Since(u.counted) > pause; due {
		u.began, u.counted = time.Now(), time.Now() // nobody else counts at the same time
	}
	u.used[deployment] = now.plus(more)
	u.flying[deployment] = u.flying[deployment].plus(more)
	return "", due, false
}

// maxNewNames is how many field paths and kinds this process stores for one deployment: they are never removed, and a service
// has some hundreds.
const maxNewNames = 1000

// name counts names that are about to be stored, unless they are too many.
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

// landed says that what was added has been committed, or never will be.
func (u *usage) landed(deployment int32, added used) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if left := u.flying[deployment].plus(used{-added.tentative, -added.blocking}); left != (used{}) {
		u.flying[deployment] = left
	} else {
		delete(u.flying, deployment)
	}
}

func (u *usage) over(now, more used) string {
	switch {
	case now.tentative+more.tentative > u.limits.Tentative:
		return fmt.Sprintf("at most %d may be under way", u.limits.Tentative)
	case now.blocking+more.blocking > u.limits.Blocking:
		return fmt.Sprintf("at most %d may block", u.limits.Blocking)
	}
	return ""
}

// count counts, unless somebody else has begun to after the call and come to the end.
func (u *usage) count(ctx context.Context, q querier) error {
	called := time.Now()
	select {
	case u.counting <- struct{}{}:
		defer func() { <-u.counting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	u.mu.Lock()
	if u.done.After(called) {
		u.mu.Unlock()
		return nil
	}
	before := maps.Clone(u.used)
	for id, flying := range u.flying {
		before[id] = before[id].plus(used{-flying.tentative, -flying.blocking})
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
	if _, err := pgx.ForEachRow(rows, []any{&deployment, &n.tentative, &n.blocking}, func() error { fresh[deployment] = n; return nil }); err != nil {
		return fmt.Errorf("count blockades: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, now := range u.used { // what was under way or came while it was counted, whether or not it was seen
		was := before[id]
		fresh[id] = fresh[id].plus(used{now.tentative - was.tentative, now.blocking - was.blocking})
	}
	u.used, u.counted, u.took, u.done = fresh, time.Now(), time.Since(began), began
	return nil
}

// admit refuses references that are more than their holders' deployment may have. When the transaction that writes the
// others has ended, landed has to be called.
func (s *Store) admit(ctx context.Context, holder int32, refs []EstablishReference) (landed func(), err error) {
	more := used{tentative: int64(len(refs))}
	for _, r := range refs {
		if r.Behaviour == schema.Block {
			more.blocking++
		}
	}
	detail, err := s.usage.add(ctx, s.pool, holder, more)
	if err != nil {
		return nil, err
	}
	if detail == "" {
		return func() { s.usage.landed(holder, more) }, nil
	}
	return nil, s.tooMuch(refs, detail)
}

func (s *Store) tooMuch(refs []EstablishReference, detail string) error {
	e := &RefusedError{Refusals: make([]Refusal, len(refs))}
	for i, r := range refs {
		e.Refusals[i] = Refusal{
			Holder: r.HolderName, Path: r.Path, Reason: QuotaExceeded, Detail: detail,
			Target: schema.FullName{Deployment: s.self, Name: r.TargetName},
		}
	}
	return e
}

// referableBy tells whether the kind lets a service refer to its resources; or for references that are established again,
// whether some version of it did.
func referableBy(kind *schema.KindModel, service, own string, again bool) bool {
	listed := kind.ReferableBy
	if again {
		listed = kind.EverReferableBy
	}
	return service == own || len(listed) == 0 || slices.Contains(listed, service)
}
