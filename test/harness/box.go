package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// Box runs several deployments in one process: the real stores and handlers, each over a database of its own,
// joined by function calls instead of connections. Nothing happens by itself: a test decides when messages
// are delivered, deletions are acted upon and work is done, and can stop anywhere in between. Settle does
// everything until nothing is left.
type Box struct {
	t      testing.TB
	Stores map[schema.DeploymentID]*shadow.Store
	Pools  map[schema.DeploymentID]*pgxpool.Pool

	mu   sync.Mutex
	down map[schema.DeploymentID]bool // guarded by mu
	// OnEstablish and OnResolve, when set, run before the call to the other deployment; an error is returned
	// in its place.
	OnEstablish func(to schema.DeploymentID, attempt peer.AttemptID, refs []peer.EstablishReference) error
	OnResolve   func(to schema.DeploymentID) error
	// OnPlan and OnResolveIn, when set, run before the call to the other deployment, with the call's
	// deadline.
	OnPlan, OnResolveIn func(ctx context.Context, to schema.DeploymentID) error
	// AfterEstablish, when set, runs between a successful answer and the holder's commit.
	AfterEstablish func()
	// AfterPlan, when set, runs after another deployment's plan and before the delete uses it.
	AfterPlan func()
	// AfterCheckReferences, when set, runs after a targets' deployment's answer about references and before
	// it is used.
	AfterCheckReferences func(known []peer.Known)
	// AfterCheckOwners, when set, runs after an owners' deployment's answer and before it is applied.
	AfterCheckOwners func()

	seats    map[schema.DeploymentID]*seat // of the databases that the deployments began with
	services []*schema.Descriptor
	configs  map[schema.DeploymentID]shadow.Config
	// databases are the identities of the first databases, as the registry keeps them.
	databases map[schema.DeploymentID]uuid.UUID
}

// BoxConfig changes the configuration of a box's stores.
type BoxConfig func(*shadow.Config)

// NewBox creates deployments of services that are given in YAML.
func NewBox(t testing.TB, services string, configure BoxConfig, deployments ...string) *Box {
	t.Helper()
	file, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)
	server := Postgres(t)
	b := &Box{t: t, seats: map[schema.DeploymentID]*seat{}, Stores: map[schema.DeploymentID]*shadow.Store{}, Pools: map[schema.DeploymentID]*pgxpool.Pool{}, down: map[schema.DeploymentID]bool{}, services: file.Services, configs: map[schema.DeploymentID]shadow.Config{}, databases: map[schema.DeploymentID]uuid.UUID{}}
	for _, name := range deployments {
		id, err := schema.ParseDeploymentID(name)
		require.NoError(t, err)
		seat := server.takeSeat(t)
		b.seats[id], b.Pools[id] = seat, seat.test
		cfg := shadow.Config{Pool: postgres.NewLanes(seat.serving), Deployment: id, Peers: peer.PeersOf(&boxPeers{box: b, self: id}), Times: shadow.Times{DeleteTimeout: 15 * time.Second, MissingGrace: time.Microsecond}}
		own := cfg.Pool
		if configure != nil {
			configure(&cfg)
		}
		if cfg.Pool != own {
			t.Cleanup(cfg.Pool.Close)
		}
		b.configs[id] = cfg
		b.Stores[id] = b.open(cfg, file.Services)
		b.databases[id] = b.Stores[id].Gate.Database()
	}
	return b
}

// deploymentTemplate is a migrated database of a deployment, with roles.
func deploymentTemplate(t testing.TB, server *Server) string {
	t.Helper()
	return server.Template(t, "deployment", func(ctx context.Context, dsn string) error {
		if _, err := migrations.Up(ctx, dsn, migrations.Deployment); err != nil {
			return err
		}
		return leastPrivileges(ctx, dsn)
	})
}

// connect opens a database for a test and for a store.
func (b *Box) connect(dsn string) (test *pgxpool.Pool, serving postgres.Pool) {
	b.t.Helper()
	test, pool, err := openPools(dsn)
	require.NoError(b.t, err)
	b.t.Cleanup(test.Close)
	b.t.Cleanup(pool.Close)
	return test, postgres.NewLanes(pool)
}

// Peers returns the calls of a deployment's store to the others.
func (b *Box) Peers(deployment string) peer.Peers {
	return peer.PeersOf(&boxPeers{box: b, self: b.ID(deployment)})
}

// SecondProcess opens a deployment's database once more, as another process of the deployment would.
func (b *Box) SecondProcess(deployment string, cfg shadow.Config) *shadow.Store {
	b.t.Helper()
	id := b.ID(deployment)
	cfg.Times.MissingGrace = b.configs[id].Times.MissingGrace
	cfg.Pool, cfg.Deployment, cfg.Peers = b.configs[id].Pool, id, peer.PeersOf(&boxPeers{box: b, self: id})
	store, err := shadow.Open(context.Background(), cfg)
	require.NoError(b.t, err)
	require.NoError(b.t, store.Admin.Switch(context.Background(), b.Stores[id].Model()))
	return store
}

func (b *Box) open(cfg shadow.Config, services []*schema.Descriptor) *shadow.Store {
	b.t.Helper()
	store, err := shadow.Open(context.Background(), cfg)
	require.NoError(b.t, err)
	for _, d := range services { // the first version of several
		if d.Service == cfg.Deployment.Service {
			model, err := schema.NewModel(d.ServiceVersion, services)
			require.NoError(b.t, err)
			require.NoError(b.t, store.Admin.Switch(context.Background(), model))
			break
		}
	}
	return store
}

// Switch makes a deployment run another version of its service. Derivations are left as work.
func (b *Box) Switch(deployment, version string) {
	b.t.Helper()
	id := b.ID(deployment)
	model, err := schema.NewModel(schema.ServiceVersion{Service: id.Service, Version: version}, b.services)
	require.NoError(b.t, err)
	require.NoError(b.t, b.Stores[id].Admin.Switch(context.Background(), model))
}

// ID parses service/region.
func (b *Box) ID(deployment string) schema.DeploymentID {
	b.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(b.t, err)
	return id
}

func (b *Box) full(name string) (schema.FullName, *shadow.Store) {
	b.t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(b.t, err)
	require.Contains(b.t, b.Stores, full.Deployment)
	return full, b.Stores[full.Deployment]
}

// Body is a resource's body.
type Body = map[string]any

// Put writes a resource by its full name.
func (b *Box) Put(name string, body Body) (peer.Resource, error) {
	b.t.Helper()
	full, store := b.full(name)
	saved, err := store.Write.Save(context.Background(), []peer.Write{{Name: full.Name, Body: body}})
	if err != nil {
		return peer.Resource{}, err
	}
	return saved[0], nil
}

// PutOwned writes a resource with owners.
func (b *Box) PutOwned(name string, body Body, owners ...peer.OwnerReference) (peer.Resource, error) {
	b.t.Helper()
	full, store := b.full(name)
	saved, err := store.Write.Save(context.Background(), []peer.Write{{Name: full.Name, Body: body, Owners: owners}})
	if err != nil {
		return peer.Resource{}, err
	}
	return saved[0], nil
}

// MustPut is Put that fails the test on an error; its deadline suits a busy machine.
func (b *Box) MustPut(name string, body Body) peer.Resource {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	full, store := b.full(name)
	saved, err := store.Write.Save(ctx, []peer.Write{{Name: full.Name, Body: body}})
	require.NoError(b.t, err)
	return saved[0]
}

// Delete deletes a resource by its full name.
func (b *Box) Delete(name string) (peer.DeleteResult, error) {
	b.t.Helper()
	full, store := b.full(name)
	return store.Deletions.Delete(context.Background(), shadow.DeleteRequest{Name: full.Name})
}

// MustDelete is Delete that fails the test on an error; its deadline suits a busy machine.
func (b *Box) MustDelete(name string) peer.DeleteResult {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	full, store := b.full(name)
	r, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: full.Name})
	require.NoError(b.t, err)
	return r
}

// Get reads a resource by its full name; nil when it does not exist.
func (b *Box) Get(name string) *peer.Resource {
	b.t.Helper()
	full, store := b.full(name)
	r, err := store.Read.Get(context.Background(), full.Name)
	if errors.Is(err, peer.ErrNotFound) {
		return nil
	}
	require.NoError(b.t, err)
	return r
}

// Gone fails the test if one of the resources exists.
func (b *Box) Gone(names ...string) {
	b.t.Helper()
	for _, name := range names {
		require.Nil(b.t, b.Get(name), "%s is still there", name)
	}
}

// SetDown makes a deployment unreachable (calls to it fail), or reachable again.
func (b *Box) SetDown(deployment string, down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down[b.ID(deployment)] = down
}

func (b *Box) reach(to schema.DeploymentID) (*shadow.Store, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down[to] || b.Stores[to] == nil {
		return nil, fmt.Errorf("%s is cut off", to)
	}
	return b.Stores[to], nil
}

var errEnd = errors.New("end of snapshot")

// Work reads the outstanding work of a deployment.
func (b *Box) Work(deployment schema.DeploymentID) []schema.Work {
	b.t.Helper()
	var all []schema.Work
	shards := make([]int16, schema.RingSize)
	for i := range shards {
		shards[i] = int16(i)
	}
	err := b.Stores[deployment].Read.WatchWork(context.Background(), shards, "", func(e schema.Event[schema.Work]) error {
		all = append(all, e.Items...)
		if e.EndOfSnapshot {
			return errEnd
		}
		return nil
	})
	require.ErrorIs(b.t, err, errEnd)
	return all
}

// Handlers returns the handlers of a process of a deployment.
func (b *Box) Handlers(deployment schema.DeploymentID, store *shadow.Store) handlers.PausableTable {
	b.t.Helper()
	peers := &boxPeers{box: b, self: deployment}
	table, err := handlers.NewTable(handlers.Actions{
		Confirm: &handlers.Confirm{Store: store.Targets, Repair: store.Verify, Peers: peers, Rights: store.Rights, Scheduled: store.Deletions}, Release: &handlers.Release{Store: store.Targets, Peers: peers}, ReleaseOwner: &handlers.ReleaseOwner{Store: store.Targets, Peers: peers},
		CheckOwners: &handlers.CheckOwners{Store: store.Owners, Peers: peers}, UpgradeOwners: &handlers.UpgradeOwners{Store: store.Owners, Peers: peers},
		Derive: &handlers.Derive{Store: store.Admin}, CleanUpDecommissioned: &handlers.CleanUpDecommissioned{Store: store.Admin},
		AnnounceEpoch: &handlers.AnnounceEpoch{Store: store.Gate, Peers: peers}, ConfirmAgain: &handlers.ConfirmAgain{Store: store.Verify, Peers: peers},
		VerifyBlockades: &handlers.VerifyBlockades{Store: store.Verify}, LookAtRight: &handlers.LookAtRight{Store: store.Rights}, EndRights: &handlers.EndRights{Store: store.Operate, Peers: peers},
		LookAtEntry: &handlers.LookAtEntry{Store: store.Targets, Peers: peers},
		Finalise:    &handlers.Finalise{Store: store.Cascade}, DropOwners: &handlers.DropOwners{Store: store.Owners, Peers: peers},
	})
	require.NoError(b.t, err)
	return handlers.PausableTable{Table: table, Pauses: store.Operate}
}

// Do handles a deployment's outstanding work of an action once, and returns how many pieces were done.
func (b *Box) Do(deployment schema.DeploymentID, action schema.Action) (int, error) {
	b.t.Helper()
	return b.do(deployment, action, b.Work(deployment))
}

func (b *Box) do(deployment schema.DeploymentID, action schema.Action, work []schema.Work) (int, error) {
	table := b.Handlers(deployment, b.Stores[deployment])
	by := map[schema.DeploymentID][]schema.Work{}
	for _, w := range work {
		if w.Action == action {
			by[w.Deployment] = append(by[w.Deployment], w)
		}
	}
	done := 0
	var failed error
	for to, work := range by {
		waiting, err := table.Handle(context.Background(), to, work)
		if failed = errors.Join(failed, err); err == nil {
			done += len(work) - len(waiting)
		}
	}
	return done, failed
}

// Seen reads the deletions at a deployment that a holder's deployment has not acknowledged, with their
// position.
func (b *Box) Seen(holder, from schema.DeploymentID) (deletions []schema.Deletion, position string) {
	b.t.Helper()
	err := b.Stores[from].Read.WatchDeletions(context.Background(), holder, "", func(e schema.Event[schema.Deletion]) error {
		deletions = append(deletions, e.Items...)
		if e.EndOfSnapshot {
			position = e.Token
			return errEnd
		}
		return nil
	})
	require.ErrorIs(b.t, err, errEnd)
	return deletions, position
}

// OpenWatch opens a holder's watch of the deletions at another deployment, with the stored position, as far
// as the checks at that one.
func (b *Box) OpenWatch(holder, from schema.DeploymentID) error {
	ctx := peer.WithCallerDatabase(context.Background(), b.Stores[holder].Gate.Database())
	if holder == from {
		return nil
	}
	err := b.Stores[from].Gate.CheckDatabase(ctx, holder, b.Stores[holder].Gate.Database())
	if err != nil && !errors.Is(err, peer.ErrStranger) {
		return err
	}
	token, err := b.Stores[holder].Follow.Position(ctx, from)
	if err != nil {
		return err
	}
	return b.Stores[from].Read.CheckKept(ctx, holder, token)
}

// Act makes a holder's deployment act upon the deletions at another one and acknowledge them. It returns how
// many were done.
func (b *Box) Act(holder, from schema.DeploymentID) (int, error) {
	b.t.Helper()
	done, _, err := b.act(holder, from)
	return done, err
}

// act is Act. It returns the errors of the deletions that could not be carried out too.
func (b *Box) act(holder, from schema.DeploymentID) (done int, failed map[uuid.UUID]error, err error) {
	b.t.Helper()
	if err := b.OpenWatch(holder, from); err != nil {
		return 0, nil, err
	}
	deletions, position := b.Seen(holder, from)
	if len(deletions) == 0 {
		return 0, nil, nil
	}
	h := handlers.PausableSubscribedDeleting{
		SubscribedDeleting: &handlers.SubscribedDeleting{Store: b.Stores[holder].Follow, Epoch: b.Stores[holder].Gate, Peers: &boxPeers{box: b, self: holder}}, Pauses: b.Stores[holder].Operate,
	}
	failed, err = h.Handle(context.Background(), from, deletions, position, nil, true)
	done = len(deletions) // less the failed ones
	for _, cause := range failed {
		if !errors.Is(cause, schema.ErrUnfinished) {
			done--
		}
	}
	return done, failed, err
}

// Resolve makes a deployment ask about its expired blockades.
func (b *Box) Resolve(deployment schema.DeploymentID) error {
	h := handlers.PausableResolve{Handler: &handlers.Resolve{
		Store: b.Stores[deployment].Targets, Peers: &boxPeers{box: b, self: deployment}, Self: deployment, Scheduled: b.Stores[deployment].Deletions,
	}, Pauses: b.Stores[deployment].Operate}
	expired, err := h.Expired(context.Background())
	for _, holder := range expired {
		err = errors.Join(err, h.Resolve(context.Background(), holder))
	}
	return err
}

// outstanding has the number of tentative blockades and of undecided freezes of a deployment, and whether it
// has work, notices and notes of attached tables.
type outstanding struct {
	tentative              int
	work, notices, deleted bool
}

// outstanding reports in one query which kinds of outstanding rows exist: mostly there are none, and reading
// them takes some twenty queries.
func (b *Box) outstanding(deployment schema.DeploymentID) (left outstanding) {
	b.t.Helper()
	const sql = `
SELECT (SELECT count(*) FROM dbcontroller.blockade WHERE expires_at IS NOT NULL) + (SELECT count(*) FROM dbcontroller.freeze WHERE NOT committed AND purge_at IS NULL), EXISTS (SELECT FROM dbcontroller.work), EXISTS (SELECT FROM dbcontroller.notice),
    EXISTS (SELECT FROM dbcontroller.deleted_row WHERE tries < 3)
        OR EXISTS (SELECT FROM dbcontroller.attachment WHERE ready AND NOT walked) OR EXISTS (
        SELECT FROM dbcontroller.lacking WHERE tries = 0 OR NOT missing AND tries < CASE WHEN problem IS NULL THEN 20 ELSE 3 END)`
	require.NoError(b.t, b.Pools[deployment].QueryRow(context.Background(), sql).Scan(&left.tentative, &left.work, &left.notices, &left.deleted))
	return left
}

// Settle does all outstanding work of all deployments until nothing is left but work for unreachable
// deployments. Work that failed because a machine is busy, by a time limit, is tried again.
func (b *Box) Settle() {
	b.t.Helper()
	var done []string // work done in the last round
	late := 3         // rounds that begin because work was late
	for round := 0; ; round++ {
		require.Less(b.t, round, 100, "it does not come to rest: %s", done)
		done = nil
		count := func(what any, id schema.DeploymentID, n int, err error) { // failed work stays
			isLate := late > 0 && (postgres.Busy(err) || errors.Is(err, context.DeadlineExceeded))
			if isLate {
				late--
			}
			if n > 0 || isLate {
				done = append(done, fmt.Sprintf("%v at %s: %d (%v)", what, id, n, err))
			}
		}
		for id := range b.Stores {
			left := b.outstanding(id)
			if left.deleted {
				b.captureDue(id)
				done = append(done, "attached tables at "+id.String())
			}
			if left.tentative > 0 {
				err := b.Resolve(id)                                                  // blockades of unreachable deployments stay
				count("resolve", id, left.tentative-b.outstanding(id).tentative, err) // a deletion that waited for one has new work
			}
			if left.work {
				work := b.Work(id)
				for action := schema.Confirm; action <= schema.LookAtEntry; action++ {
					n, err := b.do(id, action, work)
					count(action, id, n, err)
				}
			}
			if _, err := b.reach(id); err != nil || !left.notices {
				continue
			}
			for holder := range b.Stores {
				n, failed, err := b.act(holder, id)
				if len(failed) > 0 && late > 0 { // perhaps because a batch of the same deletion held a lock for long
					late--
					done = append(done, fmt.Sprintf("act upon %s at %s: %v", id, holder, failed))
				}
				count("act upon "+id.String(), holder, n, err)
			}
		}
		if len(done) == 0 {
			return
		}
	}
}

// captureDue is Capture, which also tries again rows that could not be stored at the first try, such as rows
// whose target's deployment was late.
func (b *Box) captureDue(deployment schema.DeploymentID) {
	b.t.Helper()
	for _, sql := range []string{
		`UPDATE dbcontroller.deleted_row SET due = now() WHERE tries IN (1, 2)`,
		`UPDATE dbcontroller.lacking SET due = now() WHERE NOT missing AND tries > 0 AND tries < 20`, // the answer to a confirm may be under way
	} {
		_, err := b.Pools[deployment].Exec(context.Background(), sql)
		require.NoError(b.t, err)
	}
	b.Capture(deployment)
}

// Capture carries out the deletions of rows of attached tables, and acquires the rights of the values without
// one, until no more are due, or until a recovery begins. A call that fails by a time limit, because the
// machine is busy, is repeated.
func (b *Box) Capture(deployment schema.DeploymentID) {
	b.t.Helper()
	late := 10
	for more := true; more; {
		var err error
		more, err = b.Stores[deployment].DeletedRows.DeleteRows(context.Background())
		if err == nil {
			var lacking bool
			lacking, err = b.Stores[deployment].RightRequests.AcquireForRows(context.Background())
			more = more || lacking
		}
		if errors.Is(err, peer.ErrRecovering) { // rows wait until the recovery ends
			return
		}
		if late > 0 && (postgres.Busy(err) || errors.Is(err, context.DeadlineExceeded)) {
			late, more = late-1, true
			continue
		}
		require.NoError(b.t, err)
	}
}

// AnswerRequests answers the requests of rights of the applications of a deployment.
func (b *Box) AnswerRequests(deployment string) {
	b.t.Helper()
	require.NoError(b.t, b.Stores[b.ID(deployment)].RightRequests.AnswerRequests(context.Background()))
}

// Count counts rows of a table of the deployment's database.
func (b *Box) Count(deployment, table string) (n int) {
	b.t.Helper()
	sql := map[string]string{
		"shadow": `SELECT count(*) FROM dbcontroller.shadow`, "reference": `SELECT count(*) FROM dbcontroller.reference`,
		"blockade": `SELECT count(*) FROM dbcontroller.blockade`, "tentative": `SELECT count(*) FROM dbcontroller.blockade WHERE expires_at IS NOT NULL`,
		"holder_entry": `SELECT count(*) FROM dbcontroller.holder_entry`, "work": `SELECT count(*) FROM dbcontroller.work`,
		"notice": `SELECT count(*) FROM dbcontroller.notice`, "foreign_target": `SELECT count(*) FROM dbcontroller.foreign_target`,
		"owner_reference": `SELECT count(*) FROM dbcontroller.owner_reference`, "ownee_entry": `SELECT count(*) FROM dbcontroller.ownee_entry`,
		"owner_lost": `SELECT count(*) FROM dbcontroller.owner_lost`,
		"deleting":   `SELECT count(*) FROM dbcontroller.shadow WHERE state = 2`, "change": `SELECT count(*) FROM dbcontroller.change`,
		"aborted": `SELECT count(*) FROM dbcontroller.attempt WHERE NOT committed`, "resource": `SELECT count(*) FROM dbcontroller.resource`,
		"removal": `SELECT count(*) FROM dbcontroller.removal`, "cause": `SELECT count(*) FROM dbcontroller.cause`,
		"request":  `SELECT count(*) FROM dbcontroller.request`,
		"dangling": `SELECT count(*) FROM dbcontroller.reference WHERE dangling`,
		"frozen":   `SELECT count(*) FROM dbcontroller.frozen`,
	}[table]
	require.NotEmpty(b.t, sql)
	require.NoError(b.t, b.Pools[b.ID(deployment)].QueryRow(context.Background(), sql).Scan(&n))
	return n
}

// Expire makes every tentative blockade at a deployment expire, and every freeze.
func (b *Box) Expire(deployment string) {
	b.t.Helper()
	_, err := b.Pools[b.ID(deployment)].Exec(context.Background(), `UPDATE dbcontroller.freeze SET expires_at = now()`)
	require.NoError(b.t, err)
	_, err = b.Pools[b.ID(deployment)].Exec(context.Background(), `UPDATE dbcontroller.blockade SET expires_at = now() WHERE expires_at IS NOT NULL`)
	require.NoError(b.t, err)
}
