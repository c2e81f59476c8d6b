package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// A restarted process replaces its own row at once. Transactions in flight of its predecessor, if that
	// still lives, hold the row's lock.
	replaceSQL      = `DELETE FROM dbcontroller.member WHERE name = $1`
	insertMemberSQL = `INSERT INTO dbcontroller.member (id, name, expires_at, delegates) VALUES ($1, $2, clock_timestamp() + $3::interval, $4)`

	// Joins exclude one another, and attach: of two, one sees the other.
	lockJoinsSQL = `SELECT pg_advisory_xact_lock(110373738146831)`

	needRightsSQL    = `SELECT EXISTS (SELECT FROM dbcontroller.attachment WHERE definition ? 'references' AND ready)`
	mayHaveRightsSQL = `
SELECT EXISTS (SELECT FROM dbcontroller.member WHERE delegates)
    OR EXISTS (SELECT FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL) OR EXISTS (SELECT FROM dbcontroller.foreign_target WHERE block_epoch IS NOT NULL)`
	lockAllRightsSQL = `SELECT id FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL OR block_epoch IS NOT NULL ORDER BY id FOR UPDATE`
	endAllRightsSQL  = `
UPDATE dbcontroller.foreign_target SET acting_epoch = NULL, acting_own = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id')
WHERE acting_epoch IS NOT NULL OR block_epoch IS NOT NULL`

	renewSQL = `
UPDATE dbcontroller.member m SET expires_at = clock_timestamp() + $1::interval WHERE ` + renewableSQL
	renewableSQL = `m.id = $2 AND m.expires_at > clock_timestamp()`

	// The look is first: it compares the log on disk with the log that was written, and a renewal writes.
	renewAndLookSQL = `
WITH look AS MATERIALIZED (` + lookBegin + `$4` + lookEnd + `
), renewed AS (
    UPDATE dbcontroller.member m SET expires_at = clock_timestamp() + $1::interval FROM look WHERE ` + renewableSQL + ` RETURNING true
)
SELECT look.*, EXISTS (SELECT FROM renewed), ` + sharesColumns + ` FROM look`

	// Skips members with transactions in flight, which hold the rows' locks, until the next call.
	lockExpiredSQL = `SELECT id FROM dbcontroller.member WHERE ` + deadSQL + ` ORDER BY id FOR UPDATE SKIP LOCKED`
	evictSQL       = `DELETE FROM dbcontroller.member WHERE ` + deadSQL + ` AND id = ANY ($2)`
	// Expired, or with an impossibly late expiry (the TTLs of processes may differ): the clock went back, and
	// the member has not renewed since.
	deadSQL = `(expires_at < clock_timestamp() OR expires_at > clock_timestamp() + interval '15 s' + 3 * $1::interval)`

	sharesSQL     = `SELECT ` + sharesColumns
	sharesColumns = `(SELECT count(*) FROM dbcontroller.member), ARRAY(SELECT shard FROM dbcontroller.lease WHERE member_id = $2 ORDER BY shard),
    EXISTS (SELECT FROM dbcontroller.lease l WHERE shard = $3 AND NOT EXISTS (SELECT FROM dbcontroller.member m WHERE m.id = l.member_id)),
    EXISTS (SELECT FROM dbcontroller.member WHERE ` + deadSQL + `)`
	lockFreeSQL = `
SELECT shard FROM dbcontroller.lease l WHERE NOT EXISTS (SELECT FROM dbcontroller.member m WHERE m.id = l.member_id) AND shard BETWEEN $2 AND $3
ORDER BY shard LIMIT $1 FOR UPDATE SKIP LOCKED`
	takeSQL = `
UPDATE dbcontroller.lease l SET member_id = $1, since = clock_timestamp()
WHERE shard = ANY ($2) AND NOT EXISTS (SELECT FROM dbcontroller.member m WHERE m.id = l.member_id)
RETURNING shard`

	releaseSQL = `UPDATE dbcontroller.lease SET member_id = NULL, since = clock_timestamp() WHERE member_id = $1 AND shard = ANY ($2)`
	leaveSQL   = `DELETE FROM dbcontroller.member WHERE id = $1`

	membersSQL = `
SELECT m.name, m.joined_at, m.expires_at, array_agg(l.shard ORDER BY l.shard) FILTER (WHERE l.shard IS NOT NULL)
FROM dbcontroller.member m LEFT JOIN dbcontroller.lease l ON l.member_id = m.id
GROUP BY m.id ORDER BY m.name`
)

// Leases divide the shards of a deployment among its processes. They are rows, and locks of single
// transactions: nothing depends on a session.
type Leases struct {
	Gate *Gate
	// Name of the process, which no other process of the deployment has at the same time.
	Name string
	// TTL is the time after a renewal for which a process counts as alive, by the clock of the database. Too
	// short: a process that pauses loses its shards. Too long: the shards of a dead process wait.
	TTL time.Duration
}

// Renew renews the member, evicts expired members, and takes the member's part of the free shards; lead: the
// shard that leads too, also beyond its part. With uuid.Nil it joins as a new member first. It fails with
// schema.ErrFenced when the member has expired or was evicted.
func (l *Leases) Renew(ctx context.Context, member uuid.UUID, lead bool) (g schema.Grant, err error) {
	ctx = postgres.InControl(ctx)
	if member == uuid.Nil {
		if member, err = l.join(ctx); err != nil {
			return g, fmt.Errorf("join the processes of %s: %w", l.Gate.Self, err)
		}
	}
	sh, err := l.renewAlone(ctx, member)
	if err == nil && (sh.dead || sh.lacks(lead).count > 0) {
		sh, err = l.renewAndTake(ctx, member, lead)
	}
	if err != nil {
		return g, fmt.Errorf("renew the lease of %s: %w", l.Name, err)
	}
	g = schema.Grant{Member: member, Shards: sh.held}
	if part := sh.part(); len(sh.held) > part {
		g.Surplus = slices.Clone(sh.held[part:])
	}
	return g, nil
}

// renewAlone renews the member and looks, with one statement, which is all that most renewals need: no member
// has expired, and no shard is free. Its shares are those of before the renewal.
func (l *Leases) renewAlone(ctx context.Context, member uuid.UUID) (sh shares, err error) {
	n, lives := l.Gate.beginLook(), false
	row := l.Gate.Pool.QueryRow(ctx, renewAndLookSQL, l.TTL, member, schema.LeadShard,
		l.Gate.Tuning.Load().TentativeTTL)
	if err := row.Scan(slices.Concat(n.columns(), []any{&lives}, sh.columns())...); err != nil {
		return sh, err
	}
	l.Gate.renewalLooked(n)
	if !lives {
		return sh, schema.ErrFenced
	}
	return sh, nil
}

// renewAndTake also evicts the expired members, and takes the shards that the member lacks.
func (l *Leases) renewAndTake(ctx context.Context, member uuid.UUID, lead bool) (sh shares, err error) {
	err = l.Gate.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, renewSQL, l.TTL, member)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return schema.ErrFenced
		}
		if err := evict(ctx, tx, l.TTL); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, sharesSQL, l.TTL, member, schema.LeadShard).Scan(sh.columns()...); err != nil {
			return err
		}
		return sh.take(ctx, tx, member, lead)
	})
	return sh, err
}

func (l *Leases) join(ctx context.Context) (member uuid.UUID, err error) {
	member = uuid.Must(uuid.NewV7())
	err = l.Gate.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(lockJoinsSQL)
		b.Queue(replaceSQL, l.Name)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if !l.Gate.Cfg.Delegations {
			if err := endRights(ctx, tx); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, insertMemberSQL, member, l.Name, l.TTL, l.Gate.Cfg.Delegations)
		return err
	})
	return member, err
}

// endRights ends all rights of the deployment, because a process that joins without delegations acts upon
// deletions without ending them. Nothing is written under a right, and none is taken, meanwhile: both hold
// the version's lock shared. It is left alone where there are no rights. It fails while an attached table has
// references: they have rights, and nothing else.
func endRights(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	var needed, any bool
	b.Queue(needRightsSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&needed) })
	b.Queue(mayHaveRightsSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&any) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if needed {
		return errors.New(
			"attached tables here have references, and this process has delegations switched off: run it without --delegations=false, or detach the tables first")
	}
	if !any {
		return nil
	}
	b = &pgx.Batch{}
	b.Queue(LockVersionSQL, VersionLock)
	b.Queue(lockAllRightsSQL)
	b.Queue(endAllRightsSQL)
	return tx.SendBatch(ctx, b).Close()
}

func evict(ctx context.Context, tx pgx.Tx, ttl time.Duration) error {
	rows, err := tx.Query(ctx, lockExpiredSQL, ttl)
	if err != nil {
		return err
	}
	expired, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(expired) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, evictSQL, ttl, expired) // checked again under the locks
	return err
}

// shares are the shards of a member, the number of members, and whether shards or members need attention.
type shares struct {
	members    int
	held       []uint32
	leaderless bool
	dead       bool // a member has expired
}

// columns returns the scan targets of sharesColumns.
func (sh *shares) columns() []any { return []any{&sh.members, &sh.held, &sh.leaderless, &sh.dead} }

// part is the number of shards of a member when all have equally many.
func (sh *shares) part() int { return (schema.RingSize + sh.members - 1) / sh.members }

// lack is the number of shards from first to last that a member lacks.
type lack struct{ count, first, last int }

// lacks is the rest of the member's part; lead: the shard that leads counts too, also beyond its part.
func (sh *shares) lacks(lead bool) lack {
	lacking := lack{sh.part() - len(sh.held), 0, schema.RingSize - 1}
	switch {
	case !lead:
		lacking.first = schema.LeadShard + 1
	case sh.leaderless && lacking.count <= 0:
		lacking.count, lacking.last = 1, schema.LeadShard
	}
	return lacking
}

// take takes the free ones of the shards that the member lacks.
func (sh *shares) take(ctx context.Context, tx pgx.Tx, member uuid.UUID, lead bool) error {
	lacking := sh.lacks(lead)
	if lacking.count <= 0 {
		return nil
	}
	rows, err := tx.Query(ctx, lockFreeSQL, lacking.count, lacking.first, lacking.last)
	if err != nil {
		return err
	}
	free, err := pgx.CollectRows(rows, shard)
	if err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, takeSQL, member, free); err != nil {
		return err
	}
	taken, err := pgx.CollectRows(rows, shard)
	sh.held = slices.Sorted(slices.Values(append(sh.held, taken...)))
	return err
}

func shard(row pgx.CollectableRow) (uint32, error) {
	n, err := pgx.RowTo[int16](row)
	return uint32(n), err //nolint:gosec // of the ring
}

// Release frees shards on which this process has stopped working; without shards, the member leaves.
func (l *Leases) Release(ctx context.Context, member uuid.UUID, shards []uint32) error {
	ctx = postgres.InControl(ctx)
	var err error
	if len(shards) == 0 {
		_, err = l.Gate.Pool.Exec(ctx, leaveSQL, member)
	} else {
		_, err = l.Gate.Pool.Exec(ctx, releaseSQL, member, shards)
	}
	if err != nil {
		return fmt.Errorf("release leases of %s: %w", l.Name, err)
	}
	return nil
}

// Members returns the processes of this deployment with their shards, by name.
func Members(ctx context.Context, s *db.DB) ([]peer.Member, error) {
	rows, err := s.Pool.Query(ctx, membersSQL)
	if err != nil {
		return nil, fmt.Errorf("read the processes: %w", err)
	}
	members, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m peer.Member, err error) {
		var shards []int16
		err = row.Scan(&m.Name, &m.JoinedAt, &m.ExpiresAt, &shards)
		for _, n := range shards {
			m.Shards = append(m.Shards, uint32(n)) //nolint:gosec // of the ring
		}
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the processes: %w", err)
	}
	return members, nil
}

// Fenced binds every transaction under ctx to a member, as db.Fenced says.
func (l *Leases) Fenced(ctx context.Context, member uuid.UUID) context.Context {
	return db.Fenced(ctx, member, l.TTL)
}
