package follow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

const (
	selectForeignTargetsSQL = `
SELECT id, uid, kind_id, name FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND uid = ANY ($2)`

	selectLocalTargetsSQL = `SELECT id, uid, kind_id, name FROM dbcontroller.shadow WHERE uid = ANY ($1)`

	// Keyset paging: a page does not scan the dead rows of earlier pages.
	nextHoldersSQL = `
SELECT holder_id FROM dbcontroller.reference
WHERE target_id = $1 AND behaviour = $2 AND holder_id > $3
ORDER BY holder_id LIMIT $4`

	// A shorter lock timeout than elsewhere: thousands of holders may wait behind the locked one.
	actLockTimeoutSQL = `SET LOCAL lock_timeout = '1s'`

	lockFreeMembersSQL = cascade.LockMembersSQL + ` SKIP LOCKED`
)

var (
	// At most $2 holders of each target, so that no target delays the others.
	firstHoldersSQL = db.Codes(`
SELECT t, r.holder_id FROM unnest($1::bigint[]) AS t CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id = t AND behaviour IN ({unset}, {cascade_delete}, {async_unset}, {async_cascade_delete}) LIMIT $2
) AS r LIMIT $3`)

	actingOnSQL = db.Codes(`
SELECT target_id, holder_id, field_id, behaviour FROM dbcontroller.reference
WHERE holder_id = ANY ($1) AND target_id = ANY ($2) AND behaviour IN ({unset}, {cascade_delete}, {async_unset}, {async_cascade_delete})`)
)

var errLocked = errors.New("another transaction holds the lock of a holder")

// Target is a deleted resource with holders here.
type Target struct {
	ID   int64
	UID  uuid.UUID
	Kind int32
	Name string
}

// smallTarget is the maximum number of holders of a small deletion: small ones are done before large ones
// continue.
const smallTarget = 200

// ActFor unsets and cascades the holders in this database for deletions at a deployment, any number of them,
// in transactions of Config.Limits.Batch holders. from is this deployment itself for references that act
// asynchronously. It is idempotent. It returns by uid the errors of deletions that could not be carried out
// completely: schema.ErrUnfinished for large targets that are not done when patience ends. All other
// deletions are done when err is nil. Forget comes afterwards.
func (s *Follower) ActFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	patience time.Duration,
) (map[uuid.UUID]error, error) {
	return s.actFor(ctx, from, deletions, patience, schema.Block)
}

// ActForDecommissioned is ActFor for all resources of a decommissioned deployment. Rows of tables that block
// them act as blocking says; the blocking references of resources have that behaviour before.
func (s *Follower) ActForDecommissioned(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	blocking schema.Behaviour,
) (map[uuid.UUID]error, error) {
	return s.actFor(ctx, from, deletions, math.MaxInt64, blocking)
}

func (s *Follower) actFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	patience time.Duration, blocking schema.Behaviour,
) (map[uuid.UUID]error, error) {
	if _, err := s.Current(); err != nil {
		return nil, err
	}
	if len(deletions) == 0 {
		return nil, nil
	}
	a := &acting{
		store: s, from: from, epoch: s.gate.PresentEpoch(), began: time.Now(), patience: patience,
		actingOn: actingOnSQL, blocking: blocking,
		deletions: map[uuid.UUID]schema.Deletion{}, failed: map[uuid.UUID]error{},
		failedHolders: map[uuid.UUID]failedHolders{}, meeting: map[int64]bool{},
	}
	uids := make([]uuid.UUID, len(deletions))
	for i, d := range deletions {
		uids[i], a.deletions[d.UID] = d.UID, d
	}
	if err := a.prefetch(ctx, uids); err != nil {
		return nil, err
	}
	var fresh, many []int64
	for id, t := range a.targets {
		if s.walks.has(id, a.key(t.UID)) {
			many = append(many, id)
		} else {
			fresh = append(fresh, id)
		}
	}
	closed, err := a.closeTargets(ctx, fresh)
	if err != nil {
		return nil, err
	}
	large, err := a.actSmall(ctx, closed)
	if err != nil {
		return nil, err
	}
	many = append(many, large...)
	// a page may take more than its share
	rand.Shuffle(len(many), func(i, j int) { many[i], many[j] = many[j], many[i] })
	for i, id := range many {
		share := max(0, patience-time.Since(a.began)) / time.Duration(len(many)-i)
		if err := a.actLarge(ctx, id, share, i == 0); err != nil {
			return nil, err
		}
	}
	if err := a.actOnRows(ctx); err != nil {
		return nil, err
	}
	for uid, f := range a.failedHolders {
		if err := a.failed[uid]; err != nil && !errors.Is(err, schema.ErrUnfinished) {
			a.failed[uid] = fmt.Errorf("%d holders could not be handled, the last one: %w", len(f.holders), f.cause)
		}
	}
	a.tell()
	return a.failed, nil
}

// tell writes a line for debugging for each deletion.
func (a *acting) tell() {
	for uid, d := range a.deletions {
		line := a.store.Log.Check(zap.DebugLevel, "a deletion was acted upon")
		if line == nil {
			return
		}
		fields := []zap.Field{
			zap.Stringer("deployment", a.from), zap.String("name", d.Name), zap.Stringer("uid", uid),
			zap.Error(a.failed[uid]),
		}
		if c := d.Cause; c != nil {
			fields = append(fields, zap.Stringer("deletion", c.ID), zap.String("root", c.Root),
				zap.Stringer("request_id", c.RequestID))
		}
		line.Write(fields...)
	}
}

// acting is a run over the holders of some deleted resources.
type acting struct {
	store     *Follower
	from      schema.DeploymentID
	fromID    int32
	epoch     uuid.UUID // of this database, when the run began
	began     time.Time
	patience  time.Duration
	deletions map[uuid.UUID]schema.Deletion
	targets   map[int64]Target
	// rights are the same targets by their rows of foreign_target, under which rows of tables refer to them.
	// Of another deployment they are targets; of this one targets are shadows, to which references are
	// stored.
	rights map[int64]Target
	// prefetched has the holders that prefetch has read beside the targets; nil: they are read later.
	prefetched *prefetched
	// blocking is the behaviour of rows that block the targets: BLOCK, or an operator's choice.
	blocking schema.Behaviour
	// actingOn selects the references of holders that act.
	actingOn string
	// dangling, when set, has the epochs in which each transaction has to be; acted are then the references
	// that it has acted upon.
	dangling *Dangling
	acted    []plan.Edge

	mu            sync.Mutex                  // two batches may run at a time
	failed        map[uuid.UUID]error         // guarded by mu
	failedHolders map[uuid.UUID]failedHolders // guarded by mu
	// meeting are the targets whose batches can wait for each other's locks. They run one after the other.
	meeting map[int64]bool // guarded by mu
	alone   sync.Mutex     // of the transactions of batches that have met
}

// key names the deletion of a target, for walks.
func (a *acting) key(uid uuid.UUID) deletionKey {
	return deletionKey{seq: a.deletions[uid].Seq, epoch: a.epoch}
}

// failedHolders are the holders of a target that failed, with the error of the last.
type failedHolders struct {
	holders map[int64]bool
	cause   error
}

// Targets returns the deleted resources of a deployment that this database knows, by their ids.
func (s *Follower) Targets(ctx context.Context, q db.Querier, from schema.DeploymentID,
	uids []uuid.UUID,
) (map[int64]Target, error) {
	id, err := s.Names.Deployment(ctx, from)
	if err != nil {
		return nil, err
	}
	sql, args := s.targetsSQL(from, id, uids)
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read targets: %w", err)
	}
	targets := map[int64]Target{}
	if err := scanTargets(rows, targets); err != nil {
		return nil, fmt.Errorf("read targets: %w", err)
	}
	return targets, nil
}

func (s *Follower) targetsSQL(from schema.DeploymentID, id int32, uids []uuid.UUID) (sql string, args []any) {
	if from == s.Self {
		return selectLocalTargetsSQL, []any{uids}
	}
	return selectForeignTargetsSQL, []any{id, uids}
}

func scanTargets(rows pgx.Rows, targets map[int64]Target) error {
	var t Target
	_, err := pgx.ForEachRow(rows, []any{&t.ID, &t.UID, &t.Kind, &t.Name}, func() error {
		targets[t.ID] = t
		return nil
	})
	return err
}

func (a *acting) load(ctx context.Context, uids []uuid.UUID) (err error) {
	if a.fromID, err = a.store.Names.Deployment(ctx, a.from); err != nil {
		return err
	}
	a.targets, err = a.store.Targets(ctx, a.store.Pool, a.from, uids)
	return err
}

// actSmall handles all holders of small targets and some holders of large targets. It returns the large
// targets.
func (a *acting) actSmall(ctx context.Context, ids []int64) (many []int64, err error) {
	size := a.store.Cfg.Limits.Batch
	seen := map[int64]int{}
	for len(ids) > 0 {
		found, err := a.firstHolders(ctx, ids)
		if err != nil {
			return nil, err
		}
		holders := make([]int64, len(found))
		for i, h := range found {
			seen[h.Target]++
			holders[i] = h.Holder
		}
		full := len(holders) == size
		slices.Sort(holders)
		switch unreached, err := a.batch(ctx, ids, slices.Compact(holders), false); {
		case err != nil:
			return nil, err
		case len(unreached) > 0: // each is walked from its beginning
			return append(many, ids...), nil
		}
		left := ids[:0:0]
		for _, id := range ids {
			switch failed := a.failed[a.targets[id].UID] != nil; {
			case failed && seen[id] <= smallTarget && !full:
				// all holders were read; the caller retries the failed ones
			case failed, seen[id] > smallTarget: // holders behind failing ones must not wait for them (I20)
				many = append(many, id)
			default:
				left = append(left, id)
			}
		}
		if ids = left; !full {
			break // all of their holders were read
		}
	}
	return many, nil
}

// batch handles holders in one transaction. It skips holders that stay locked by another transaction. When
// the transaction fails it halves the batch, so that a failing holder does not stop the others (I20), until
// patience ends. It returns the holders that there was no time for. beside: another batch of the same target
// runs at a time.
func (a *acting) batch(ctx context.Context, targets, holders []int64, beside bool) (unreached []int64, err error) {
	if len(holders) == 0 {
		return nil, nil
	}
	return a.store.Halving(ctx, holders, retry.Halves[int64]{
		Run: func(part []int64) error {
			if beside && !a.meets(targets[0]) {
				err := a.try(ctx, targets, part, cascade.LockMembersSQL)
				if !db.HasCode(err, db.CodeLockNotAvailable) {
					return err
				}
				a.met(targets[0]) // the lock can be the other batch's: from now on they run one after the other
			}
			if beside {
				a.alone.Lock()
				defer a.alone.Unlock()
			}
			err := a.try(ctx, targets, part, cascade.LockMembersSQL)
			if db.HasCode(err, db.CodeLockNotAvailable) {
				err = a.try(ctx, targets, part, lockFreeMembersSQL)
			}
			return err
		},
		Failed: func(holder int64, err error) error {
			return a.recordFailed(ctx, a.store.Pool, targets, []int64{holder}, err)
		},
		Stop: func() bool { return time.Since(a.began) >= a.patience },
	})
}

// try calls act in one transaction. A panic becomes an error of these holders.
func (a *acting) try(ctx context.Context, targets, holders []int64, lockSQL string) error {
	var edges []plan.Edge
	err := a.store.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
			}
		}()
		edges, err = a.act(ctx, tx, targets, holders, lockSQL)
		return err
	})
	if err == nil && a.dangling != nil {
		a.acted = append(a.acted, edges...) // these have one batch at a time
	}
	return err
}

func (a *acting) recordFailed(ctx context.Context, q db.Querier, targets, holders []int64, cause error) error {
	rows, err := q.Query(ctx, db.OfMany(a.actingOn, len(targets)), holders, targets)
	if err != nil {
		return fmt.Errorf("read references: %w", err)
	}
	edges, err := pgx.CollectRows(rows, cascade.ScanEdge)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range edges {
		uid := a.targets[e.TargetID].UID
		a.failed[uid] = cause
		f := a.failedHolders[uid]
		if f.holders == nil {
			f.holders = map[int64]bool{}
		}
		f.holders[e.HolderID], f.cause = true, cause // a holder may be tried several times
		a.failedHolders[uid] = f
	}
	return err
}

// act handles holders of targets in one transaction: it locks them, reads again which references they still
// have, and unsets or cascades them with all cascades inside this database. Members with blockers are marked,
// not removed, and wait (BLOCKED). It returns the references that acted.
func (a *acting) act(ctx context.Context, tx pgx.Tx, targets, holders []int64, lockSQL string) ([]plan.Edge, error) {
	s := a.store
	if a.dangling != nil {
		if err := s.sameEpochs(ctx, tx, a.fromID, *a.dangling); err != nil {
			return nil, err
		}
	}
	var locked []*plan.Member
	var edges []plan.Edge
	b := &pgx.Batch{} // the statements behind the locks have newer snapshots
	b.Queue(actLockTimeoutSQL)
	db.QueuePlans(tx, b, len(holders))
	cascade.QueueMembers(b, &locked, lockSQL, holders)
	b.Queue(db.OfMany(a.actingOn, len(targets)), holders, targets).Query(func(rows pgx.Rows) (err error) {
		edges, err = pgx.CollectRows(rows, cascade.ScanEdge)
		return err
	})
	seen := s.cascade.QueueLockedRows(tx, b, cascade.ByID, holders)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("lock holders, and read their references: %w", err)
	}
	if len(locked) < len(holders) { // removed, or skipped because locked
		ids := cascade.IDsOf(locked)
		passed := slices.DeleteFunc(slices.Clone(holders), func(id int64) bool {
			_, found := slices.BinarySearch(ids, id)
			return found
		})
		if err := a.recordFailed(ctx, tx, targets, passed, errLocked); err != nil {
			return nil, err
		}
		edges = slices.DeleteFunc(edges, func(e plan.Edge) bool {
			_, found := slices.BinarySearch(ids, e.HolderID)
			return !found
		})
	}
	referred := map[int64]bool{}
	for _, m := range locked {
		referred[m.ID] = !seen.Leaf(m)
	}
	for _, e := range edges {
		// Also by a reference with ALLOW_DANGLING: one batch deletes such a reference with its holder, and
		// another batch with its target.
		if referred[e.HolderID] {
			a.met(e.TargetID)
		}
	}
	with := map[int64]Target{} // by holder: the target whose deletion cascades to it
	for _, e := range edges {
		if e.Behaviour.Cascades() {
			with[e.HolderID] = a.targets[e.TargetID]
		}
	}
	var roots []*plan.Member
	for _, m := range locked {
		if t, ok := with[m.ID]; ok {
			m.Why = plan.Reason{How: peer.Cascaded, Cause: a.cause(t), Via: &plan.Link{
				DeploymentID: a.fromID,
				UID:          t.UID, Name: t.Name,
			}}
			roots = append(roots, m)
		}
	}
	d, err := s.cascade.DecideBy(ctx, tx, roots, seen)
	if err != nil {
		return nil, err
	}
	var unsets []plan.Edge
	for _, e := range edges {
		if e.Behaviour.Unsets() && d.Closure.Members[e.HolderID] == nil {
			unsets = append(unsets, e)
		}
	}
	if err := s.cascade.Unset(ctx, tx, unsets, a.nameOf); err != nil {
		return nil, err
	}
	for _, e := range unsets {
		t := a.targets[e.TargetID]
		s.progress.Unset(tx, a.cause(t))
	}
	return edges, s.cascade.CarryOutAnd(ctx, tx, d, &pgx.Batch{}, db.CommitWith)
}

func (a *acting) cause(t Target) *schema.Cause {
	return cascade.CauseOr(a.deletions[t.UID].Cause, a.from, t.Name, t.UID)
}

func (a *acting) nameOf(id int64) schema.FullName {
	return schema.FullName{Deployment: a.from, Name: a.targets[id].Name}
}
