package shadow

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

// An epoch of a database begins when it may have lost commits: a standby was promoted, a backup restored. What was said
// to and by other deployments before may not be what the database knows. So when it is noticed
//   - attempts of the old epoch cannot commit any more, and messages of it are refused by whom was told of the new one;
//   - nothing is removed or marked until every deployment that may refer to resources here has compared its references
//     with what is known here, and has established again what was lost;
//   - what is referred to from here, and what blocks here, is compared as well.

// ErrOldEpoch refuses a message that was made before its sender's database began a new epoch.
var ErrStaleEpoch = errors.New("this is of before a failover or a restore of the sender's database; " +
	"if it is not, that database was put back to before one: start its deployment with --restored")

// epochNowSQL is of a row m of meta: the epoch, or null when the server is not the one that it was noticed on.
const epochNowSQL = feed.EpochSQL

const (
	readEpochSQL = `
SELECT m.epoch, COALESCE(m.server, ''), ` + feed.ServerSQL + `, ` + feed.TimelineSQL + `, m.awaiting, m.database_id,
    (SELECT last_value FROM dbcontroller.mark), pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() -- in this order
FROM dbcontroller.meta m`
	lockEpochSQL = readEpochSQL + ` FOR UPDATE`

	// A switch of the version may be lost: whoever knows of it finds another generation, and switches again.
	beginEpochSQL = `
WITH noted AS (
    INSERT INTO dbcontroller.epoch (id, server) VALUES ($1, $2)
)
UPDATE dbcontroller.meta
SET epoch = $1, server = $2, timeline = $3, awaiting = $4, generation = generation + CASE WHEN $4 THEN 1000000 ELSE 0 END`

	// Times were told by another server's clock, which may be hours ahead of this one's.
	boundTimesSQL = `
WITH closed AS (
    DELETE FROM dbcontroller.closing
), members AS (
    UPDATE dbcontroller.member SET expires_at = clock_timestamp() + interval '15 s' WHERE expires_at > clock_timestamp() + interval '15 s'
)
UPDATE dbcontroller.blockade SET expires_at = clock_timestamp() + $1::interval WHERE expires_at > clock_timestamp() + $1::interval`

	// Numbers that were given out and lost are not given again: who saw them takes what is greater for newer.
	skipNumbersSQL = `
SELECT setval(s::regclass, nextval(s::regclass) + 1000000000) FROM unnest(ARRAY [
    'dbcontroller.object_id', 'dbcontroller.revision', 'dbcontroller.mark', pg_get_serial_sequence('dbcontroller.notice', 'seq'),
    pg_get_serial_sequence('dbcontroller.work', 'seq'), pg_get_serial_sequence('dbcontroller.change', 'seq')
]) AS s
UNION ALL
SELECT setval(s::regclass, nextval(s::regclass) + 100000) FROM unnest(ARRAY [
    pg_get_serial_sequence('dbcontroller.deployment', 'id'), pg_get_serial_sequence('dbcontroller.kind', 'id'),
    pg_get_serial_sequence('dbcontroller.field', 'id')
]) AS s`
)

// NoticeEpoch compares the server with the one that was noticed last, and its numbers with those that this process has seen.
// It begins a new epoch when the server is another one or its database a copy of before, unless another process has. It tells whether it has to be known who may refer to resources here (Recover).
func (s *Store) NoticeEpoch(ctx context.Context) (awaiting bool, err error) {
	was := s.epoch.Load()
	observed := observedEpoch{was: was, seen: s.rollback.seen.Load()}
	if err = observed.scan(s.pool.QueryRow(ctx, readEpochSQL)); err == nil {
		err = s.sameDatabase(observed.database)
	}
	if err == nil && s.hasEnded(&observed) {
		err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error { return s.beginEpoch(ctx, tx, &observed) })
	}
	if err != nil {
		return false, fmt.Errorf("notice the database's epoch: %w", err)
	}
	if observed.flushed {
		s.rollback.observe(observed.mark)
	}
	if was != nil && *was != *observed.epoch {
		// Numbers that were looked up before may be of rows that are lost: whoever uses one compares the epochs.
		s.names.forget()
		s.notedTargets.Clear()
		s.flagged.Clear()
		if err := s.loadDecommissioned(ctx); err != nil {
			return false, err
		}
	}
	s.epoch.Store(observed.epoch)
	s.checkedDatabases.Clear() // another process may have accepted another database
	return observed.awaiting, nil
}

// sameDatabase fails when another database has taken the place of the one that this process began with. Its epoch is not
// taken either, so that no transaction here decides anything.
func (s *Store) sameDatabase(live uuid.UUID) error {
	if !s.database.CompareAndSwap(nil, &live) && *s.database.Load() != live {
		return fmt.Errorf("another database (%s) has taken the place of the one that this process began with (%s): connect it to the right one, or restore a backup of that", live, s.Database())
	}
	return nil
}

// ForgetServer lets the next look begin a new epoch, on an operator's word: a process that has seen nothing cannot tell a
// restored copy of the server's files from the server as it was.
func (s *Store) ForgetServer(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, `UPDATE dbcontroller.meta SET server = '', timeline = ''`); err != nil {
		return fmt.Errorf("begin a new epoch: %w", err)
	}
	return nil
}

// noticed is the epoch as it is stored, and as the server says; and what this process has seen before.
type observedEpoch struct {
	was  *uuid.UUID
	seen int64

	epoch                  *uuid.UUID // null before the first one
	server, live, timeline string
	awaiting               bool
	database               uuid.UUID
	mark                   int64 // that was taken last
	flushed                bool  // no crash can forget it
}

func (n *observedEpoch) scan(row pgx.Row) error {
	return row.Scan(&n.epoch, &n.server, &n.live, &n.timeline, &n.awaiting, &n.database, &n.mark, &n.flushed)
}

// hasEnded reports whether a new epoch is to be begun. The server is another one; or files of before were put back, and nobody
// has said so: of before an epoch that this process has seen, or of before what it has seen in the present one.
func (s *Store) hasEnded(n *observedEpoch) bool {
	if n.server != n.live {
		return true
	}
	if n.was == nil || n.epoch == nil {
		return false
	}
	later := bytes.Compare(n.was[:], n.epoch[:])
	return later > 0 || later == 0 && n.mark < n.seen || s.rollback.hasEnded(*n.epoch)
}

func (s *Store) beginEpoch(ctx context.Context, tx pgx.Tx, observed *observedEpoch) error {
	if err := observed.scan(tx.QueryRow(ctx, lockEpochSQL)); err != nil || !s.hasEnded(observed) {
		return err // another process was first
	}
	if observed.awaiting = observed.epoch != nil; observed.awaiting {
		if _, err := tx.Exec(ctx, skipNumbersSQL); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, boundTimesSQL, s.cfg.TentativeTTL); err != nil {
			return err
		}
		s.log.Warn("the database was restored or failed over; nothing is deleted until other deployments have confirmed their references",
			zap.String("was", observed.server), zap.String("is", observed.live))
	}
	epoch := uuid.Must(uuid.NewV7())
	observed.epoch = &epoch
	_, err := tx.Exec(ctx, beginEpochSQL, epoch, observed.live, observed.timeline, observed.awaiting)
	return err
}

// epochOf is the epoch that a transaction works in. It fails while it is not noticed.
func (s *Store) epochOf(ctx context.Context, tx pgx.Tx) (uuid.UUID, error) {
	present := s.present(tx)
	if err := tx.QueryRow(ctx, `SELECT `+presentSQL+` FROM dbcontroller.meta m`).Scan(present.columns()...); err != nil {
		return uuid.Nil, err
	}
	if epoch := present.epoch(); epoch != nil {
		return *epoch, nil
	}
	return uuid.Nil, s.recoveringSelf()
}

const renameEpochSQL = `
WITH noted AS (
    UPDATE dbcontroller.epoch SET id = $2 WHERE id = $1
), counted AS (
    UPDATE dbcontroller.deployment SET counted_in = $2 WHERE counted_in = $1
)
UPDATE dbcontroller.meta SET epoch = $2 WHERE epoch = $1`

var announceAgainSQL = codes(`
WITH old AS (
    DELETE FROM dbcontroller.work WHERE action = {announce_epoch}
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor)
SELECT {announce_epoch}, id % $2::int, id, '' FROM dbcontroller.deployment d
WHERE id <> $1 AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)`)

// AdvanceEpoch gives the present epoch a greater name than one that another deployment was told: the clock went back since.
// Everybody is told again.
func (s *Store) AdvanceEpoch(ctx context.Context, known uuid.UUID) error {
	greater := uuid.Must(uuid.NewV7())
	if ms := attemptTime(known).UnixMilli() + 1; attemptTime(greater).UnixMilli() < ms {
		for i := 5; i >= 0; i-- {
			greater[i], ms = byte(ms), ms>>8
		}
	}
	present := s.PresentEpoch()
	err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, renameEpochSQL, present, greater)
		if err != nil || tag.RowsAffected() == 0 { // another process was first
			return err
		}
		_, err = tx.Exec(ctx, announceAgainSQL, s.selfID, schema.RingSize)
		return err
	})
	if err != nil {
		return fmt.Errorf("outdo the epoch that is known elsewhere: %w", err)
	}
	_, err = s.NoticeEpoch(ctx)
	return err
}

// PresentEpoch is the one that this process has noticed last.
func (s *Store) PresentEpoch() uuid.UUID {
	if e := s.epoch.Load(); e != nil {
		return *e
	}
	return uuid.Nil
}

// EpochMoved tells of transactions that met a server which is not noticed yet. Capacity one; never closed.
func (s *Store) EpochChanged() <-chan struct{} { return s.epochChanged }

func (s *Store) signalEpochChanged() {
	select {
	case s.epochChanged <- struct{}{}:
	default:
	}
}

const (
	// In the first epoch of a database nothing is lost.
	lockAwaitingSQL = `SELECT awaiting, ` + mayHaveLostSQL + ` FROM dbcontroller.meta m FOR UPDATE`
	mayHaveLostSQL  = `EXISTS (SELECT FROM dbcontroller.epoch e WHERE e.id <> m.epoch)`

	// Those that may refer to resources here, of which some may be known by what is left of it only. What they have referred
	// to may be lost, too.
	unconfirmedSQL = `
WITH who AS (
    SELECT id FROM dbcontroller.deployment d, dbcontroller.meta m WHERE id <> $2 AND d.counted_in IS DISTINCT FROM m.epoch
        AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)
        AND (
            id = ANY ($1) OR m.awaiting AND (
                EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = d.id)
                OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = d.id)
                OR EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = d.id)
            )
        )
)
UPDATE dbcontroller.deployment d SET unconfirmed = true, referred = true FROM who WHERE who.id = d.id`
)

var (
	forgetPassesSQL = codes(`DELETE FROM dbcontroller.work WHERE action IN ({announce_epoch}, {confirm_again}, {verify_blockades})`)

	// Everybody is told, once an epoch. Their blockades here are compared with what they say.
	recoverWorkSQL = codes(`
WITH counted AS (
    UPDATE dbcontroller.deployment d SET counted_in = m.epoch FROM dbcontroller.meta m
    WHERE d.id <> $2 AND d.counted_in IS DISTINCT FROM m.epoch
        AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)
        AND (d.id = ANY ($1) OR d.unconfirmed OR d.pointed_to)
    RETURNING d.id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor)
SELECT a, id % $3::int, id, '' FROM counted, unnest(ARRAY [{announce_epoch}, {verify_blockades}]) AS a`)
)

// Recover takes, in a new epoch, which deployments may refer to resources here, and which others there are: all of them
// are told, and until the former have confirmed their references nothing is deleted here. Called again, in any epoch but the
// first, it takes who has appeared since: the registry may have lost some as well. All others it leaves as they are.
func (s *Store) Recover(ctx context.Context, env *schema.Environment) error {
	var referring, all []int32
	for _, d := range env.Deployments {
		if d.Address == "" && d.Generation == 0 {
			continue // it never ran
		}
		id, err := s.names.deployment(ctx, d.DeploymentID)
		if err != nil {
			return err
		}
		if all = append(all, id); env.MayRefer(d.Service, s.self.Service) {
			referring = append(referring, id)
		}
	}
	err := s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		// Shared version lock: a concurrent Decommission waits for us or is already visible.
		if _, err := tx.Exec(ctx, shareVersionSQL, versionLock); err != nil {
			return err
		}
		var awaiting, mayHaveLost bool
		if err := tx.QueryRow(ctx, lockAwaitingSQL).Scan(&awaiting, &mayHaveLost); err != nil || !mayHaveLost {
			return err
		}
		b := &pgx.Batch{}
		if awaiting {
			b.Queue(forgetPassesSQL)
		}
		b.Queue(unconfirmedSQL, referring, s.selfID)
		b.Queue(recoverWorkSQL, all, s.selfID, schema.RingSize)
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
	// Decommissioned deployments are not waited for.
	awaitedSQL = `(d.unconfirmed OR d.uncompared) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)`

	selectUnconfirmedSQL = `SELECT service, region FROM dbcontroller.deployment d WHERE ` + awaitedSQL + ` ORDER BY 1, 2`

	recoveredSQL = `
SELECT ` + presentSQL + `, NOT m.awaiting AND NOT EXISTS (SELECT FROM dbcontroller.deployment d WHERE ` + awaitedSQL + `)
FROM dbcontroller.meta m`
)

// settled fails while what refers to resources here may have been lost. Asked for under the locks of what is to go: who
// establishes again waits for them, and is not confirmed before.
func (s *Store) checkRecovered(ctx context.Context, tx pgx.Tx) error {
	var settled bool
	present := s.present(tx)
	if err := tx.QueryRow(ctx, recoveredSQL).Scan(append(present.columns(), &settled)...); err != nil {
		return err
	}
	noticed := present.epoch() != nil
	if noticed && settled {
		return nil
	}
	if !noticed {
		s.signalEpochChanged()
	}
	rows, err := tx.Query(ctx, selectUnconfirmedSQL)
	if err != nil {
		return err
	}
	waiting, err := pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
	if err != nil {
		return err
	}
	if len(waiting) == 0 {
		waiting = []schema.DeploymentID{s.self}
	}
	return &UnavailableError{Deployments: waiting, Err: errRecovering}
}

// notTheHoldersFault tells of an error that every part of a batch would have: it is not searched for.
func failsWholeBatch(err error) bool {
	return errors.Is(err, errRecovering) || errors.Is(err, ErrStaleEpoch) || errors.Is(err, schema.ErrFenced) || postgres.Unavailable(err)
}

const (
	// A word of an earlier epoch than the one that was told counts for nothing. A new one waits for messages that are under
	// way, so that what is compared in it stays as it is.
	knownEpochSQL = `
SELECT d.epoch IS NULL OR d.epoch <= $2, ` + presentSQL + `
FROM dbcontroller.deployment d, dbcontroller.meta m WHERE d.id = $1 FOR SHARE OF d`

	// Only one that has ever referred here can have lost what it let go, and only for it deletes wait.
	learnEpochSQL = `
WITH before AS (
    SELECT epoch FROM dbcontroller.deployment WHERE id = $1
)
UPDATE dbcontroller.deployment d
SET epoch = GREATEST(d.epoch, $2), uncompared = d.uncompared OR d.referred AND (d.epoch IS NULL OR d.epoch < $2)
FROM before WHERE d.id = $1 RETURNING before.epoch IS DISTINCT FROM d.epoch, d.epoch`
)

var (
	// Finalise waits for this, or has removed them before the next statement.
	keepDeletingSQL = codes(`
SELECT FROM dbcontroller.shadow WHERE state = {deleting} AND id IN (SELECT target_id FROM dbcontroller.holder_entry WHERE deployment_id = $1)
ORDER BY id FOR KEY SHARE`)

	// What it may have forgotten to do is told once more; references to it are compared with what it has, and its blockades
	// with what it refers to.
	peerEpochWorkSQL = codes(`
WITH again AS (
    INSERT INTO dbcontroller.notice (target_id, deployment_id)
    SELECT e.target_id, e.deployment_id FROM dbcontroller.holder_entry e JOIN dbcontroller.shadow s ON s.id = e.target_id
    WHERE e.deployment_id = $1 AND s.state = {deleting}
), old AS (
    DELETE FROM dbcontroller.work WHERE action IN ({confirm_again}, {verify_blockades}) AND deployment_id = $1
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor) SELECT a, $1 % $2::int, $1, '' FROM unnest(ARRAY [{announce_epoch}, {confirm_again}, {verify_blockades}]) AS a
WHERE a <> {announce_epoch} OR EXISTS (SELECT FROM dbcontroller.deployment WHERE id = $1 AND unconfirmed)`)
)

// ofPresentEpoch refuses what a deployment said in an epoch that has ended, as far as that was told; and numbers that were
// looked up in another epoch of this database.
func (s *Store) checkPeerEpoch(tx pgx.Tx, b *pgx.Batch, deployment int32, epoch, selfEpoch uuid.UUID) {
	present := s.present(tx)
	b.Queue(knownEpochSQL, deployment, epoch).QueryRow(func(row pgx.Row) error {
		var known bool
		err := row.Scan(append([]any{&known}, present.columns()...)...)
		switch {
		case err == nil && !present.is(selfEpoch), errors.Is(err, pgx.ErrNoRows):
			return s.recoveringSelf()
		case err == nil && !known:
			return ErrStaleEpoch
		}
		return err
	})
}

// recoveringSelf is the answer of a transaction that has met another epoch than it began in.
func (s *Store) recoveringSelf() error {
	s.signalEpochChanged()
	return &UnavailableError{Deployments: []schema.DeploymentID{s.self}, Err: errRecovering}
}

// Told takes the word of another deployment that its database has begun a new epoch. From the commit on nothing counts
// that was established there before, or was said by it: writes hold the version's lock shared until they commit. Of two
// epochs the greater one counts, whichever comes last; it is answered.
func (s *Store) RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID) (known uuid.UUID, err error) {
	id, err := s.names.deployment(ctx, from)
	if err != nil {
		return known, err
	}
	err = s.inTx(ctx, workFeed|noticeFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockVersionSQL, versionLock); err != nil {
			return err
		}
		var moved, decommissioned bool
		if err := tx.QueryRow(ctx, isDecommissionedSQL, id).Scan(&decommissioned); err != nil {
			return err
		}
		if decommissioned { // nobody is waited for who is not let in to answer
			return ErrDecommissioned
		}
		if err := tx.QueryRow(ctx, learnEpochSQL, id, epoch).Scan(&moved, &known); err != nil || !moved {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(keepDeletingSQL, id)
		b.Queue(peerEpochWorkSQL, id, schema.RingSize)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return known, fmt.Errorf("take the epoch of %s: %w", from, err)
	}
	return known, nil
}

// In which epoch of this database it has compared, and in which of its own.
const markConfirmedSQL = `
UPDATE dbcontroller.deployment d SET unconfirmed = d.unconfirmed AND m.epoch <> $2, uncompared = d.uncompared AND d.epoch <> $3
FROM dbcontroller.meta m WHERE d.id = $1 AND (d.unconfirmed OR d.uncompared)`

var markAnnouncedSQL = codes(`
WITH done AS (
    DELETE FROM dbcontroller.work WHERE action = {announce_epoch} AND deployment_id = $1 RETURNING deployment_id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, cursor) SELECT {confirm_again}, deployment_id % $2::int, deployment_id, '' FROM done`)

// Announced takes that another deployment knows the present epoch, and refuses what was said before it. Only then
// references to it can be compared: what is there is not released any more by what is under way.
func (s *Store) MarkAnnounced(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID) error {
	id, err := s.names.deployment(ctx, to)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		present, err := s.epochOf(ctx, tx)
		if err == nil && present != epoch {
			err = s.recoveringSelf() // another process has noticed a later one
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, markAnnouncedSQL, id, schema.RingSize)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s was told the epoch: %w", to, err)
	}
	return nil
}

// Confirmed takes that a deployment has compared what it refers to here, in an epoch of this database as it was told, and in
// one of its own, and has established again whatever was lost.
func (s *Store) MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
	here := s.PresentEpoch()
	id, err := s.names.deployment(ctx, by)
	if err != nil {
		return err
	}
	var confirmed bool
	err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		present, err := s.epochOf(ctx, tx)
		if err == nil && present != here { // the number of the deployment may be another one's
			err = s.recoveringSelf()
		}
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, markConfirmedSQL, id, epoch, selfEpoch)
		confirmed = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return fmt.Errorf("%s has confirmed its references: %w", by, err)
	}
	if confirmed {
		s.log.Info("references are confirmed after the failover", zap.Stringer("by", by))
	}
	return nil
}
