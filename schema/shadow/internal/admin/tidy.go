package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// abortedRetention is the time for which ABORTED decisions are kept: longer than MaxAttemptAge, beyond which
// lock refuses an attempt. Safety does not depend on clocks: an attempt that began before a forgotten
// decision cannot commit (write.QueueDecision).
const abortedRetention = 25 * time.Hour

const (
	tidyClosedSQL = `
DELETE FROM dbcontroller.closed_attempt WHERE (attempt, deployment_id) IN (
    SELECT attempt, deployment_id FROM dbcontroller.closed_attempt WHERE closed_at < least(now(), $3::timestamptz) - $1::interval ORDER BY closed_at LIMIT $2
)`

	tidyRequestsSQL = `
DELETE FROM dbcontroller.request WHERE id IN (
    SELECT id FROM dbcontroller.request WHERE created_at < least(now(), $3::timestamptz) - $1::interval ORDER BY created_at LIMIT $2
)`

	// Ended rows, and rows with a time further ahead than possible, which a clock that was set back leaves.
	tidyClosingSQL = `
DELETE FROM dbcontroller.closing c WHERE (target_id, delete_id) IN (
    SELECT target_id, delete_id FROM dbcontroller.closing c WHERE c.until < now() - interval '1 min' OR c.until > ` + target.ClosesUntilSQL + ` LIMIT $1
)`

	// Committed deletions whose members were all marked.
	tidyFreezesSQL = `
DELETE FROM dbcontroller.freeze f WHERE f.committed AND f.expires_at < now() AND NOT EXISTS (SELECT FROM dbcontroller.frozen m WHERE m.deletion = f.deletion)`

	// Left by a process that died between the two steps of ending a right; nothing heeds them any more.
	tidyEndingSQL = `DELETE FROM dbcontroller.ending WHERE until < now() - interval '1 min' OR until > now() + interval '1 min'`

	// Keyset pagination through the table, since most rows are in use. With LIMIT, each page looks at the
	// references of its targets; of EXISTS the planner can make a hash of all references.
	unreferredSQL = `
SELECT f.id, f.block_attempt IS NOT NULL, (SELECT true FROM dbcontroller.reference WHERE target_id = f.id LIMIT 1) IS NOT NULL,
    f.asked_by IS NULL AND (SELECT true FROM dbcontroller.reference WHERE target_id = f.id AND behaviour = {block} AND NOT dangling LIMIT 1) IS NOT NULL
FROM dbcontroller.foreign_target f WHERE f.id > $1 ORDER BY f.id LIMIT $2`

	// meta.compacted grows in the same transaction: no token is accepted whose rows are removed.
	compactSQL = `
WITH old AS (
    DELETE FROM dbcontroller.change WHERE seq IN (
        SELECT seq FROM (SELECT seq, changed_at FROM dbcontroller.change ORDER BY seq LIMIT $2) AS oldest
        WHERE changed_at < now() - $1::interval
    ) RETURNING xid
), newest AS (
    SELECT xid FROM old ORDER BY xid DESC LIMIT 1
), marked AS (
    UPDATE dbcontroller.meta SET compacted = newest.xid FROM newest WHERE newest.xid > meta.compacted
)
SELECT count(*) FROM old`
)

var (
	// $3 is the time by the process's clock: a row is removed only when it is old by this clock and by the
	// database's, since either may have jumped.
	tidyAttemptsSQL = db.Codes(`
WITH old AS (
    DELETE FROM dbcontroller.attempt WHERE id IN (
        SELECT id FROM dbcontroller.attempt a
        WHERE NOT committed AND decided_at < least(now(), $3::timestamptz) - $1::interval
            OR committed AND decided_at < least(now(), $3::timestamptz) - interval '1 hour'
                AND NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {confirm} AND w.attempt = a.id)
        ORDER BY decided_at LIMIT $2
    ) RETURNING committed, mark
), newest AS (
    SELECT max(mark) AS mark FROM old WHERE NOT committed
), marked AS (
    UPDATE dbcontroller.meta SET forgotten = newest.mark FROM newest WHERE newest.mark > meta.forgotten
)
SELECT count(*) FROM old`)

	// Messages to decommissioned deployments, left by attempts that were under way when the deployment was
	// decommissioned.
	tidyDecommissionedSQL = db.Codes(`
DELETE FROM dbcontroller.work WHERE seq IN (
    SELECT m.seq FROM dbcontroller.decommissioned x JOIN dbcontroller.work m ON m.deployment_id = x.deployment_id AND m.action <> {clean_up_decommissioned}
    WHERE NOT EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {clean_up_decommissioned} AND w.deployment_id = x.deployment_id)
    LIMIT 5000
)`)
)

// tidied is the maximum number of rows of a table that one step removes, or looks at.
const tidied = 5000

// Tidy removes rows whose retention has ended, up to 5,000 of a table: decisions, closed attempts, request
// outcomes, closing rows, change rows, foreign targets without references, and removals. It reports whether
// there may be more.
func (s *Admin) Tidy(ctx context.Context) (more bool, err error) {
	const limit = tidied
	now, n := s.Now(), 0
	if err := s.Pool.QueryRow(ctx, tidyAttemptsSQL, abortedRetention, limit, now).Scan(&n); err != nil {
		return false, fmt.Errorf("tidy: %w", err)
	}
	more = n == limit
	for _, t := range []struct {
		sql  string
		args []any
	}{
		{tidyClosedSQL, []any{peer.ClosedAttemptRetention, limit, now}},
		{tidyRequestsSQL, []any{peer.RequestRetention, limit, now}},
		{tidyClosingSQL, []any{limit}},
	} {
		tag, err := s.Pool.Exec(ctx, t.sql, t.args...)
		if err != nil {
			return false, fmt.Errorf("tidy: %w", err)
		}
		more = more || tag.RowsAffected() == limit
	}
	if err := s.Pool.QueryRow(ctx, compactSQL, s.Tuning.Load().ChangesKept, limit).Scan(&n); err != nil {
		return false, fmt.Errorf("compact changes: %w", err)
	}
	if _, err := s.Pool.Exec(ctx, tidyEndingSQL); err != nil {
		return false, fmt.Errorf("tidy: %w", err)
	}
	if _, err := s.Pool.Exec(ctx, tidyFreezesSQL); err != nil {
		return false, fmt.Errorf("tidy: %w", err)
	}
	if _, err := s.Pool.Exec(ctx, tidyDecommissionedSQL); err != nil {
		return false, fmt.Errorf("tidy: %w", err)
	}
	if err := s.gate.LoadDecommissioned(ctx); err != nil { // another process may have stored a Decommission
		return false, err
	}
	forgotten, err := s.tidyForeignTargets(ctx, limit)
	if err != nil {
		return false, err
	}
	var removals int64 // last, since its failure must not keep back the others
	if err := s.Pool.QueryRow(ctx, `SELECT dbcontroller.forget_removals($1, $2)`, s.Tuning.Load().RemovalsKept, limit).
		Scan(&removals); err != nil {
		return false, fmt.Errorf("forget removals: %w", err)
	}
	return more || n == limit || forgotten || removals == limit, nil
}

// tidyForeignTargets looks at the next foreign targets. It returns rights to block that nothing here needs
// any more, also when no trigger saw that (TRUNCATE, partitions), and removes targets to which nothing
// refers: the last reference was dropped, and the target was not deleted.
func (s *Admin) tidyForeignTargets(ctx context.Context, limit int) (more bool, err error) {
	rows, err := s.Pool.Query(ctx, db.Codes(unreferredSQL), s.tidied.Load(), limit)
	if err != nil {
		return false, fmt.Errorf("tidy foreign targets: %w", err)
	}
	var id, last int64
	var right, referred, blocked bool
	var unused, returnable []int64
	tag, err := pgx.ForEachRow(rows, []any{&id, &right, &referred, &blocked}, func() error {
		switch last = id; {
		case right && !blocked:
			returnable = append(returnable, id)
		case !right && !referred:
			unused = append(unused, id)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("tidy foreign targets: %w", err)
	}
	if more = tag.RowsAffected() == int64(limit); !more {
		last = 0 // from the beginning, the next time
	}
	s.tidied.Store(last)
	// a transaction uses one: the next time
	if err := s.rights.LookAt(ctx, returnable); err != nil && !db.HasCode(err, db.CodeLockNotAvailable) {
		return false, err
	}
	return more, s.follow.ForgetUnreferred(ctx, unused)
}

var countsSQL = db.Codes(`
SELECT w.action::int, d.service || '/' || d.region, count(*), COALESCE(extract(epoch FROM now() - min(w.created_at)), 0)::float8, ''
FROM dbcontroller.work w JOIN dbcontroller.deployment d ON d.id = w.deployment_id GROUP BY 1, 2
UNION ALL
SELECT {acknowledge_group}, d.service || '/' || d.region, n.count, GREATEST(extract(epoch FROM now() - s.updated_at), 0)::float8, ''
FROM (SELECT deployment_id, count(*), min(seq) AS first FROM dbcontroller.notice GROUP BY 1) AS n
JOIN dbcontroller.deployment d ON d.id = n.deployment_id
JOIN dbcontroller.notice f ON f.seq = n.first LEFT JOIN dbcontroller.shadow s ON s.id = f.target_id
UNION ALL
SELECT {deleting_group}, '', count(*), COALESCE(extract(epoch FROM now() - min(updated_at)), 0)::float8, '' FROM dbcontroller.shadow WHERE state = {deleting}
UNION ALL
SELECT {resolve_group}, d.service || '/' || d.region, count(*), COALESCE(extract(epoch FROM now() - min(b.expires_at)), 0)::float8, ''
FROM (
    SELECT deployment_id, expires_at FROM dbcontroller.blockade b WHERE ` + db.ExpiredSQL + `$1::interval)
    UNION ALL SELECT deployment_id, expires_at FROM dbcontroller.freeze f WHERE NOT f.committed AND ` + db.FreezeExpiredSQL + `
) AS b JOIN dbcontroller.deployment d ON d.id = b.deployment_id GROUP BY 2
UNION ALL -- a full name begins with two slashes, the service and the region
SELECT {acquire_group}, split_part(l.target, '/', 3) || '/' || split_part(l.target, '/', 4), count(*), GREATEST(extract(epoch FROM now() - min(l.at)), 0)::float8, min(l.problem)
FROM (SELECT target, at, problem FROM dbcontroller.lacking WHERE problem IS NOT NULL AND NOT missing LIMIT 100000) AS l GROUP BY 2
UNION ALL
SELECT {purge_group}, d.service || '/' || d.region, count(*), extract(epoch FROM now() - min(f.purge_at))::float8, COALESCE(min(f.reason), '')
FROM dbcontroller.freeze f JOIN dbcontroller.deployment d ON d.id = f.deployment_id
WHERE f.purge_at <= now() AND f.participants IS NOT NULL AND NOT f.committed GROUP BY 2`)

// Outstanding counts one group of outstanding work for one deployment.
type Outstanding struct {
	Group      string // an action, "acknowledge", "deleting", "resolve", "acquire" or "purge"
	Deployment string // empty for "deleting"
	Count      int64
	Oldest     float64 // age of the oldest piece in seconds
	Problem    string  // why it is not done, if that is stored
}

// Outstanding counts the outstanding work by group and deployment: messages owed (such as confirm and
// release), resources to look at again (finalise), deletions that other deployments have not acknowledged,
// resources in DELETING, expired, undecided tentative blockades and freezes by atomic deletions, values of
// attached tables whose rights were refused, or whose deployments did not answer, and scheduled deletions
// that are overdue.
func (s *Admin) Outstanding(ctx context.Context) ([]Outstanding, error) {
	rows, err := s.Pool.Query(ctx, countsSQL, s.Tuning.Load().TentativeTTL)
	if err != nil {
		return nil, fmt.Errorf("count outstanding work: %w", err)
	}
	defer rows.Close()
	var out []Outstanding
	for rows.Next() {
		var o Outstanding
		var group int
		if err := rows.Scan(&group, &o.Deployment, &o.Count, &o.Oldest, &o.Problem); err != nil {
			return nil, fmt.Errorf("count outstanding work: %w", err)
		}
		switch group {
		case db.AcknowledgeGroup:
			o.Group = "acknowledge"
		case db.DeletingGroup:
			o.Group = "deleting"
		case db.ResolveGroup:
			o.Group = "resolve"
		case db.AcquireGroup:
			o.Group = "acquire"
		case db.PurgeGroup:
			o.Group = "purge"
		default:
			o.Group = schema.Action(group).String()
		}
		if o.Count > 0 {
			out = append(out, o)
		}
	}
	return out, rows.Err()
}
