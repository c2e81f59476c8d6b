package rights

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/violation"
)

// acquireWait is the time for which a call waits for the rights that it asks for.
const acquireWait = 10 * time.Second

const (
	acquireSQL = `SELECT dbcontroller.acquire_as($1, $2)`

	selectAskedSQL = `SELECT target, asks FROM dbcontroller.right_request WHERE target = ANY ($1)`

	// As dbcontroller.acquired: an answer to an earlier question may be older than the target.
	selectAnswersSQL = `
SELECT w.target, w.problem, w.missing FROM unnest($1::text[], $2::bigint[]) AS i (target, asks)
JOIN dbcontroller.right_request w ON w.target = i.target AND (w.answered OR w.answers >= i.asks)`

	refusedSQL = "RD002" // of acquire_as: too many rights were asked for
)

// AcquireDelegations asks for the rights that the lines of DETAIL of RD001 name, and waits for them, as
// dbcontroller.acquire and dbcontroller.acquired do for SQL; no connection is used while it waits. The
// caller's share of all requests is counted by its identity. It fails with a *peer.RefusedError for targets
// that do not exist, or that the caller may not refer to; with a *peer.InvalidError for names that nothing
// here refers to; with postgres.ErrTooMany when too many rights were asked for; with a *peer.UnavailableError
// when a deployment did not give one; and with context.DeadlineExceeded when that is not known after ten
// seconds.
func (s *Granter) AcquireDelegations(ctx context.Context, caller string, rights []string) error {
	asked, err := s.checkAsked(ctx, rights)
	if err != nil || len(rights) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, acquireWait, errLate)
	defer cancel()
	if _, err := s.Pool.Exec(ctx, acquireSQL, rights, caller); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == refusedSQL {
			return fmt.Errorf("%s: %w", pg.Message, postgres.ErrTooMany)
		}
		return fmt.Errorf("ask for rights: %w", err)
	}
	err = s.await(ctx, rights, asked)
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		return fmt.Errorf("the rights were not acquired in %s: %w", acquireWait, context.DeadlineExceeded)
	}
	return err
}

var errLate = errors.New("the rights were not acquired in time")

// checkAsked reads the lines, and checks that an attached table needs them and that the caller may refer to
// their targets.
func (s *Granter) checkAsked(ctx context.Context, lines []string) (map[string]schema.FullName, error) {
	asked, targets := map[string]schema.FullName{}, make([]schema.FullName, len(lines))
	for i, line := range lines {
		needed, err := s.needs(line)
		if err != nil {
			field := fmt.Sprintf("rights[%d]", i)
			return nil, &peer.InvalidError{Resource: field, Err: violation.In(field, err)}
		}
		asked[line], targets[i] = needed.Target, needed.Target
	}
	may := peer.PersonFrom(ctx).Refer
	if may == nil {
		return asked, nil
	}
	allowed, err := may(ctx, targets)
	if err != nil {
		return nil, err
	}
	refused := &peer.RefusedError{}
	for i, ok := range allowed {
		if !ok {
			refused.Refusals = append(refused.Refusals, peer.Refusal{
				Path: peer.RightPath, Target: targets[i],
				Reason: peer.ReferDenied,
			})
		}
	}
	if len(refused.Refusals) > 0 {
		return nil, refused.Sorted()
	}
	return asked, nil
}

// await waits until the questions are answered.
func (s *Granter) await(ctx context.Context, lines []string, asked map[string]schema.FullName) error {
	rows, err := s.Pool.Query(ctx, selectAskedSQL, lines)
	if err != nil {
		return fmt.Errorf("read requests of rights: %w", err)
	}
	var targets []string
	var asks []int64
	var target string
	var number int64
	_, err = pgx.ForEachRow(rows, []any{&target, &number}, func() error {
		targets, asks = append(targets, target), append(asks, number)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read requests of rights: %w", err)
	}
	for pauses := (retry.Backoff{First: requestsIdle, Max: 10 * requestsIdle}); ; {
		answered, err := s.answered(ctx, targets, asks, asked)
		if err != nil || answered == len(asked) {
			return err
		}
		if err := pauses.Wait(ctx); err != nil {
			return err
		}
	}
}

// answered returns the number of answers, and, when all are there, the error that they say.
func (s *Granter) answered(ctx context.Context, targets []string, asks []int64,
	asked map[string]schema.FullName,
) (n int, err error) {
	rows, err := s.Pool.Query(ctx, selectAnswersSQL, targets, asks)
	if err != nil {
		return 0, fmt.Errorf("read the answers to requests of rights: %w", err)
	}
	missing := &peer.RefusedError{}
	var away *peer.UnavailableError
	var target string
	var problem *string
	var absent bool
	_, err = pgx.ForEachRow(rows, []any{&target, &problem, &absent}, func() error {
		switch n++; {
		case absent:
			missing.Refusals = append(missing.Refusals, peer.Refusal{
				Path: peer.RightPath, Target: asked[target],
				Reason: peer.TargetMissing,
			})
		case problem != nil && away == nil:
			away = &peer.UnavailableError{
				Deployments: []schema.DeploymentID{asked[target].Deployment},
				Err:         errors.New(strings.TrimSpace(*problem)),
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the answers to requests of rights: %w", err)
	case n < len(asked):
		return n, nil
	case len(missing.Refusals) > 0:
		return n, missing.Sorted()
	case away != nil:
		return n, away
	}
	return n, nil
}
