package db

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// names maps the names of deployments, kinds and field paths to their ids in the database, and back. The rows
// are never changed or removed within an epoch, so that the cache stays valid. Its size is the number of
// distinct names.
//
// A kind is stored by its oldest name, also when versions rename it: kind and kindOf translate by the model.
type names struct {
	pool  postgres.Pool
	Model atomic.Pointer[schema.Model] // nil before the first version

	mu          sync.RWMutex
	deployments bimap[schema.DeploymentID] // guarded by mu
	kinds       bimap[schema.KindID]       // guarded by mu
	fields      bimap[string]              // guarded by mu
	generation  int64                      // guarded by mu; the number of times that all was forgotten
}

type bimap[T comparable] struct {
	ids  map[T]int32
	text map[int32]T
}

func newBimap[T comparable]() bimap[T] {
	return bimap[T]{ids: map[T]int32{}, text: map[int32]T{}}
}

func (m bimap[T]) put(v T, id int32) { m.ids[v], m.text[id] = id, v }

func newNames(pool postgres.Pool) *names {
	return &names{
		pool: pool, deployments: newBimap[schema.DeploymentID](), kinds: newBimap[schema.KindID](),
		fields: newBimap[string](),
	}
}

const (
	insertDeploymentSQL = `INSERT INTO dbcontroller.deployment (service, region) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	insertKindSQL       = `INSERT INTO dbcontroller.kind (service, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	insertFieldSQL      = `INSERT INTO dbcontroller.field (path) VALUES ($1) ON CONFLICT DO NOTHING`
	selectOneFieldSQL   = `SELECT id FROM dbcontroller.field WHERE path = $1`
	hasDeploymentSQL    = `SELECT EXISTS (SELECT FROM dbcontroller.deployment WHERE service = $1 AND region = $2)`
	hasKindSQL          = `SELECT EXISTS (SELECT FROM dbcontroller.kind WHERE service = $1 AND kind = $2)`

	selectNamesSQL = `
SELECT 'deployment', id, service, region FROM dbcontroller.deployment
UNION ALL SELECT 'kind', id, service, kind FROM dbcontroller.kind
UNION ALL SELECT 'field', id, path, '' FROM dbcontroller.field`

	// In one order, so that two processes do not wait for each other.
	insertKindsSQL = `
INSERT INTO dbcontroller.kind (service, kind) SELECT * FROM unnest($1::text[], $2::text[]) AS i (service, kind) ORDER BY 1, 2 ON CONFLICT DO NOTHING`
	insertFieldsSQL = `
INSERT INTO dbcontroller.field (path) SELECT * FROM unnest($1::text[]) AS path ORDER BY 1 ON CONFLICT DO NOTHING`
)

func (n *names) Deployment(ctx context.Context, d schema.DeploymentID) (int32, error) {
	return intern(ctx, n, &n.deployments, d, insertDeploymentSQL, d.Service, d.Region)
}

func (n *names) Kind(ctx context.Context, k schema.KindID) (int32, error) {
	k = n.Root(k)
	return intern(ctx, n, &n.kinds, k, insertKindSQL, k.Service, k.Kind)
}

func (n *names) Field(ctx context.Context, path string) (int32, error) {
	return intern(ctx, n, &n.fields, path, insertFieldSQL, path)
}

// Unknown counts the field paths and kinds that this process has not stored or read yet, each once.
func (n *names) Unknown(paths []string, kinds []schema.KindID) int {
	_, of, fields := n.missing(kinds, paths)
	return len(of) + len(fields)
}

// Store stores many kinds and field paths, and loads their ids: two statements in place of two for each name.
func (n *names) Store(ctx context.Context, kinds []schema.KindID, paths []string) error {
	if n.Unknown(paths, kinds) == 0 {
		return nil
	}
	if err := n.load(ctx, n.pool); err != nil {
		return err
	}
	services, of, fields := n.missing(kinds, paths)
	if len(of)+len(fields) == 0 {
		return nil
	}
	if _, err := n.pool.Exec(ctx, insertKindsSQL, services, of); err != nil {
		return fmt.Errorf("store names of kinds: %w", err)
	}
	if _, err := n.pool.Exec(ctx, insertFieldsSQL, fields); err != nil {
		return fmt.Errorf("store field paths: %w", err)
	}
	return n.load(ctx, n.pool)
}

// missing returns the kinds, as two columns, and the field paths that the cache lacks, each once.
func (n *names) missing(kinds []schema.KindID, paths []string) (services, of, fields []string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	seen := map[any]bool{}
	fresh := func(name any, known bool) bool {
		first := !known && !seen[name]
		seen[name] = true
		return first
	}
	for _, k := range kinds {
		k = n.Root(k)
		if _, known := n.kinds.ids[k]; fresh(k, known) {
			services, of = append(services, k.Service), append(of, k.Kind)
		}
	}
	for _, p := range paths {
		if _, known := n.fields.ids[p]; fresh(p, known) {
			fields = append(fields, p)
		}
	}
	return services, of, fields
}

// KnownDeployment returns the id of a deployment from the cache alone.
func (n *names) KnownDeployment(d schema.DeploymentID) (int32, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, ok := n.deployments.ids[d]
	return id, ok
}

// HasDeployment reports whether a deployment has a number, and stores none.
func (n *names) HasDeployment(ctx context.Context, d schema.DeploymentID) (bool, error) {
	if _, known := n.KnownDeployment(d); known {
		return true, nil
	}
	return n.has(ctx, hasDeploymentSQL, d.Service, d.Region)
}

// HasKind reports whether a kind has a number, and stores none.
func (n *names) HasKind(ctx context.Context, k schema.KindID) (bool, error) {
	if n.Unknown(nil, []schema.KindID{k}) == 0 {
		return true, nil
	}
	k = n.Root(k)
	return n.has(ctx, hasKindSQL, k.Service, k.Kind)
}

func (n *names) has(ctx context.Context, sql string, args ...any) (there bool, err error) {
	if err := n.pool.QueryRow(ctx, sql, args...).Scan(&there); err != nil {
		return false, fmt.Errorf("look a name up: %w", err)
	}
	return there, nil
}

func (n *names) DeploymentOf(ctx context.Context, q Querier, id int32) (schema.DeploymentID, error) {
	return lookUp(ctx, n, q, &n.deployments, id)
}

func (n *names) KindOf(ctx context.Context, q Querier, id int32) (schema.KindID, error) {
	k, err := lookUp(ctx, n, q, &n.kinds, id)
	return n.Canonical(k), err
}

// Root returns the name by which a kind is stored; canonical returns its name in the running version.
func (n *names) Root(k schema.KindID) schema.KindID {
	if m := n.Model.Load(); m != nil {
		return m.Root(k)
	}
	return k
}

func (n *names) Canonical(k schema.KindID) schema.KindID {
	if m := n.Model.Load(); m != nil {
		return m.Canonical(k)
	}
	return k
}

func (n *names) FieldOf(ctx context.Context, q Querier, id int32) (string, error) {
	return lookUp(ctx, n, q, &n.fields, id)
}

// intern returns the id of a name, and stores a new one outside any transaction: a name without rows does no
// harm.
func intern[T comparable](ctx context.Context, n *names, m *bimap[T], v T, insert string, args ...any) (int32, error) {
	ctx = ofPrimary(ctx)
	n.mu.RLock()
	id, ok := m.ids[v]
	n.mu.RUnlock()
	if ok {
		return id, nil
	}
	if _, err := n.pool.Exec(ctx, insert, args...); err != nil {
		return 0, fmt.Errorf("store a name: %w", err)
	}
	if err := n.load(ctx, n.pool); err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if id, ok = m.ids[v]; !ok {
		return 0, fmt.Errorf("name %v was stored, but cannot be read", v)
	}
	return id, nil
}

// lookUp reads missing names through q, so that inside a transaction it needs no second connection (I22).
func lookUp[T comparable](ctx context.Context, n *names, q Querier, m *bimap[T], id int32) (T, error) {
	n.mu.RLock()
	v, ok := m.text[id]
	n.mu.RUnlock()
	if ok {
		return v, nil
	}
	if err := n.load(ctx, q); err != nil { // over the connection of the transaction: the pool may have none left (I22)
		return v, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if v, ok = m.text[id]; !ok {
		return v, fmt.Errorf("no name has the number %d", id)
	}
	return v, nil
}

// ofPrimary returns the context of statements whose answers the cache keeps: a standby may have numbers of
// another epoch.
func ofPrimary(ctx context.Context) context.Context { return postgres.Over(ctx, nil) }

// Load reads all names that have numbers.
func (n *names) Load(ctx context.Context) error { return n.load(ctx, n.pool) }

// load reads all names. It takes the mutex only after the query: a goroutine that waits for the mutex may
// hold the connection that the query needs.
func (n *names) load(ctx context.Context, q Querier) error {
	ctx = ofPrimary(ctx)
	for {
		n.mu.RLock()
		generation := n.generation
		n.mu.RUnlock()
		if taken, err := n.loadIn(ctx, q, generation); err != nil || taken {
			return err
		}
	}
}

// loadIn adds the names that it reads, unless forget was called in the meantime: some may be of the epoch
// before.
func (n *names) loadIn(ctx context.Context, q Querier, generation int64) (taken bool, err error) {
	deployments, kinds, fields := newBimap[schema.DeploymentID](), newBimap[schema.KindID](), newBimap[string]()
	rows, err := q.Query(ctx, selectNamesSQL)
	if err != nil {
		return false, fmt.Errorf("read names: %w", err)
	}
	var id int32
	var table, a, b string
	_, err = pgx.ForEachRow(rows, []any{&table, &id, &a, &b}, func() error {
		switch table {
		case "deployment":
			deployments.put(schema.DeploymentID{Service: a, Region: b}, id)
		case "kind":
			kinds.put(schema.KindID{Service: a, Kind: b}, id)
		default:
			fields.put(a, id)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read names: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.generation != generation {
		return false, nil
	}
	n.deployments.merge(deployments)
	n.kinds.merge(kinds)
	n.fields.merge(fields)
	return true, nil
}

// merge adds names, and keeps names that a concurrent load has added; names never change.
func (m bimap[T]) merge(more bimap[T]) {
	maps.Copy(m.ids, more.ids)
	maps.Copy(m.text, more.text)
}

// KnownField returns the id of a field path, 0 when it was never stored.
func (n *names) KnownField(ctx context.Context, path string) (int32, error) {
	ctx = ofPrimary(ctx)
	n.mu.RLock()
	id, ok := n.fields.ids[path]
	generation := n.generation
	n.mu.RUnlock()
	if ok {
		return id, nil
	}
	rows, err := n.pool.Query(ctx, selectOneFieldSQL, path)
	if err != nil {
		return 0, fmt.Errorf("look a path up: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.generation == generation {
		n.fields.put(path, ids[0])
	}
	return ids[0], nil
}

// Forget empties the cache.
func (n *names) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.generation++
	n.deployments, n.kinds, n.fields = newBimap[schema.DeploymentID](), newBimap[schema.KindID](), newBimap[string]()
}

// DeploymentsOf returns the deployments with some numbers, in their order.
func (s *DB) DeploymentsOf(ctx context.Context, q Querier, ids []int32) ([]schema.DeploymentID, error) {
	var out []schema.DeploymentID
	for _, id := range ids {
		d, err := s.Names.DeploymentOf(ctx, q, id)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// FullName returns the full name of a resource of this deployment.
func (s *DB) FullName(name string) schema.FullName {
	return schema.FullName{Deployment: s.Self, Name: name}
}

// KindNow returns the current version's name of a kind of this service; stored is the kind's oldest name.
func (s *DB) KindNow(stored string) string {
	return s.Names.Canonical(schema.KindID{Service: s.Self.Service, Kind: stored}).Kind
}

// Version is the version of the service that this process runs.
type Version struct {
	Model      *schema.Model
	Generation int64
	Hiding     []int32 // kinds with hide_while_deleting
	Tables     bool    // a kind has a table
	Keeps      bool    // there may be kept resources, of kinds or patterns that the version lacks
}

// Model returns the model that validates writes; nil before the first Switch.
func (s *DB) Model() *schema.Model {
	if v := s.Version.Load(); v != nil {
		return v.Model
	}
	return nil
}

// Current returns the version that this process runs. It fails with *UnavailableError before the first
// switch.
func (s *DB) Current() (*Version, error) {
	if v := s.Version.Load(); v != nil {
		return v, nil
	}
	return nil, &peer.UnavailableError{
		Deployments: []schema.DeploymentID{s.Self},
		Err: errors.New(
			"its version is not known yet: check that the deployment is registered and that the registry can be reached"),
	}
}

// Shapes returns pairs of a kind's id and a shape of its names. ids are in the order of the model's
// KindNames.
func (v *Version) Shapes(ids []int32) (kinds []int32, shapes []string) {
	for i, name := range v.Model.KindNames() {
		if kind, err := v.Model.Kind(name); err == nil {
			for _, shape := range kind.Shapes() {
				kinds, shapes = append(kinds, ids[i]), append(shapes, shape)
			}
		}
	}
	return kinds, shapes
}

const (
	// The version's own kind for the name comes first.
	selectKindOfSQL = `
SELECT s.kind_id FROM dbcontroller.kind k JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = $2
WHERE k.service = $1 ORDER BY s.kind_id <> $3 LIMIT 1`

	// The kind of the stored resource, or else the kind that had names of that shape, so that a deleted one
	// is not found.
	selectKeptUnderSQL = `
(SELECT s.kind_id FROM dbcontroller.kind k JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = $2 WHERE k.service = $1 LIMIT 1)
UNION ALL
(SELECT d.kind_id FROM dbcontroller.derivation d
WHERE $2 ~ ANY (SELECT '^' || replace(shape, '*', '[^/]+') || '$' FROM unnest(d.dropped) AS shape) LIMIT 1)`
)

// KindOfName returns the kind of a name by the running version, or else the kind under which it is kept.
func (s *DB) KindOfName(ctx context.Context, name string) (int32, error) {
	v, err := s.Current()
	if err != nil {
		return 0, err
	}
	kind, unfit := v.Model.KindOf(name)
	if unfit != nil {
		return s.KeptUnder(ctx, s.Pool, name, unfit)
	}
	id, err := s.Names.Kind(ctx, kind.ID)
	if err != nil || !v.Keeps {
		return id, err
	}
	err = s.Pool.QueryRow(ctx, selectKindOfSQL, s.Self.Service, name, id).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, err
}

// KeptUnder returns the kind under which a resource whose name fits no pattern is kept, or would be. Without
// such a kind it fails with unfit.
func (s *DB) KeptUnder(ctx context.Context, q Querier, name string, unfit error) (int32, error) {
	if schema.CheckName(name) != nil {
		return 0, &peer.InvalidError{Err: unfit}
	}
	rows, err := q.Query(ctx, selectKeptUnderSQL, s.Self.Service, name)
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	if len(ids) == 0 {
		return 0, &peer.InvalidError{Err: unfit}
	}
	return ids[0], nil
}

// KeyColumns are keys of blockades as columns for unnest.
type KeyColumns struct {
	Attempts, Holders, Targets []uuid.UUID
	Fields                     []int32
}

// KeyColumns returns the keys as columns for unnest. It stores no field path: a blockade of an unknown path
// cannot exist.
func (s *DB) KeyColumns(ctx context.Context, keys []peer.BlockadeKey) (k KeyColumns, err error) {
	for _, key := range keys {
		field, err := s.Names.KnownField(ctx, key.Path)
		if err != nil {
			return k, err
		}
		k.Attempts, k.Holders = append(k.Attempts, key.Attempt), append(k.Holders, key.HolderUID)
		k.Targets, k.Fields = append(k.Targets, key.TargetUID), append(k.Fields, field)
	}
	return k, nil
}
