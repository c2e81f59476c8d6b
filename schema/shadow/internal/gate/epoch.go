package gate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// EpochNowSQL selects from a row m of meta: the epoch, or null when the server is not the one on which the
// epoch began.
const EpochNowSQL = feed.EpochSQL

const (
	epochColumns = `m.epoch, COALESCE(m.server, ''), ` + feed.ServerSQL + `, ` + feed.TimelineSQL + `, m.awaiting, m.database_id,
    m.started_at IS NOT DISTINCT FROM pg_postmaster_start_time(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    (SELECT last_value FROM dbcontroller.mark), pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() -- in this order
`
	readEpochSQL = `
SELECT ` + epochColumns + `FROM dbcontroller.meta m`
	lockEpochSQL = readEpochSQL + ` FOR UPDATE`

	// A version switch may be lost. The jump of the generation makes every process compare its version again.
	// The last six digits stay: they count the switches.
	beginEpochSQL = `
WITH noted AS (
    INSERT INTO dbcontroller.epoch (id, server) VALUES ($1, $2)
), again AS ( -- rights of the former epoch do not count: also those that this deployment has given itself are looked for by a walk
    UPDATE dbcontroller.attachment SET walked = false WHERE ready
)
UPDATE dbcontroller.meta
SET epoch = $1, server = $2, timeline = $3, awaiting = $4, started_at = pg_postmaster_start_time(), started_mark = (SELECT last_value FROM dbcontroller.mark), positions_until = NULL,
    generation = CASE WHEN $4 THEN greatest(generation + 1000000, $5::bigint + generation % 1000000) ELSE generation END`

	// The stored times are of the former server's clock, which may have been hours ahead.
	boundTimesSQL = `
WITH closed AS (
    DELETE FROM dbcontroller.closing
), freezes AS ( -- the coordinators are asked, and for members of committed deletions whether their mark may still come
    UPDATE dbcontroller.freeze SET expires_at = clock_timestamp()
), members AS (
    UPDATE dbcontroller.member SET expires_at = clock_timestamp() + interval '15 s' WHERE expires_at > clock_timestamp() + interval '15 s'
)
UPDATE dbcontroller.blockade SET expires_at = clock_timestamp() + $1::interval WHERE expires_at > clock_timestamp() + $1::interval`

	// Skip the numbers that lost transactions may have taken: readers take the greater number for the newer
	// row. $1 grows from epoch to epoch, also between two restores of one backup, each of which finds the
	// same numbers in it. Logical replication copies rows without their sequences: $1 is beyond all large
	// numbers, and the small ones go on behind the rows.
	skipNumbersSQL = `
SELECT setval(seqrelid, greatest(nextval(seqrelid) + 1000000000, $1::bigint))
FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid WHERE c.relnamespace = 'dbcontroller'::regnamespace AND seqtypid = 'bigint'::regtype
UNION ALL
SELECT setval(s, greatest(nextval(s), greatest_id) + 100000) FROM (VALUES
    (pg_get_serial_sequence('dbcontroller.deployment', 'id')::regclass, (SELECT max(id) FROM dbcontroller.deployment)),
    (pg_get_serial_sequence('dbcontroller.kind', 'id')::regclass, (SELECT max(id) FROM dbcontroller.kind)),
    (pg_get_serial_sequence('dbcontroller.field', 'id')::regclass, (SELECT max(id) FROM dbcontroller.field))
) AS numbered (s, greatest_id)`

	// Ids of transactions belong to a server, and a dump takes rows to another one, which may have used
	// fewer: then no position has their ids, and they are new to every watch. Rows that are kept until they
	// are done get the id of this transaction. Changes are kept for the tokens of the former epoch, which are
	// void. The ids of running transactions count as well: another transaction may have had the same before.
	ownIDsSQL = `
WITH server AS (
    SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest
), notices AS (
    UPDATE dbcontroller.notice SET xid = DEFAULT FROM server WHERE xid >= oldest
), works AS (
    UPDATE dbcontroller.work SET xid = DEFAULT FROM server WHERE xid >= oldest
), changes AS (
    DELETE FROM dbcontroller.change USING server WHERE xid >= oldest
)
UPDATE dbcontroller.meta SET compacted = '0'`
)

// NoticeEpoch compares the server with the server on which the stored epoch began, and the last value of the
// sequence mark with the greatest value that this process has seen. It begins a new epoch when the server is
// another one or its database an older copy, unless another process has begun one. It reports whether
// recovery waits for the list of deployments that may refer to resources here (Recover). It is a look at what
// others change, too.
func (s *Gate) NoticeEpoch(ctx context.Context) (awaiting bool, err error) {
	ctx = postgres.InControl(ctx)
	n := s.beginLook()
	observed, was := &n.observedEpoch, n.was
	if s.Cfg.Guest {
		err = observed.scan(s.Pool.QueryRow(ctx, readEpochSQL))
	} else {
		err = s.Pool.QueryRow(ctx, lookSQL, s.Tuning.Load().TentativeTTL).Scan(n.columns()...)
	}
	if err == nil {
		err = s.sameDatabase(observed.database)
	}
	if err == nil && !s.Cfg.Guest {
		s.tell(n)
	}
	switch {
	case err != nil || !s.hasEnded(observed):
	case s.Cfg.Guest:
		err = s.RecoveringSelf()
	default:
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return s.beginEpoch(ctx, tx, observed) })
	}
	if err == nil && !observed.noticed && !s.Cfg.Guest {
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return s.noticeStart(ctx, tx, observed) })
	}
	if err == nil && observed.mark%markStep != 0 && !s.Cfg.Guest {
		_, err = s.Pool.Exec(ctx, stepMarkSQL)
	}
	if err != nil {
		return false, fmt.Errorf("notice the database's epoch: %w", err)
	}
	if was != nil && *was != *observed.epoch {
		// Cached numbers may belong to lost rows; a transaction that uses one compares the epochs.
		s.Names.Forget()
		s.NotedTargets.Clear()
		s.flagged.Clear()
		if err := s.LoadDecommissioned(ctx); err != nil {
			return false, err
		}
	}
	s.noted(n)
	return observed.awaiting, nil
}

// sameDatabase fails when the pool reaches another database than at the start of this process. The caller
// then keeps its epoch, so that no transaction over the other database decides.
func (s *Gate) sameDatabase(live uuid.UUID) error {
	if !s.database.CompareAndSwap(nil, &live) && *s.database.Load() != live {
		return fmt.Errorf(
			"another database (%s) has replaced the database with which this process started (%s): connect it to the right one, or restore a backup of that", live, s.Database())
	}
	return nil
}

// ForgetServer makes the next NoticeEpoch begin a new epoch (--restored): a process that has just started
// cannot distinguish a restored copy of the server's files from the original.
func (s *Gate) ForgetServer(ctx context.Context) error {
	if _, err := s.Pool.Exec(ctx, `UPDATE dbcontroller.meta SET server = '', timeline = ''`); err != nil {
		return fmt.Errorf("begin a new epoch: %w", err)
	}
	return nil
}

// observedEpoch is the stored epoch with its server, the present server, and the values that this process has
// seen before.
type observedEpoch struct {
	was  *uuid.UUID
	seen int64

	epoch                  *uuid.UUID // null before the first one
	server, live, timeline string
	awaiting               bool
	database               uuid.UUID
	noticed                bool  // the start of the server is stored
	started                int64 // when, in microseconds since 1970
	mark                   int64 // the last value taken
	flushed                bool  // it is on disk: no crash can lose it
}

// columns returns the scan targets of epochColumns.
func (n *observedEpoch) columns() []any {
	return []any{
		&n.epoch, &n.server, &n.live, &n.timeline, &n.awaiting, &n.database, &n.noticed, &n.started, &n.mark,
		&n.flushed,
	}
}

func (n *observedEpoch) scan(row pgx.Row) error { return row.Scan(n.columns()...) }

// hasEnded reports whether a new epoch has to begin: the server is another one, or an older copy has taken
// the place of the database. A copy is revealed by an earlier epoch than this process has seen, or by a
// smaller mark in the same epoch.
func (s *Gate) hasEnded(n *observedEpoch) bool {
	if n.server != n.live {
		return true
	}
	if n.was == nil || n.epoch == nil {
		return false
	}
	later := bytes.Compare(n.was[:], n.epoch[:])
	return later > 0 || later == 0 && n.mark < n.seen || s.wentBackIn(*n.epoch)
}

func (s *Gate) beginEpoch(ctx context.Context, tx pgx.Tx, observed *observedEpoch) error {
	if err := observed.scan(tx.QueryRow(ctx, lockEpochSQL)); err != nil || !s.hasEnded(observed) {
		return err // another process was first
	}
	s.outdone.Clear()
	return s.begin(ctx, tx, observed, peer.EpochAfter(s.Now(), observed.was, observed.epoch))
}

// begin begins an epoch. The row of meta is locked.
func (s *Gate) begin(ctx context.Context, tx pgx.Tx, observed *observedEpoch, epoch uuid.UUID) error {
	if observed.awaiting = observed.epoch != nil; observed.awaiting {
		if _, err := tx.Exec(ctx, skipNumbersSQL, peer.FirstNumber(epoch)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, ownIDsSQL); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, boundTimesSQL, s.Tuning.Load().TentativeTTL); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, forgetDatabasesSQL); err != nil {
			return err
		}
		s.Log.Warn(
			"the database was restored or failed over; nothing is deleted until other deployments have confirmed their references",
			zap.String("was", observed.server), zap.String("is", observed.live), requestid.Field(ctx))
	}
	observed.epoch, observed.noticed = &epoch, true
	_, err := tx.Exec(ctx, beginEpochSQL, epoch, observed.live, observed.timeline, observed.awaiting,
		1000*peer.FirstNumber(epoch))
	return err
}

// EpochOf returns the epoch of the database within tx. It fails with *UnavailableError when the server has
// changed and the new epoch is not noticed yet.
func (s *Gate) EpochOf(ctx context.Context, tx pgx.Tx) (uuid.UUID, error) {
	present := s.Present(tx)
	if err := tx.QueryRow(ctx, `SELECT `+PresentSQL+` FROM dbcontroller.meta m`).
		Scan(present.Columns()...); err != nil {
		return uuid.Nil, err
	}
	if epoch := present.epoch(); epoch != nil {
		return *epoch, nil
	}
	return uuid.Nil, s.RecoveringSelf()
}

// laterThan returns an id for an epoch that is later than another one.
func (s *Gate) laterThan(known uuid.UUID) (uuid.UUID, error) {
	if known.Version() != 7 || peer.AttemptTime(known).After(s.Now().Add(peer.MaxEpochAhead)) {
		return uuid.Nil, fmt.Errorf("%s is not an epoch of the database: its time is %s", known,
			peer.AttemptTime(known).UTC())
	}
	return peer.EpochAfter(s.Now(), &known), nil
}

// OutdoEpoch begins an epoch that is later than known, an epoch of this database that another deployment
// knows. The database has lost known: it is an older copy, or the clock went back since. A deployment is
// believed once until an epoch begins for another reason: it learns no epoch later than this deployment's,
// and a hostile one could go on for ever.
func (s *Gate) OutdoEpoch(ctx context.Context, by schema.DeploymentID, known uuid.UUID) error {
	ctx = postgres.InControl(ctx)
	greater, err := s.laterThan(known)
	if err != nil {
		return err
	}
	if _, again := s.outdone.LoadOrStore(by, true); again {
		return fmt.Errorf(
			"%s has reported a later epoch than the one sent to it, for the second time: to stop waiting for it, use db-controller force-release --comparison-of", by)
	}
	var lost bool
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		var observed observedEpoch
		err := observed.scan(tx.QueryRow(ctx, lockEpochSQL))
		lost = err == nil && observed.epoch != nil && bytes.Compare(observed.epoch[:], known[:]) < 0
		if !lost {
			return err // another process was first, and this one may not have noticed
		}
		return s.begin(ctx, tx, &observed, greater)
	})
	if err != nil || !lost {
		s.outdone.Delete(by)
	}
	if err != nil {
		return fmt.Errorf("begin a later epoch than the one that another deployment has reported: %w", err)
	}
	s.SignalEpochChanged()
	return nil
}

// Announcement returns what a deployment is told: it fails as EpochToAnnounce does.
func (s *Gate) Announcement(ctx context.Context, to schema.DeploymentID) (told peer.Announcement, err error) {
	id, err := s.Names.Deployment(ctx, to)
	if err != nil {
		return told, err
	}
	if told.Database, err = s.knownDatabase(ctx, id); err != nil {
		return told, fmt.Errorf("read the database of %s: %w", to, err)
	}
	told.Epoch, err = s.EpochToAnnounce(ctx)
	return told, err
}

// EpochToAnnounce returns the present epoch when its recovery has begun; before, it fails with
// *UnavailableError, as in a process that has not noticed the epoch. A deployment that is told compares once,
// and is waited for from the beginning of the recovery on.
func (s *Gate) EpochToAnnounce(ctx context.Context) (uuid.UUID, error) {
	var epoch *uuid.UUID
	var awaiting bool
	err := s.Pool.QueryRow(ctx, `SELECT `+EpochNowSQL+`, m.awaiting FROM dbcontroller.meta m`).Scan(&epoch, &awaiting)
	switch {
	case err != nil:
		return uuid.Nil, fmt.Errorf("read the epoch: %w", err)
	case epoch == nil || *epoch != s.PresentEpoch():
		return uuid.Nil, s.RecoveringSelf()
	case awaiting:
		return uuid.Nil, &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: peer.ErrRecovering}
	}
	return *epoch, nil
}

const (
	// A database in its first epoch has lost nothing.
	lockAwaitingSQL = `SELECT awaiting, ` + mayHaveLostSQL + ` FROM dbcontroller.meta m FOR UPDATE`
	mayHaveLostSQL  = `EXISTS (SELECT FROM dbcontroller.epoch e WHERE e.id <> m.epoch)`

	// The deployments that may refer to resources here: the deployments of the registry's list whose service
	// imports this one, or that have ever referred to resources here, under a version that is not described
	// any more; and the deployments with rows here, which the registry may have lost. Their blockades here
	// may be lost, so that each of them has to compare.
	unconfirmedSQL = `
WITH who AS (
    SELECT id FROM dbcontroller.deployment d, dbcontroller.meta m WHERE id <> $2 AND d.counted_in IS DISTINCT FROM m.epoch
        AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)
        AND (
            id = ANY ($1) OR m.awaiting AND (
                d.referred AND id = ANY ($3)
                OR EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = d.id)
                OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = d.id)
                OR EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = d.id)
            )
        )
)
UPDATE dbcontroller.deployment d SET unconfirmed = true, referred = true FROM who WHERE who.id = d.id`
)

var (
	forgetPassesSQL = db.Codes(
		`DELETE FROM dbcontroller.work WHERE action IN ({announce_epoch}, {confirm_again}, {verify_blockades})`)

	// Once an epoch, for each deployment: announce the epoch, and verify its blockades here. The kinds of an
	// answer in an earlier epoch end with the number of that epoch (MarkAnnounced).
	recoverWorkSQL = db.Codes(`
WITH counted AS (
    UPDATE dbcontroller.deployment d SET counted_in = m.epoch, unconfirmed_kinds = NULL FROM dbcontroller.meta m
    WHERE d.id <> $2 AND d.counted_in IS DISTINCT FROM m.epoch
        AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)
        AND (d.id = ANY ($1) OR d.unconfirmed OR d.pointed_to)
    RETURNING d.id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor)
SELECT a, id % $3::int, id, '' FROM counted, unnest(ARRAY [{announce_epoch}, {verify_blockades}]) AS a`)
)

// Recover starts the recovery of a new epoch with the deployments of an environment. The epoch is announced
// to all of them. The recovery waits for the deployments that may refer to resources here: nothing is deleted
// here until they have confirmed their references. A later call, in any epoch but the first, adds deployments
// that have appeared since (the registry may have lost some as well) and changes nothing for the others.
func (s *Gate) Recover(ctx context.Context, env *schema.Environment) error {
	var referring, all []int32
	for _, d := range env.Deployments {
		if d.NeverRan() {
			continue
		}
		id, err := s.Names.Deployment(ctx, d.DeploymentID)
		if err != nil {
			return err
		}
		if all = append(all, id); env.MayRefer(d.Service, s.Self.Service) {
			referring = append(referring, id)
		}
	}
	err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		// Shared version lock: a concurrent Decommission waits for us or is already visible.
		if _, err := tx.Exec(ctx, ShareVersionSQL, VersionLock); err != nil {
			return err
		}
		var awaiting, mayHaveLost bool
		if err := tx.QueryRow(ctx, lockAwaitingSQL).Scan(&awaiting, &mayHaveLost); err != nil || !mayHaveLost {
			return err
		}
		b := &pgx.Batch{}
		if awaiting {
			b.Queue(forgetPassesSQL)
			b.Queue(scheduleAllAgainSQL, schema.RingSize, db.ScheduledDeletion)
		}
		b.Queue(unconfirmedSQL, referring, s.SelfID, all)
		b.Queue(recoverWorkSQL, all, s.SelfID, schema.RingSize)
		b.Queue(`UPDATE dbcontroller.meta SET awaiting = false`)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("recover after a failover: %w", err)
	}
	s.environment.Store(env)
	return nil
}

const (
	// Messages of earlier epochs than the stored one are refused. The row lock makes RecordPeerEpoch wait for
	// the messages in flight, so that none of them changes rows that the new epoch has compared.
	knownEpochSQL = `
SELECT d.epoch IS NULL OR d.epoch <= $2, ` + PresentSQL + `
FROM dbcontroller.deployment d, dbcontroller.meta m WHERE d.id = $1 FOR SHARE OF d`

	// Deletes wait only for a deployment that has ever referred to resources here: only in its database can a
	// reference be that was dropped. They wait if they are of a kind to which it refers in that epoch ($3): a
	// reference that its database did not have when the epoch began is established here first.
	learnEpochSQL = `
WITH before AS (
    SELECT epoch FROM dbcontroller.deployment WHERE id = $1
)
UPDATE dbcontroller.deployment d
SET epoch = GREATEST(d.epoch, $2), uncompared = d.uncompared OR d.referred AND (d.epoch IS NULL OR d.epoch < $2),
    uncompared_kinds = CASE WHEN d.epoch IS NULL OR d.epoch < $2 THEN $3 ELSE d.uncompared_kinds END
FROM before WHERE d.id = $1 RETURNING before.epoch IS DISTINCT FROM d.epoch, d.epoch`

	// The database may have lost the decisions on its atomic deletions: it is asked for each. It is not asked
	// for one that is known to be COMMITTED, which it may have forgotten since: the deployments of the targets
	// are asked whether the marks of the members still come.
	askOfSQL = `UPDATE dbcontroller.freeze SET expires_at = now() WHERE deployment_id = $1`
)

// Compare the references to the deployment (confirm again), and its blockades here (verify blockades), which
// begins by telling it again of the deletions on which it may have lost its work.
var peerEpochWorkSQL = db.Codes(`
WITH old AS (
    DELETE FROM dbcontroller.work WHERE action IN ({confirm_again}, {verify_blockades}) AND deployment_id = $1
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor) SELECT a, $1 % $2::int, $1, '' FROM unnest(ARRAY [{announce_epoch}, {confirm_again}, {verify_blockades}]) AS a
WHERE a <> {announce_epoch} OR EXISTS (SELECT FROM dbcontroller.deployment WHERE id = $1 AND unconfirmed)`)

// The deployment may have lost that its members of scheduled deletions are to be hidden.
var scheduleAgainSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, established)
SELECT {confirm}, $1 % $2::int, $1, f.deletion, $3 FROM dbcontroller.freeze f WHERE $1 = ANY (f.participants) AND f.purge_at IS NOT NULL AND NOT f.committed`)

// This database may have lost that they were undeleted.
var scheduleAllAgainSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, established)
SELECT {confirm}, d % $1::int, d, f.deletion, $2 FROM dbcontroller.freeze f, unnest(f.participants) AS d
WHERE f.purge_at IS NOT NULL AND NOT f.committed AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d)`)

// PeerEpoch returns the greatest epoch that was recorded of a deployment, which calls; zero: none was.
func (s *Gate) PeerEpoch(ctx context.Context, of schema.DeploymentID) (epoch uuid.UUID, err error) {
	if err := s.CheckCaller(ctx, of); err != nil {
		return epoch, err
	}
	err = s.Pool.QueryRow(ctx,
		`SELECT epoch FROM dbcontroller.deployment WHERE service = $1 AND region = $2 AND epoch IS NOT NULL`,
		of.Service, of.Region).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, nil
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read the epoch of %s: %w", of, err)
	}
	return epoch, nil
}

// RecordPeerEpoch records that another deployment's database has begun a new epoch, in which it refers to
// some kinds of resources here. From its commit on, blockades established there before and messages of
// earlier epochs count for nothing; writes that may rely on them hold the version lock shared until they
// commit. The greater epoch counts, in any order of arrival; it is returned.
func (s *Gate) RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID,
	refersTo peer.TargetKinds,
) (known uuid.UUID, err error) {
	if err := s.CheckCaller(ctx, from); err != nil {
		return known, err
	}
	id, err := s.Names.Deployment(ctx, from)
	if err != nil {
		return known, err
	}
	kinds, err := s.waitingKinds(ctx, refersTo)
	if err != nil {
		return known, err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, LockVersionSQL, VersionLock); err != nil {
			return err
		}
		var moved, decommissioned bool
		if err := tx.QueryRow(ctx, IsDecommissionedSQL, id).Scan(&decommissioned); err != nil {
			return err
		}
		if decommissioned { // nothing may wait for a deployment whose calls are refused
			return peer.ErrDecommissioned
		}
		if err := tx.QueryRow(ctx, learnEpochSQL, id, epoch, kinds).Scan(&moved, &known); err != nil || !moved {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(askOfSQL, id)
		b.Queue(peerEpochWorkSQL, id, schema.RingSize)
		b.Queue(scheduleAgainSQL, id, schema.RingSize, db.ScheduledDeletion)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return known, fmt.Errorf("record the epoch of %s: %w", from, err)
	}
	return known, nil
}

// $2 is the epoch of this database in which the deployment compared, $3 the epoch of its own database.
const markConfirmedSQL = `
UPDATE dbcontroller.deployment d SET unconfirmed = d.unconfirmed AND m.epoch <> $2, uncompared = d.uncompared AND d.epoch <> $3
FROM dbcontroller.meta m WHERE d.id = $1 AND (d.unconfirmed OR d.uncompared)`

// The kinds ($3) are those of an answer in the epoch $4, from the database $5 of the deployment: another one
// may refer to others.
var markAnnouncedSQL = db.Codes(`
WITH kinds AS (
    UPDATE dbcontroller.deployment SET unconfirmed_kinds = $3 WHERE id = $1 AND unconfirmed AND counted_in = $4 AND database_id = $5
), done AS (
    DELETE FROM dbcontroller.work WHERE action = {announce_epoch} AND deployment_id = $1 RETURNING deployment_id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor) SELECT {confirm_again}, deployment_id % $2::int, deployment_id, '' FROM done`)

// MarkAnnounced replaces the work to announce the present epoch to a deployment, which has stored it and
// refuses earlier messages, by the work to compare. Comparing earlier would not be final: a release in flight
// could still remove a blockade. From then on only deletions of the kinds to which the deployment refers wait
// for it.
func (s *Gate) MarkAnnounced(ctx context.Context, to schema.DeploymentID, told peer.Announcement,
	refersTo peer.TargetKinds,
) error {
	id, err := s.Names.Deployment(ctx, to)
	if err != nil {
		return err
	}
	kinds, err := s.waitingKinds(ctx, refersTo)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		present, err := s.EpochOf(ctx, tx)
		if err == nil && present != told.Epoch {
			err = s.RecoveringSelf() // another process has noticed a later one
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, markAnnouncedSQL, id, schema.RingSize, kinds, told.Epoch, told.Database)
		return err
	})
	if err != nil {
		return fmt.Errorf("record that %s knows the epoch: %w", to, err)
	}
	return nil
}

// TellsAgain is the beginning of the cursor of a pass over blockades that has not told all deletions again
// yet; an empty cursor is that of a pass which has not begun.
const TellsAgain = "tell "

// Of a comparison in the present epochs: one in an earlier epoch has no effect.
var tellingSQL = db.Codes(`
SELECT EXISTS (
    SELECT FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id, dbcontroller.meta m
    WHERE w.action = {verify_blockades} AND w.deployment_id = $1 AND (w.cursor = '' OR starts_with(w.cursor, $2))
        AND (d.unconfirmed AND m.epoch = $3 OR d.uncompared AND d.epoch = $4)
)`)

var errTelling = errors.New("its deletions under way have not all been sent again")

// MarkReferencesConfirmed records that a deployment has compared its references to resources here, and
// established the lost ones again. epoch is the epoch of this database in which it compared, selfEpoch the
// epoch of its own database. Until the deployment was told again of all deletions it fails with
// *UnavailableError: afterwards their targets can be removed. An epoch that is later than the present one,
// which this database has lost, or somebody else has announced in its name, is outdone.
func (s *Gate) MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
	here := s.PresentEpoch()
	id, err := s.Names.Deployment(ctx, by)
	if err != nil {
		return err
	}
	if bytes.Compare(epoch[:], here[:]) > 0 {
		return cmp.Or(s.OutdoEpoch(ctx, by, epoch), s.RecoveringSelf())
	}
	var confirmed bool
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		present, err := s.EpochOf(ctx, tx)
		if err == nil && present != here { // the id may belong to another deployment in this epoch
			err = s.RecoveringSelf()
		}
		if err != nil {
			return err
		}
		var telling bool
		if err := tx.QueryRow(ctx, tellingSQL, id, TellsAgain, epoch, selfEpoch).Scan(&telling); err != nil {
			return err
		}
		if telling {
			return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.Self}, Err: errTelling}
		}
		tag, err := tx.Exec(ctx, markConfirmedSQL, id, epoch, selfEpoch)
		confirmed = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return fmt.Errorf("record that %s has confirmed its references: %w", by, err)
	}
	if confirmed {
		s.Log.Info("references are confirmed after the failover", zap.Stringer("by", by), requestid.Field(ctx))
	}
	return nil
}
