package owner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/retry"
)

// passKey names a pass over ownees: the owners' deployment, and the message about its owners.
type passKey struct {
	deployment int32
	message    string
}

// passes keeps in memory the ownee after which an interrupted pass goes on with the next call. So ownees that
// fail, in any number, delay no others (I20): they are tried again by the next pass. Losing a pass costs only
// one from the beginning.
type passes struct {
	mu    sync.Mutex
	after map[passKey]int64 // guarded by mu
}

// mostPasses bounds the interrupted passes: one stays when its message is not repeated.
const mostPasses = 1_000

// take removes and returns the place of an interrupted pass, or of the beginning.
func (p *passes) take(key passKey) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	after := p.after[key]
	delete(p.after, key)
	return after
}

func (p *passes) put(key passKey, after int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.after == nil || len(p.after) >= mostPasses {
		p.after = map[passKey]int64{}
	}
	p.after[key] = after
}

// pass calls run for the ownees that a query finds after one, in batches by id; $1 and $2 of the query are
// the last ownee and the size of a batch. It ends when its time is over, and reports then that there is more.
// Ownees that fail are passed to failed and left out.
func (s *Owners) pass(ctx context.Context, key passKey, query string, args []any, run func(part []int64) error,
	failed func(ownee int64, err error),
) (more bool, err error) {
	began, after := time.Now(), s.passes.take(key)
	over := func() bool { return time.Since(began) >= s.Cfg.Times.OwneeCall }
	for {
		rows, err := s.Pool.Query(ctx, query, slices.Concat([]any{after, s.Cfg.Limits.Batch}, args)...)
		if err != nil {
			return false, err
		}
		ownees, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ownees) == 0 {
			return false, err
		}
		left, err := s.Halving(ctx, ownees, retry.Halves[int64]{
			Run: run, Stop: over,
			Failed: func(ownee int64, err error) error {
				failed(ownee, err)
				return nil
			},
		})
		switch {
		case err != nil:
			return false, err
		case len(left) > 0:
			after = left[0] - 1
		default:
			after = ownees[len(ownees)-1]
		}
		if over() {
			s.passes.put(key, after)
			return true, nil
		}
	}
}
