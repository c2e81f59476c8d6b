package dbctest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cut ends all connections to a deployment, and lets no new one in, until Heal. Its process goes on, and
// calls others.
func (in *Installation) Cut(deployment string) {
	in.t.Helper()
	in.deployment(deployment).calls.cut(true)
}

// Heal ends a Cut.
func (in *Installation) Heal(deployment string) {
	in.t.Helper()
	in.deployment(deployment).calls.cut(false)
}

// Crash ends the process of a deployment without a last word: its connections are gone, in the middle of its
// work, and it writes nothing any more.
func (in *Installation) Crash(deployment string) {
	in.t.Helper()
	d := in.deployment(deployment)
	d.store.cut(true)
	d.calls.cut(true)
	d.end()
	d.store.cut(false)
}

// Start starts the process of a deployment again after a Crash, and waits until it takes part in the work.
func (in *Installation) Start(deployment string) {
	in.t.Helper()
	d := in.deployment(deployment)
	d.calls.cut(false)
	d.start()
	if err := in.ready(); err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
}

// expireSQL makes the limits of undecided references, and of the leases of processes, pass.
const expireSQL = `
WITH members AS (UPDATE dbcontroller.member SET expires_at = clock_timestamp())
UPDATE dbcontroller.blockade SET expires_at = clock_timestamp() WHERE expires_at IS NOT NULL`

// Expire makes the time limits at a deployment pass now: of undecided references, and of the leases of
// processes that do not renew them.
func (in *Installation) Expire(deployment string) {
	in.t.Helper()
	if err := execute(in.t.Context(), in.deployment(deployment).dsn, expireSQL); err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
}

// advanceSQL makes everything that the database has stored older. Logs that watches read are left alone:
// times do not order them.
const advanceSQL = `
WITH t AS (SELECT make_interval(secs => $1) AS d)
, a AS (UPDATE dbcontroller.blockade SET expires_at = expires_at - d FROM t WHERE expires_at IS NOT NULL)
, b AS (UPDATE dbcontroller.closing SET until = until - d FROM t)
, c AS (UPDATE dbcontroller.ending SET until = until - d FROM t)
, e AS (UPDATE dbcontroller.foreign_target SET kept_until = kept_until - d FROM t WHERE kept_until IS NOT NULL)
, f AS (UPDATE dbcontroller.member SET joined_at = joined_at - d, expires_at = expires_at - d FROM t)
, g AS (UPDATE dbcontroller.attempt SET decided_at = decided_at - d FROM t)
, h AS (UPDATE dbcontroller.closed_attempt SET closed_at = closed_at - d FROM t)
, i AS (UPDATE dbcontroller.request SET created_at = created_at - d FROM t)
, j AS (UPDATE dbcontroller.owner_reference SET created_at = created_at - d FROM t)
, p AS (UPDATE dbcontroller.freeze SET expires_at = expires_at - d, deleted_at = deleted_at - d, purge_at = purge_at - d, try_at = try_at - d FROM t)
, k AS (UPDATE dbcontroller.deleted_row SET due = due - d, at = at - d FROM t)
, q AS (UPDATE dbcontroller.lacking SET due = due - d, at = at - d FROM t)
, l AS (UPDATE dbcontroller.right_request SET asked_at = asked_at - d FROM t)
, m AS (UPDATE dbcontroller.removal SET decided_at = decided_at - d FROM t)
, n AS (UPDATE dbcontroller.deletion_progress SET started_at = started_at - d, updated_at = updated_at - d FROM t)
, o AS (UPDATE dbcontroller.deletion_walk SET started_at = started_at - d, updated_at = updated_at - d FROM t)
UPDATE dbcontroller.shadow SET created_at = created_at - d, updated_at = updated_at - d FROM t`

// Advance lets time pass at a deployment: its database takes everything that it has stored for older by d, so
// that limits, graces, waits and ages that it compares with its clock (now()) move on: of undecided
// references, leases, absent owners, stuck and scheduled deletions, and the times in resources. The clocks of
// the processes do not move: pauses between tries and timeouts of calls take as long as they do, and the
// answers to request ids are kept.
func (in *Installation) Advance(deployment string, d time.Duration) {
	in.t.Helper()
	conn, err := pgx.Connect(in.t.Context(), in.deployment(deployment).dsn)
	if err == nil {
		_, err = conn.Exec(in.t.Context(), advanceSQL, d.Seconds())
		err = errors.Join(err, conn.Close(in.t.Context()))
	}
	if err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
}

// outstandingSQL counts the outstanding work: undecided references, work, deletions to act upon, resources in
// DELETING.
const outstandingSQL = `
SELECT (SELECT count(*) FROM dbcontroller.blockade WHERE expires_at IS NOT NULL) + (SELECT count(*) FROM dbcontroller.work)
    + (SELECT count(*) FROM dbcontroller.notice)`

// Settle waits until no deployment has anything left to do: references are decided, deletions are carried out
// everywhere. It fails the test when ctx ends first; without a deadline after five minutes.
func (in *Installation) Settle(ctx context.Context) {
	in.t.Helper()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	for {
		err := in.settled(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			in.t.Fatalf("dbctest: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (in *Installation) settled(ctx context.Context) error {
	for id, d := range in.deployments {
		conn, err := pgx.Connect(ctx, d.dsn)
		if err != nil {
			return err
		}
		var left int64
		err = errors.Join(conn.QueryRow(ctx, outstandingSQL).Scan(&left), conn.Close(ctx))
		if err == nil && left > 0 {
			err = fmt.Errorf("%s has %d pieces of work left", id, left)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
