package deletion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// A scheduled deletion is an atomic deletion that is decided later. Its members are frozen and hidden until
// its time has come: then it is carried out, as an atomic deletion of its own that freezes and looks again,
// and whose decision also decides the scheduled one; or until it is undeleted, which decides it ABORTED.
// (test/model/atomic, S1 to S5; AIP-164)

const (
	// The roots of a scheduled deletion that are still there, and whose it is.
	selectScheduledRootsSQL = `
SELECT s.name, s.uid, COALESCE(f.actor, ''), f.request_id
FROM dbcontroller.freeze f JOIN dbcontroller.frozen m USING (deletion) JOIN dbcontroller.shadow s ON s.id = m.target_id
WHERE f.deletion = $1 AND m.via_uid IS NULL ORDER BY s.id`

	// By the clocks of the database and of this process: one that jumps ahead removes nothing for good.
	selectDueSQL = `
SELECT deletion, purge_at, participants FROM dbcontroller.freeze f
WHERE ` + db.PurgeDueSQL + ` AND purge_at <= $3 AND NOT committed AND (purge_at, deletion) > ($1, $2) ORDER BY purge_at, deletion LIMIT 100`

	whoseSQL = `UPDATE dbcontroller.freeze SET actor = $2, request_id = $3 WHERE deletion = $1`
	// The longer it is overdue, the longer it waits: each try leaves messages for deployments that do not
	// answer.
	failedSQL = `
UPDATE dbcontroller.freeze SET reason = $2, try_at = now() + GREATEST(interval '5 s', LEAST(interval '10 min', (now() - purge_at) / 10)) WHERE deletion = $1 AND NOT committed`
	commitScheduledSQL = `
UPDATE dbcontroller.attempt SET committed = true, decided_at = now(), mark = nextval('dbcontroller.mark') WHERE id = $1 AND committed IS NULL`
	abortScheduledSQL = `
UPDATE dbcontroller.attempt SET committed = false, decided_at = now(), mark = nextval('dbcontroller.mark') WHERE id = ANY ($1) AND committed IS NULL RETURNING id`
	selectParticipantsSQL = `SELECT participants FROM dbcontroller.freeze WHERE deletion = $1`
)

// The scheduled deletions that have a resource as a member, and whether they name it. An absent or visible
// resource has none.
var selectScheduledOfSQL = db.Codes(`
SELECT s.id, s.uid, s.state, s.hidden, f.deletion, m.via_uid IS NULL AND f.participants IS NOT NULL, '//' || d.service || '/' || d.region || '/' || f.root
FROM dbcontroller.shadow s
LEFT JOIN (dbcontroller.frozen m JOIN dbcontroller.freeze f ON f.deletion = m.deletion AND f.purge_at IS NOT NULL AND NOT f.committed
    JOIN dbcontroller.deployment d ON d.id = f.deployment_id) ON m.target_id = s.id
WHERE s.kind_id = $1 AND s.name = $2 AND (s.state = {active} OR NOT s.hidden)`)

// schedule records that the deletion is decided later, and hides its members here. The others follow.
func (d *atomic) schedule(ctx context.Context, tx pgx.Tx, at []int32, decided cascade.Decision, also *pgx.Batch,
	last db.Sender,
) error {
	s := d.store
	for _, m := range decided.Closure.Members {
		if s.rows.Of(m.Kind) != nil {
			return fmt.Errorf("%s: %s is a row of an attached table: %w", d.name(), m.Name, peer.ErrNotAtomic)
		}
	}
	if err := decided.CheckRecovered(ctx); err != nil {
		return err
	}
	f, b := d.frozen, &pgx.Batch{}
	if f == nil {
		f = &frozen{
			Freeze: peer.Freeze{Deletion: s.prepare.NewAttempt(), Root: d.first().Name},
			began:  s.Rollback.Seen.Load(),
		}
		s.target.QueueFreeze(b, f.Freeze, s.SelfID, d.membersHere(decided))
	}
	write.QueueScheduled(b, f.began, f.Deletion)
	target.QueueSchedule(b, f.Deletion, d.retention, at)
	b.Queue(whoseSQL, f.Deletion, d.first().cause.Actor, d.first().cause.RequestID)
	d.queueConfirms(b, f.Deletion, at, db.ScheduledDeletion)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("schedule the deletion: %w", err)
	}
	db.AfterCommit(tx, func() { s.Touched(db.WorkFeed) })
	crash.At("crash-deletion-scheduled")
	return last(ctx, tx, also)
}

// membersHere are the members of a deletion that no other deployment is concerned with: those that it does
// not name are members for the first one.
func (d *atomic) membersHere(decided cascade.Decision) (members []target.Member) {
	self := d.store.Self
	for id, m := range decided.Closure.Members {
		member := target.Member{ID: id}
		if !slices.ContainsFunc(d.wanted, func(w *wanted) bool { return w.cause.RootUID == m.UID }) {
			member.Via = peer.PlanTarget{Deployment: self, UID: d.first().cause.RootUID}
		}
		members = append(members, member)
	}
	return members
}

// endScheduled decides the scheduled deletion COMMITTED, with the one that carries it out. It fails with
// ErrAborted when it was undeleted.
func (d *atomic) endScheduled(ctx context.Context, tx pgx.Tx, also *pgx.Batch) error {
	tag, err := tx.Exec(ctx, commitScheduledSQL, d.scheduled)
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() == 0:
		return fmt.Errorf("%w: it was undeleted, or carried out", peer.ErrAborted)
	}
	var at []int32
	if err := tx.QueryRow(ctx, selectParticipantsSQL, d.scheduled).Scan(&at); err != nil {
		return err
	}
	d.queueConfirms(also, d.scheduled, at, 0)
	target.QueueCommitted(also, d.scheduled, d.store.SelfID)
	db.AfterCommit(tx, func() { d.store.Touched(db.WorkFeed) })
	return nil
}

// due is a scheduled deletion whose time has come.
type due struct {
	deletion     peer.AttemptID
	at           time.Time
	participants []int32
}

// CarryOutDue carries out the scheduled deletions whose time has come. One that fails stays scheduled, and
// does not keep others: it may be blocked after a restore, or reach a deployment that does not answer, which is
// not asked again for the next one.
func (s *Deleter) CarryOutDue(ctx context.Context) error {
	var failed []error
	silent := map[int32]error{}
	for last := (due{}); ; {
		rows, err := s.Pool.Query(ctx, selectDueSQL, last.at, last.deletion, s.Now())
		if err != nil {
			return fmt.Errorf("read scheduled deletions: %w", err)
		}
		all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d due, err error) {
			return d, row.Scan(&d.deletion, &d.at, &d.participants)
		})
		if err != nil {
			return fmt.Errorf("read scheduled deletions: %w", err)
		}
		if len(all) == 0 {
			return errors.Join(failed...)
		}
		for _, last = range all {
			err := s.carryOut(ctx, last, silent)
			if err != nil {
				tag, noted := s.Pool.Exec(ctx, failedSQL, last.deletion, err.Error())
				if noted != nil {
					return noted
				}
				if tag.RowsAffected() > 0 { // otherwise it was undeleted meanwhile
					failed = append(failed, fmt.Errorf("carry out a scheduled deletion: %w", err))
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
}

// carryOut carries a scheduled deletion out, unless it reaches a deployment that was silent before. It adds the
// deployments that do not answer.
func (s *Deleter) carryOut(ctx context.Context, d due, silent map[int32]error) error {
	for _, at := range d.participants {
		if err := silent[at]; err != nil {
			return err
		}
	}
	err := s.carryOutScheduled(ctx, d.deletion)
	if away := (*peer.UnavailableError)(nil); errors.As(err, &away) {
		for _, of := range away.Deployments {
			if id, unnamed := s.Names.Deployment(ctx, of); unnamed == nil {
				silent[id] = err
			}
		}
	}
	return err
}

// carryOutScheduled carries a scheduled deletion out. When none of its roots is left it is over, and its
// other members are opened.
func (s *Deleter) carryOutScheduled(ctx context.Context, id peer.AttemptID) error {
	reqs, err := s.rootsOf(ctx, id)
	if err != nil {
		return err
	}
	if len(reqs) == 0 {
		return s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
			return s.abortScheduled(ctx, tx, []peer.AttemptID{id})
		})
	}
	_, err = s.delete(ctx, &deletion{scheduled: id}, reqs)
	return err
}

// rootsOf returns the requests that carry out a scheduled deletion for the person who asked for it.
func (s *Deleter) rootsOf(ctx context.Context, id peer.AttemptID) (reqs []DeleteRequest, err error) {
	rows, err := s.Pool.Query(ctx, selectScheduledRootsSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read a scheduled deletion: %w", err)
	}
	var req DeleteRequest
	var call *uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&req.Name, &req.UID, &req.Actor, &call}, func() error {
		req.Call = uuid.Nil
		if call != nil {
			req.Call = *call
		}
		req.AllowMissing, req.MaxRemovals, req.scheduled = true, anyNumber, true
		reqs = append(reqs, req)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read a scheduled deletion: %w", err)
	}
	return reqs, nil
}

// Scheduled is a scheduled deletion that has hidden resources here.
type Scheduled struct {
	Root      string // full name of the first resource that it names
	DeletedAt time.Time
	PurgeAt   time.Time
	Actor     string // known in the deployment of the root
	Reason    string // why it could not be carried out; empty: it was not tried
	Resources int64  // here
}

const selectScheduledHereSQL = `
SELECT '//' || d.service || '/' || d.region || '/' || f.root, f.deleted_at, f.purge_at, COALESCE(f.actor, ''), COALESCE(f.reason, ''),
    (SELECT count(*) FROM dbcontroller.frozen m WHERE m.deletion = f.deletion), count(*) OVER ()
FROM dbcontroller.freeze f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE f.purge_at IS NOT NULL AND NOT f.committed AND EXISTS (SELECT FROM dbcontroller.frozen m WHERE m.deletion = f.deletion)
ORDER BY f.purge_at, f.deletion LIMIT $1`

// ListScheduled returns the scheduled deletions that have hidden resources here, the next one to be carried
// out first, and the number of all.
func (s *Deleter) ListScheduled(ctx context.Context, limit int) (all []Scheduled, total int64, err error) {
	rows, err := s.Pool.Query(ctx, selectScheduledHereSQL, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("read scheduled deletions: %w", err)
	}
	var d Scheduled
	_, err = pgx.ForEachRow(rows, []any{&d.Root, &d.DeletedAt, &d.PurgeAt, &d.Actor, &d.Reason, &d.Resources, &total},
		func() error {
			all = append(all, d)
			return nil
		})
	if err != nil {
		return nil, 0, fmt.Errorf("read scheduled deletions: %w", err)
	}
	return all, total, nil
}

// scheduledOf is a scheduled deletion that has a resource as a member.
type scheduledOf struct {
	deletion peer.AttemptID
	names    bool   // it names the resource, here
	root     string // the full name of the first resource that it names
}

// scheduled returns the scheduled deletions that name a resource. It fails with ErrNotFound, with
// ErrDeleting, with ErrExists when the resource is not hidden, and with ErrDeleted when none of its deletions
// names it.
func (s *Deleter) scheduled(ctx context.Context, q db.Querier, kind int32, name string,
	uid uuid.UUID,
) (all []scheduledOf, err error) {
	rows, err := q.Query(ctx, selectScheduledOfSQL, kind, name)
	if err != nil {
		return nil, fmt.Errorf("read the deletions of %s: %w", name, err)
	}
	var id int64
	var found uuid.UUID
	var state peer.State
	var hidden bool
	var deletion *peer.AttemptID
	var names *bool
	var root *string
	_, err = pgx.ForEachRow(rows, []any{&id, &found, &state, &hidden, &deletion, &names, &root}, func() error {
		if deletion != nil {
			all = append(all, scheduledOf{deletion: *deletion, names: *names, root: *root})
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the deletions of %s: %w", name, err)
	case id == 0 || uid != uuid.Nil && uid != found:
		return nil, fmt.Errorf("%s: %w", name, peer.ErrNotFound)
	case state == peer.Deleting:
		return nil, fmt.Errorf("%s: %w", name, peer.ErrDeleting)
	case !hidden || len(all) == 0:
		return nil, fmt.Errorf("%s is not deleted: it %w", name, peer.ErrExists)
	}
	named := slices.DeleteFunc(slices.Clone(all), func(d scheduledOf) bool { return !d.names })
	if len(named) == 0 {
		return nil, &deletedWithError{name, all[0].root}
	}
	return named, nil
}

// carryOutNow carries out the scheduled deletion of the first of some resources that has one, with the
// preconditions of the requests. All resources that the deletion names have to be among them: another person
// may have the right to delete the others.
func (s *Deleter) carryOutNow(ctx context.Context, d *deletion, reqs []DeleteRequest) ([]peer.DeleteResult, error) {
	for _, w := range d.wanted {
		all, err := s.scheduled(ctx, s.Pool, w.kindID, w.Name, w.UID)
		if errors.Is(err, peer.ErrNotFound) || errors.Is(err, peer.ErrExists) || errors.Is(err, peer.ErrDeleting) {
			continue // another one is hidden
		}
		if err != nil {
			return nil, err
		}
		roots, err := s.rootsOf(ctx, all[0].deletion)
		if err != nil {
			return nil, err
		}
		named := slices.Clone(reqs)
		for _, root := range roots {
			i := slices.IndexFunc(named, func(r DeleteRequest) bool { return r.Name == root.Name })
			if i < 0 {
				return nil, &deletedTogetherError{w.Name, root.Name}
			}
			named[i].scheduled = true
		}
		return s.delete(ctx, &deletion{
			scheduled: all[0].deletion, request: d.request, inTx: d.inTx, last: d.last,
			within: d.within,
		}, named)
	}
	return nil, fmt.Errorf("%s: %w: it was undeleted, or carried out", d.name(), peer.ErrAborted)
}

// Undelete ends the scheduled deletion that names a resource: all its members, in all deployments, are as
// they were. It returns the resource. A non-zero uid has to match the resource's. It fails with ErrNotFound;
// with ErrExists when the resource is not deleted; with ErrDeleting when the deletion is carried out already;
// and with ErrDeleted when another resource has to be undeleted.
func (s *Deleter) Undelete(ctx context.Context, name string, uid uuid.UUID) (*peer.Resource, error) {
	kind, err := s.gate.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	var out *peer.Resource
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		all, err := s.scheduled(ctx, tx, kind, name, uid)
		if err != nil {
			return err
		}
		ids := make([]peer.AttemptID, len(all))
		for i, d := range all {
			ids[i] = d.deletion
		}
		if err := s.abortScheduled(ctx, tx, ids); err != nil {
			return err
		}
		out, err = read.LookUp(ctx, s.DB, tx, kind, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// UndeleteLost undeletes a deletion again, whose undelete the database has lost. One that is decided stays
// so.
func (s *Deleter) UndeleteLost(ctx context.Context, deletion peer.AttemptID) error {
	err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		return s.abortScheduled(ctx, tx, []peer.AttemptID{deletion})
	})
	if errors.Is(err, errNotScheduled) {
		return nil
	}
	return err
}

// deletedWithError is ErrDeleted of a resource that its deletion does not name.
type deletedWithError struct{ name, root string }

func (e *deletedWithError) Error() string {
	return fmt.Sprintf("%s was deleted with %s, and comes back or goes with it: name that one", e.name, e.root)
}

func (e *deletedWithError) Unwrap() error { return peer.ErrDeleted }

// deletedTogetherError is ErrDeleted of a resource that was named together with another one.
type deletedTogetherError struct{ name, other string }

func (e *deletedTogetherError) Error() string {
	return fmt.Sprintf("%s was deleted together with %s: name all of them", e.name, e.other)
}

func (e *deletedTogetherError) Unwrap() error { return peer.ErrDeleted }

var errNotScheduled = fmt.Errorf("%w: it was undeleted, or is carried out", peer.ErrAborted)

// abortScheduled decides scheduled deletions ABORTED, opens their members here, and adds the releases of the
// others as work: they ask for no decision.
func (s *Deleter) abortScheduled(ctx context.Context, tx pgx.Tx, ids []peer.AttemptID) error {
	if err := target.LockScheduled(ctx, tx, ids); err != nil { // before the attempts, as a deletion that is carried out
		return err
	}
	rows, err := tx.Query(ctx, abortScheduledSQL, ids)
	if err != nil {
		return err
	}
	aborted, err := pgx.CollectRows(rows, pgx.RowTo[peer.AttemptID])
	if err != nil {
		return err
	}
	if len(aborted) < len(ids) {
		return errNotScheduled
	}
	for _, id := range ids {
		if _, err := tx.Exec(ctx, releaseScheduledSQL, int16(id[15])%schema.RingSize, id); err != nil {
			return err
		}
	}
	return s.target.Thaw(ctx, tx, s.SelfID, ids)
}

var releaseScheduledSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT {release}, $1, d, f.deletion FROM dbcontroller.freeze f, unnest(f.participants) AS d WHERE f.deletion = $2`)
