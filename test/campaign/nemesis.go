package campaign

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// fault causes a failure at a deployment or between two. It returns the repair, or nil when it cannot strike
// now.
type fault struct {
	name   string
	cheap  bool // so that it can strike often
	strike func(n *Nemesis, s *site) (mend func())
}

var faults = []fault{
	{"process killed", false, (*Nemesis).kill},
	{"process killed between two steps", false, (*Nemesis).crashBetween},
	{"process paused for longer than its lease", false, (*Nemesis).pause},
	{"second process joins and dies", false, (*Nemesis).second},
	{"answers lost after they took effect", true, (*Nemesis).lose},
	{"calls repeated", true, (*Nemesis).repeat},
	{"calls delayed and swapped", true, (*Nemesis).delay},
	{"calls replayed late", true, (*Nemesis).replay},
	{"pair of deployments cut off", true, (*Nemesis).partition},
	{"deployment cut off from all others", true, (*Nemesis).isolate},
	{"connections cut", true, (*Nemesis).cut},
	{"line dead", true, func(n *Nemesis, s *site) func() { return n.lineAt(s.line, harness.Dead) }},
	{"line one-way", true, func(n *Nemesis, s *site) func() { return n.lineAt(s.line, harness.OneWay) }},
	{"line trickling", true, func(n *Nemesis, s *site) func() { return n.lineAt(s.line, harness.Trickling) }},
	{"database line dead", true, func(n *Nemesis, s *site) func() { return n.lineAt(s.db, harness.Dead) }},
	{"answers of commits lost", true, func(n *Nemesis, s *site) func() {
		return n.lineAt(s.db, harness.CommitsUnanswered)
	}},
	{"database connections cut", true, (*Nemesis).cutDatabase},
	{"database sessions ended", true, (*Nemesis).endSessions},
	{"database read-only", true, (*Nemesis).readOnly},
	{"database out of connections", true, (*Nemesis).noConnections},
	{"rows locked by somebody else", true, (*Nemesis).lockRows},
	{"something between two statements", true, (*Nemesis).between},
	{"database server crashed", false, (*Nemesis).crash},
	{"registry unreachable", true, (*Nemesis).noRegistry},
	{"version switched", true, (*Nemesis).switchVersion},
}

// delays affect single steps of the protocol: they last longer, strike beside other faults, and users hardly
// notice them.
var delays = []struct {
	name    string
	methods []string
	mishap  harness.Mishap
}{
	{
		"establishes answered after they have expired",
		[]string{"EstablishReferences"},
		harness.Mishap{After: 3 * tentativeTTL},
	},
	{"confirms held back", []string{"ConfirmBlockades"}, harness.Mishap{Cut: true}},
	{"releases held back", []string{"ReleaseBlockades"}, harness.Mishap{Cut: true}},
	{"confirms and questions held back", []string{"ConfirmBlockades", "ResolveBlockades"}, harness.Mishap{Cut: true}},
	{"deletions not told", []string{"WatchImportedServiceDeletions"}, harness.Mishap{Cut: true}},
	{"acknowledgements late", []string{"AcknowledgeDeletions"}, harness.Mishap{Before: time.Second}},
	{"owners not asked for, nor told", []string{"CheckOwners", "DropOwners"}, harness.Mishap{Cut: true}},
	{"messages of the past", []string{
		"EstablishReferences", "ConfirmBlockades", "ReleaseBlockades",
		"AcknowledgeDeletions", "DropOwners",
	}, harness.Mishap{Replay: 2 * tentativeTTL}},
}

// Nemesis causes faults and repairs them.
type Nemesis struct {
	t testing.TB
	w *World
	c *Coverage
	r *rand.Rand // guarded by mu
	// note writes to the player's journal.
	note   func(format string, args ...any)
	mu     sync.Mutex
	places map[string]bool // guarded by mu; the present faults, with their places
	next   int             // guarded by mu
}

// NewNemesis causes faults in a random order of its own.
func NewNemesis(t testing.TB, w *World, c *Coverage, r *rand.Rand, note func(string, ...any)) *Nemesis {
	return &Nemesis{t: t, w: w, c: c, r: r, note: note, places: map[string]bool{}}
}

// Run causes faults, several at a time, until ctx ends; then all are repaired.
func (n *Nemesis) Run(ctx context.Context) {
	order := n.random().Perm(len(faults))
	var hands sync.WaitGroup
	defer hands.Wait()
	late := n.random()
	hands.Go(func() {
		for ctx.Err() == nil {
			n.delaySteps(ctx, late)
		}
	})
	for range 2 {
		r := n.random()
		hands.Go(func() {
			for ctx.Err() == nil {
				n.mu.Lock()
				f := faults[order[n.next%len(order)]]
				n.next++
				n.mu.Unlock()
				n.strike(ctx, r, f)
			}
		})
	}
}

// strike causes one fault for a while, and repairs it.
func (n *Nemesis) strike(ctx context.Context, r *rand.Rand, f fault) {
	n.w.truce.RLock()
	defer n.w.truce.RUnlock()
	s := n.w.sites[deployments[r.IntN(len(deployments))]]
	if n.w.cluster != nil && f.name == "database server crashed" {
		s = n.w.sites[deployments[0]]
	}
	lasts := 100*time.Millisecond + harness.Some(r, 800*time.Millisecond)
	if !f.cheap {
		lasts = 500*time.Millisecond + harness.Some(r, time.Second)
	}
	defer func() {
		select {
		case <-ctx.Done():
		case <-time.After(harness.Some(r, 500*time.Millisecond)):
		}
	}()
	if !n.take(s.id.String()) {
		return // another fault is there
	}
	defer n.give(s.id.String())
	mend := f.strike(n, s)
	if mend == nil {
		return
	}
	n.c.add("fault: "+f.name, 1)
	n.note("  BROKEN at %s for %s: %s", s.id, lasts.Round(time.Millisecond), f.name)
	select {
	case <-ctx.Done():
	case <-time.After(lasts):
	}
	mend()
	n.note("  mended at %s: %s", s.id, f.name)
}

// delaySteps delays one step of the protocol for a while, at one deployment or at all.
func (n *Nemesis) delaySteps(ctx context.Context, r *rand.Rand) {
	n.w.truce.RLock()
	defer n.w.truce.RUnlock()
	d := delays[r.IntN(len(delays))]
	var mend []func()
	for _, id := range deployments {
		if r.IntN(2) == 0 {
			mend = append(mend, n.w.sites[id].calls.Suffer(func(from identity.Identity, method string) harness.Mishap {
				if fromPeer(from) && slices.Contains(d.methods, method[strings.LastIndex(method, "/")+1:]) {
					return d.mishap
				}
				return harness.Mishap{}
			}))
		}
	}
	if len(mend) == 0 {
		return
	}
	n.c.add("delay: "+d.name, 1)
	select {
	case <-ctx.Done():
	case <-time.After(500*time.Millisecond + harness.Some(r, 2*time.Second)):
	}
	for _, m := range mend {
		m()
	}
}

// take reserves a place for a fault; it returns false when another fault is there.
func (n *Nemesis) take(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.places[what]
	n.places[what] = true
	return !taken
}

func (n *Nemesis) give(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.places, what)
}

// random returns a source of randomness for one fault.
func (n *Nemesis) random() *rand.Rand {
	n.mu.Lock()
	defer n.mu.Unlock()
	return rand.New(rand.NewPCG(n.r.Uint64(), n.r.Uint64()))
}

func (n *Nemesis) kill(s *site) func() {
	require.NoError(n.t, s.Kill())
	return func() { n.start(s) }
}

// crashPoints are the points of package crash.
var crashPoints = []string{
	"crash-save-established", "crash-save-committed", "crash-establish-committed", "crash-delete-committed",
	"crash-finalise-committed",
	"crash-confirm-told", "crash-release-told", "crash-owners-answered", "crash-disown-told", "crash-act-committed",
	"crash-act-acknowledged",
}

// crashBetween starts a process that is killed when it reaches a point, if it does.
func (n *Nemesis) crashBetween(s *site) func() {
	point := crashPoints[n.random().IntN(len(crashPoints))]
	require.NoError(n.t, s.Kill())
	s.Environment(s.clock, "DBCONTROLLER_CRASH="+point)
	require.NoError(n.t, s.Start())
	return func() {
		if s.Ended() {
			n.c.add("killed between two steps", 1)
			n.c.add("killed at "+point, 1)
		}
		require.NoError(n.t, s.Kill())
		s.Environment(s.clock)
		n.start(s)
	}
}

func (n *Nemesis) start(s *site) {
	require.NoError(n.t, s.Start())
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	require.NoError(n.t, s.WaitReady(ctx))
}

func (n *Nemesis) pause(s *site) func() {
	require.NoError(n.t, s.Signal(syscall.SIGSTOP))
	return func() {
		<-time.After(leaseTTL)
		require.NoError(n.t, s.Signal(syscall.SIGCONT))
	}
}

func (n *Nemesis) second(s *site) func() {
	addresses, err := playground.FreeAddresses(2)
	require.NoError(n.t, err)
	p := playground.NewProcess("second", n.w.binary, append([]string{
		"serve", "--deployment", s.id.String(), "--postgres", s.DSN, "--registry", n.w.RegistryAddress,
		"--certs", s.Certs,
		"--listen", addresses[0], "--http", addresses[1], "--name", "second", "--lease", leaseTTL.String(),
		"--tentative-ttl", tentativeTTL.String(),
		"--advertise", s.line.Address(), "--owner-grace", "1s",
	}, harness.DatabaseArgs(n.t)...), filepath.Join(n.t.TempDir(), "second.log"), "http://"+addresses[1]+"/readyz")
	require.NoError(n.t, p.Start())
	return func() { require.NoError(n.t, p.Kill()) }
}

// calls applies mishaps to calls that arrive at a deployment.
func (n *Nemesis) calls(s *site, mishap func(r *rand.Rand, from identity.Identity,
	method string) harness.Mishap,
) func() {
	var mu sync.Mutex
	r := n.random()
	return s.calls.Suffer(func(from identity.Identity, method string) harness.Mishap {
		mu.Lock()
		defer mu.Unlock()
		return mishap(r, from, method)
	})
}

func (n *Nemesis) lose(s *site) func() {
	return n.calls(s, func(r *rand.Rand, _ identity.Identity, _ string) harness.Mishap {
		return harness.Mishap{Lose: r.IntN(2) == 0}
	})
}

func (n *Nemesis) repeat(s *site) func() {
	return n.calls(s, func(r *rand.Rand, from identity.Identity, method string) harness.Mishap {
		return harness.Mishap{Repeat: protocol(from, method) && r.IntN(2) == 0}
	})
}

// delay delays requests and answers, up to beyond the expiry of the blockades that they establish.
func (n *Nemesis) delay(s *site) func() {
	return n.calls(s, func(r *rand.Rand, _ identity.Identity, _ string) harness.Mishap {
		m := harness.Mishap{}
		if r.IntN(2) == 0 {
			m.Before = harness.Some(r, 400*time.Millisecond)
		}
		if r.IntN(3) == 0 {
			m.After = harness.Some(r, 2*tentativeTTL)
		}
		return m
	})
}

func (n *Nemesis) replay(s *site) func() {
	return n.calls(s, func(r *rand.Rand, from identity.Identity, method string) harness.Mishap {
		if !protocol(from, method) || r.IntN(2) > 0 {
			return harness.Mishap{}
		}
		return harness.Mishap{Replay: harness.Some(r, 3*time.Second)}
	})
}

func fromPeer(from identity.Identity) bool { return from.Role == identity.RoleDeployment }

// protocol reports whether a call belongs to the protocol between deployments. The call of a user, forwarded
// or not, is a new call when it is repeated.
func protocol(from identity.Identity, method string) bool {
	return fromPeer(from) && !strings.HasPrefix(method, "/dbcontroller.resource.")
}

// partition cuts a deployment off from one other, in one direction or both.
func (n *Nemesis) partition(s *site) func() {
	r := n.random()
	other := n.w.sites[deployments[r.IntN(len(deployments))]]
	if other == s {
		return nil
	}
	mend := []func(){n.cutFrom(s, other.id)}
	if key := other.id.String(); r.IntN(2) == 0 && n.take(key) {
		mend = append(mend, n.cutFrom(other, s.id), func() { n.give(key) })
	}
	return func() {
		for _, m := range mend {
			m()
		}
	}
}

func (n *Nemesis) cutFrom(s *site, other schema.DeploymentID) func() {
	return n.calls(s, func(_ *rand.Rand, from identity.Identity, _ string) harness.Mishap {
		return harness.Mishap{Cut: from == identity.Deployment(other)}
	})
}

func (n *Nemesis) isolate(s *site) func() {
	return n.calls(s, func(_ *rand.Rand, from identity.Identity, _ string) harness.Mishap {
		return harness.Mishap{Cut: fromPeer(from) && from != identity.Deployment(s.id)}
	})
}

func (n *Nemesis) cut(s *site) func() {
	s.line.Cut()
	return func() { s.line.Cut() }
}

func (n *Nemesis) lineAt(p *harness.Proxy, l harness.Line) func() {
	p.SetLine(l)
	return func() { p.SetLine(harness.Clear) }
}

func (n *Nemesis) cutDatabase(s *site) func() {
	s.db.Cut()
	return func() { s.db.Cut() }
}

func (n *Nemesis) sql(s *site, sql string) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	_, err := s.admin.Exec(ctx, sql)
	require.NoError(n.t, err)
}

const endSessionsSQL = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> ''`

func (n *Nemesis) endSessions(s *site) func() {
	n.sql(s, endSessionsSQL)
	return func() {}
}

func (n *Nemesis) alter(s *site, setting string) {
	n.sql(s, "ALTER DATABASE "+pgx.Identifier{s.database}.Sanitize()+" "+setting)
	n.sql(s, endSessionsSQL)
}

func (n *Nemesis) readOnly(s *site) func() {
	n.alter(s, "SET default_transaction_read_only = on")
	return func() { n.alter(s, "RESET default_transaction_read_only") }
}

func (n *Nemesis) noConnections(s *site) func() {
	n.alter(s, "CONNECTION LIMIT 2")
	return func() { n.alter(s, "CONNECTION LIMIT -1") }
}

// lockRows opens a transaction that locks some of the resources, and hangs.
func (n *Nemesis) lockRows(s *site) func() {
	ctx := context.Background()
	tx, err := s.admin.Begin(ctx)
	require.NoError(n.t, err)
	_, err = tx.Exec(ctx, `SELECT id FROM dbcontroller.shadow WHERE id % 2 = 0 ORDER BY id FOR UPDATE`)
	if err != nil {
		_ = tx.Rollback(ctx)
		return nil
	}
	return func() { _ = tx.Rollback(ctx) }
}

// rarely is the number of statements of which one has a fault before it.
const rarely = 40

// between causes a fault just before a statement, in any transaction or between two: the session ends, the
// process stands still, rows are locked for a while or have a new version. So the state that a statement has
// seen may have changed when the next one runs.
func (n *Nemesis) between(s *site) func() {
	var mu sync.Mutex
	r := n.random() // guarded by mu
	s.db.SetBetween(func() (end bool) {
		mu.Lock()
		what, part, lasts := r.IntN(4*rarely), r.IntN(4), harness.Some(r, 300*time.Millisecond)
		mu.Unlock()
		if what > 3 {
			return false
		}
		<-time.After(5 * time.Millisecond) // the statements before have run
		switch what {
		case 0:
			n.c.add("between two statements: the session ended", 1)
			return true
		case 1:
			n.c.add("between two statements: the process stood still", 1)
			<-time.After(lasts)
		case 2:
			n.c.add("between two statements: rows were locked", 1)
			go n.lockFor(s, part, lasts)
			<-time.After(5 * time.Millisecond)
		case 3:
			n.c.add("between two statements: rows got new versions", 1)
			_, _ = s.admin.Exec(context.Background(), `
BEGIN; SET LOCAL lock_timeout = '100ms'; UPDATE dbcontroller.shadow SET updated_at = updated_at WHERE id % 4 = `+strconv.Itoa(part)+`;
UPDATE dbcontroller.foreign_target SET name = name WHERE id % 4 = `+strconv.Itoa(part)+`; COMMIT`) // some are locked
		}
		return false
	})
	return func() { s.db.SetBetween(nil) }
}

// lockFor locks some resources and rights for a while.
func (n *Nemesis) lockFor(s *site, part int, lasts time.Duration) {
	tx, err := s.admin.Begin(context.Background())
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, _ = tx.Exec(context.Background(), `
SET LOCAL lock_timeout = '100ms'; SELECT FROM dbcontroller.shadow WHERE id % 4 = `+strconv.Itoa(part)+` ORDER BY id FOR UPDATE`)
	<-time.After(lasts)
}

func (n *Nemesis) crash(s *site) func() {
	if n.w.cluster == nil || s.id != deployments[0] {
		return nil
	}
	n.w.cluster.Crash()
	return func() {
		n.w.cluster.Start()
		s.db.Move(n.w.cluster.Address())
		s.side.Move(n.w.cluster.Address())
		s.admin.Reset()
	}
}

func (n *Nemesis) noRegistry(*site) func() {
	if !n.take("registry") {
		return nil
	}
	require.NoError(n.t, n.w.Registry.Stop())
	return func() {
		require.NoError(n.t, n.w.Registry.Start())
		n.give("registry")
	}
}

// switchVersion switches a deployment of b, which no service imports, to the other version or back.
func (n *Nemesis) switchVersion(s *site) func() {
	if s.id.Service != "b.example.com" || !n.take("registry") {
		return nil
	}
	defer n.give("registry")
	version := map[string]string{"": "v2", "v1": "v2", "v2": "v1"}[n.w.wants(s.id)]
	if err := n.w.switchVersion(context.Background(), s.id, version); err != nil {
		return nil
	}
	return func() {}
}
