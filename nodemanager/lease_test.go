package nodemanager_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/nodemanager"
	"github.com/db-controller/db-controller/schema"
)

const ttl = 5 * time.Second

// table is the leases of a deployment, as its database has them.
type table struct {
	mu      sync.Mutex
	members map[uuid.UUID]time.Time // guarded by mu; until when
	shards  [schema.RingSize]uuid.UUID
}

func newTable() *table { return &table{members: map[uuid.UUID]time.Time{}} }

func (t *table) lives(member uuid.UUID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.members[member])
}

func (t *table) process() *process { return &process{table: t} }

// process is the connection of one process to the table, which a test can cut.
type process struct {
	*table
	away  bool // guarded by mu
	moved int  // guarded by mu; the number of shards that it has taken
}

var errAway = errors.New("the database is away")

func (p *process) Renew(_ context.Context, member uuid.UUID, lead bool) (g schema.Grant, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return g, errAway
	}
	if member == uuid.Nil {
		member = uuid.New()
	} else if _, ok := p.members[member]; !ok {
		return g, schema.ErrFenced
	}
	p.members[member] = time.Now().Add(ttl)
	maps.DeleteFunc(p.members, func(_ uuid.UUID, until time.Time) bool { return time.Now().After(until) })
	part := (schema.RingSize + len(p.members) - 1) / len(p.members)
	g.Member = member
	for s, holder := range p.shards {
		_, held := p.members[holder]
		takes := len(g.Shards) < part
		if s == schema.LeadShard {
			takes = lead
		}
		if !held && takes {
			p.shards[s], holder = member, member
			p.moved++
		}
		if holder == member {
			g.Shards = append(g.Shards, uint32(s))
		}
	}
	if len(g.Shards) > part {
		g.Surplus = slices.Clone(g.Shards[part:])
	}
	return g, nil
}

func (p *process) Release(ctx context.Context, member uuid.UUID, shards []uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away || ctx.Err() != nil {
		return errAway
	}
	if len(shards) == 0 {
		delete(p.members, member)
	}
	for _, s := range shards {
		p.shards[s] = uuid.Nil
	}
	return nil
}

func (p *process) cut(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// member is a process of a deployment that runs.
type member struct {
	*process
	manager *nodemanager.Manager
	leads   []bool      // guarded by mu of the table
	cutOff  atomic.Bool // from the registry: it could not be registered if it led
	cancel  context.CancelFunc
	done    chan error
}

func (w *world) begin(t *testing.T) *member {
	t.Helper()
	return w.beginAs(t, w.leases.process())
}

func (w *world) beginAs(t *testing.T, p *process) *member {
	t.Helper()
	envs := make(chan *schema.Environment, 1)
	m := &member{process: p, done: make(chan error, 1)}
	manager, err := nodemanager.New(nodemanager.Config{
		Deployment: self, Environments: envs, Store: idleStore, Logger: zap.NewNop(),
		Sharing: nodemanager.Sharing{Nodes: 2, Leases: m.process, TTL: ttl, Leads: m.lead, CanLead: func() bool {
			return !m.cutOff.Load()
		}},
		NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return node{w, share}, nil },
	})
	require.NoError(t, err)
	m.manager = manager
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(t.Context())
	go func() { m.done <- manager.Run(ctx) }()
	envs <- environment(t, "b.example.com/us-west2@v1")
	return m
}

func (m *member) lead(leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads = append(m.leads, leads)
}

// led is whether the process leads its deployment, each time that it changed.
func (m *member) led() []bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.leads)
}

// worked is the number of shards that have a node; no shard has two.
func (w *world) worked(t *testing.T) (n int) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.log)
	for _, nodes := range w.shards {
		n += nodes
	}
	return n
}

func inTable(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &world{
			shards: map[uint32]int{}, workers: map[uint32][]uuid.UUID{}, subs: map[string][]string{},
			leases: newTable(),
		})
	})
}

func (m *member) end(t *testing.T) {
	t.Helper()
	m.cancel()
	require.NoError(t, <-m.done)
}

// A process that has not joined yet does not know whether it leads the deployment: it is not ready.
func TestAProcessThatHasNotJoinedIsNotReady(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		p := w.leases.process()
		p.cut(true)
		m := w.beginAs(t, p)
		synctest.Wait()
		require.ErrorContains(t, m.manager.Ready(), "joining")
		p.cut(false)
		time.Sleep(ttl)
		require.NoError(t, m.manager.Ready())
		require.Equal(t, []bool{true}, m.led())
		m.end(t)
	})
}

// Processes that join and leave share the ring within seconds, and no shard has two nodes at any time.
func TestProcessesShareTheRing_I18(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		first := w.begin(t)
		require.Equal(t, schema.RingSize, w.worked(t))
		second, third := w.begin(t), w.begin(t)
		time.Sleep(2 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		held := func(m *member) (n int) {
			w.leases.mu.Lock()
			defer w.leases.mu.Unlock()
			return m.moved
		}
		require.Equal(t, 64, held(first), "it took no shard a second time")
		require.LessOrEqual(t, held(second)+held(third), 44, "no more have moved than they were short of")
		require.GreaterOrEqual(t, held(second), 20)
		require.GreaterOrEqual(t, held(third), 20)
		require.Equal(t, []bool{true}, first.led())
		first.end(t)
		time.Sleep(4 * time.Second)
		require.Equal(t, schema.RingSize, w.worked(t), "what it left is taken at once")
		require.Equal(t, []bool{true, false}, first.led())
		require.Len(t, append(second.led(), third.led()...), 1, "another one speaks for the deployment")
		second.end(t)
		third.end(t)
		require.Zero(t, w.worked(t))
	})
}

// A process that cannot renew its lease ends its nodes when the lease expires, and others take its shards;
// then it joins again.
func TestAProcessThatCannotRenewIsReplaced_I18(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		first := w.begin(t)
		require.Equal(t, schema.RingSize, w.worked(t))
		second := w.begin(t)
		time.Sleep(2 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		first.cut(true)
		time.Sleep(ttl / 2)
		require.Equal(t, schema.RingSize, w.worked(t), "a moment's fault costs nothing")
		require.Equal(t, []bool{true}, first.led())
		time.Sleep(2 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t), "the other one has it all")
		require.False(t, first.led()[len(first.led())-1])
		require.True(t, second.led()[len(second.led())-1])
		first.cut(false)
		time.Sleep(3 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		w.leases.mu.Lock()
		require.Len(t, w.leases.members, 2)
		w.leases.mu.Unlock()
		first.end(t)
		second.end(t)
	})
}

// Nodes that start anew, because the process joins again or loses a part of its shards, get their
// subscriptions without a new environment.
func TestNodesThatStartAnewAreToldWhatToFollow_I13(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		followed := []string{self.String() + "@v1"}
		first := w.begin(t)
		synctest.Wait()
		require.Equal(t, followed, w.subscriptions())
		first.cut(true)
		time.Sleep(3 * ttl)
		require.Zero(t, w.worked(t))
		require.Empty(t, w.subscriptions())
		first.cut(false)
		time.Sleep(2 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		require.Equal(t, followed, w.subscriptions(), "it has joined again")
		second := w.begin(t)
		time.Sleep(2 * ttl)
		require.Equal(t, schema.RingSize, w.worked(t))
		require.Equal(t, followed, w.subscriptions(), "by one of both processes")
		first.end(t)
		time.Sleep(2 * ttl)
		require.Equal(t, followed, w.subscriptions(), "by the one that is left")
		second.end(t)
		require.Empty(t, w.subscriptions())
	})
}

// leading is a process that has to release the shard that leads at its second renewal.
type leading struct {
	*process
	w        *world
	renewals int
	released [][]uint32
	worked   []int  // the number of nodes on the released shards, at each release
	leads    []bool // whether it led at each release
	led      bool
}

func (l *leading) Renew(ctx context.Context, member uuid.UUID, lead bool) (schema.Grant, error) {
	g, err := l.process.Renew(ctx, member, lead)
	if l.renewals++; l.renewals == 2 {
		g.Surplus = []uint32{0}
	}
	return g, err
}

func (l *leading) Release(ctx context.Context, member uuid.UUID, shards []uint32) error {
	l.w.mu.Lock()
	worked := 0
	for s, nodes := range l.w.shards {
		if len(shards) == 0 || slices.Contains(shards, s) {
			worked += nodes
		}
	}
	l.w.mu.Unlock()
	l.released, l.worked, l.leads = append(l.released, shards), append(l.worked, worked), append(l.leads, l.led)
	return l.process.Release(ctx, member, shards)
}

// Before a process releases shards to others, their nodes have ended, and it does not speak for the
// deployment any more.
func TestShardsAreReleasedAfterTheirNodesHaveEnded_I18(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		l := &leading{process: w.leases.process(), w: w}
		envs := make(chan *schema.Environment, 1)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: idleStore, Logger: zap.NewNop(),
			Sharing: nodemanager.Sharing{Leases: l, TTL: ttl, Nodes: 2, Leads: func(leads bool) { l.led = leads }},
			NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return node{w, share}, nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		envs <- environment(t, "b.example.com/us-west2@v1")
		require.Equal(t, schema.RingSize, w.worked(t))
		time.Sleep(ttl/5 + 1500*time.Millisecond) // the node of shard 0 takes a second to end
		synctest.Wait()
		require.Equal(t, [][]uint32{{0}}, l.released)
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, [][]uint32{{0}, nil}, l.released)
		require.Equal(t, []int{0, 0}, l.worked)
		require.Equal(t, []bool{false, false}, l.leads)
	})
}

// delayed is a process whose renewals are answered late.
type delayed struct {
	*process
	by time.Duration // guarded by mu
}

func (d *delayed) delay(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by = by
}

func (d *delayed) Renew(ctx context.Context, member uuid.UUID, lead bool) (schema.Grant, error) {
	g, err := d.process.Renew(ctx, member, lead)
	d.mu.Lock()
	by := d.by
	d.mu.Unlock()
	time.Sleep(by)
	return g, err
}

// The lease of a process counts from before the renewal that was answered last: its nodes end when other
// processes may take its shards, also when that answer came late.
func TestALeaseCountsFromBeforeItsRenewal_I18(t *testing.T) {
	inTable(t, func(t *testing.T, w *world) {
		d := &delayed{process: w.leases.process()}
		envs := make(chan *schema.Environment, 1)
		m, err := nodemanager.New(nodemanager.Config{
			Deployment: self, Environments: envs, Store: idleStore, Logger: zap.NewNop(),
			Sharing: nodemanager.Sharing{Leases: d, TTL: ttl},
			NewNode: func(share nodemanager.Share) (nodemanager.Runner, error) { return node{w, share}, nil },
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		envs <- environment(t, "b.example.com/us-west2@v1")
		require.Equal(t, schema.RingSize, w.worked(t))
		d.delay(4 * time.Second) // of the renewal that comes after a second
		time.Sleep(4500 * time.Millisecond)
		d.delay(0)
		d.cut(true)
		time.Sleep(4 * time.Second) // it expired after 6 s, and the nodes take a second to end
		require.Zero(t, w.worked(t))
		cancel()
		require.NoError(t, <-done)
	})
}
