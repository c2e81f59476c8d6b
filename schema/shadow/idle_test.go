package shadow_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// resting is a database in which nothing changes. It counts the statements that it is sent, and has the times
// of the looks.
type resting struct {
	postgres.Pool // nil: its other methods are not called
	refused       error

	mu    sync.Mutex
	sent  map[string]int
	looks []time.Time
}

func (r *resting) count(sql string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.Join(strings.Fields(sql), " ")
	r.sent[text[:min(len(text), 80)]]++
}

// take returns the number of statements since the last call, by their beginning, and the times of the looks.
func (r *resting) take() (n int, sent map[string]int, looks []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent, looks = r.sent, r.looks
	r.sent, r.looks = map[string]int{}, nil
	for _, times := range sent {
		n += times
	}
	return n, sent, looks
}

func (r *resting) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	r.count(sql)
	renews := strings.Contains(sql, "renewed AS")
	if renews && r.refused != nil {
		return answer{err: r.refused}
	}
	epoch := uuid.Must(uuid.Parse("01980000-0000-7000-8000-000000000001"))
	switch {
	case strings.Contains(sql, "pg_postmaster_start_time"):
		r.mu.Lock()
		r.looks = append(r.looks, time.Now())
		r.mu.Unlock()
		values := []any{
			&epoch, "server", "server", "timeline", false, epoch, true, int64(1), int64(64), true, "",
			int64(1), "",
			[]int32{},
			false, false,
		}
		if renews {
			shards := make([]uint32, schema.RingSize)
			for i := range shards {
				shards[i] = uint32(i) //nolint:gosec // of the ring
			}
			values = append(values, true, 1, shards, false, false)
		}
		return answer{values: values}
	case strings.Contains(sql, "INSERT INTO dbcontroller.meta"):
		return answer{values: []any{"a.example.com", "us-west2"}}
	}
	return answer{}
}

func (r *resting) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	r.count(sql)
	if strings.Contains(sql, "SELECT 'deployment'") {
		return &rows{answer: answer{values: []any{"deployment", int32(1), "a.example.com", "us-west2"}}, left: 1}, nil
	}
	return &rows{}, nil
}

func (r *resting) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	r.count(sql)
	return pgconn.CommandTag{}, nil
}

// answer is a row; values that are missing are zero.
type answer struct {
	values []any
	err    error
}

func (a answer) Scan(to ...any) error {
	if len(a.values) > 0 && len(a.values) != len(to) {
		return fmt.Errorf("%d columns are read of %d", len(to), len(a.values))
	}
	for i, v := range a.values {
		reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(v))
	}
	return a.err
}

// rows are equal answers.
type rows struct {
	pgx.Rows // nil: its other methods are not called
	answer
	left int
}

func (r *rows) Next() bool                  { r.left--; return r.left >= 0 }
func (r *rows) Scan(to ...any) error        { return r.answer.Scan(to...) }
func (*rows) Err() error                    { return nil }
func (*rows) Close()                        {}
func (*rows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// joined are the leases of a process that has joined.
type joined struct{ *shadow.Leases }

func (j joined) Renew(ctx context.Context, _ uuid.UUID, lead bool) (schema.Grant, error) {
	return j.Leases.Renew(ctx, uuid.Must(uuid.Parse("01980000-0000-7000-8000-000000000002")), lead)
}

func (joined) Release(context.Context, uuid.UUID, []uint32) error { return nil }

// inRest runs all parts of a process that look at its database by themselves, but its watches, in a bubble of
// synctest.
func inRest(t *testing.T, ttl time.Duration, refused error, test func(r *resting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &resting{refused: refused, sent: map[string]int{}}
		id := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
		store, err := shadow.Open(t.Context(), shadow.Config{Pool: r, Deployment: id, Logger: zap.NewNop()})
		require.NoError(t, err)
		file, err := schema.ParseFile("services.yaml", strings.NewReader("service: a.example.com\nversion: v1\n"))
		require.NoError(t, err)
		env := &schema.Environment{
			Services:    file.Services,
			Deployments: []schema.Deployment{{DeploymentID: id, Version: "v1"}},
		}
		environments, renewed := make(chan *schema.Environment, 1), make(chan struct{}, 1)
		environments <- env
		keeps := func(context.Context) (*schema.Environment, error) { return env, nil }
		manager, err := nodemanager.New(nodemanager.Config{
			Deployment: id, Environments: environments, Logger: zap.NewNop(),
			Store: nodemanager.Store{
				Switch:    func(context.Context, *schema.Model) error { return nil },
				PointedTo: store.Attempts.ReferencedDeployments, Renewed: renewed,
			},
			Others: nodemanager.Others{
				Look: store.Attempts.Look, Superseded: store.Gate.Superseded(), Kept: keeps,
				Follows: func(*schema.Environment) {},
			},
			Sharing: nodemanager.Sharing{Leases: joined{store.Leases("one", ttl)}, TTL: ttl, Nodes: 1},
			NewNode: func(s nodemanager.Share) (nodemanager.Runner, error) { return restingNode(s), nil },
		})
		require.NoError(t, err)
		leads := func() bool { return true }
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		for _, part := range []func(context.Context) error{
			manager.Run, store.Admin.RunTidy, store.Admin.RunStatistics, store.Progress.RunProgress,
			func(ctx context.Context) error { return store.DeletedRows.RunDeletedRows(ctx, leads) },
			func(ctx context.Context) error { return store.RightRequests.RunRequests(ctx, leads) },
			func(ctx context.Context) error {
				return store.Admin.FollowEpochs(ctx, shadow.EpochConfig{
					Ask: keeps, Kept: keeps, Renewed: renewed, Latest: func() *schema.Environment {
						return &schema.Environment{}
					},
				})
			},
		} {
			parts.Go(func() { _ = part(ctx) })
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		r.take()
		test(r)
		cancel()
		parts.Wait()
		store.Close()
	})
}

type restingNode nodemanager.Share

func (n restingNode) Run(ctx context.Context) error {
	for {
		select {
		case <-n.Subscriptions:
		case <-ctx.Done():
			return nil
		}
	}
}

// The looks of renewals are those of the whole process: it sends less than two statements a second, with the
// pulse, the notifications and the positions of its watches, 30 a minute.
func TestAProcessAtRestSendsFewStatements(t *testing.T) {
	t.Parallel()
	inRest(t, 5*time.Second, nil, func(r *resting) {
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		n, sent, looks := r.take()
		require.LessOrEqual(t, n, (2*60-30)*minutes, "%v", sent)
		require.LessOrEqual(t, len(looks), 64*minutes, "%v", sent)
		require.GreaterOrEqual(t, len(looks), 60*minutes)
	})
}

// A failover is looked for every second, however the leases are renewed.
func TestALookIsNeverLate_I13(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl     time.Duration
		refused error
	}{
		"by renewals":                {ttl: 5 * time.Second},
		"between rare renewals":      {ttl: time.Minute},
		"renewals that are refused":  {ttl: 5 * time.Second, refused: &pgconn.PgError{Code: "25006"}},
		"renewals of an ended lease": {ttl: 5 * time.Second, refused: schema.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			inRest(t, c.ttl, c.refused, func(r *resting) {
				last := time.Now()
				time.Sleep(10 * time.Minute)
				_, _, looks := r.take()
				require.NotEmpty(t, looks)
				for _, at := range append(looks, time.Now()) {
					require.LessOrEqual(t, at.Sub(last), time.Second)
					last = at
				}
			})
		})
	}
}
