package gate

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// A base backup or a snapshot of a volume that is started in place of its server has the same identity and
// the same timeline, and a process that starts over it has seen nothing. Each other deployment keeps a token
// with a number of the sequence mark that was on disk. It tells the token when it opens its watch again.
// Until then, or for positionsWait, nothing is decided after a start of the server.

const (
	// positionsWait is the time for which a start of the server waits for the positions of other deployments:
	// they open their watches again within seconds, and a deployment that is away must not stop deletes for
	// longer.
	positionsWait = "15 s"

	noticeStartSQL = `
UPDATE dbcontroller.meta SET started_at = pg_postmaster_start_time(), started_mark = (SELECT last_value FROM dbcontroller.mark),
    positions_until = CASE WHEN $1 THEN clock_timestamp() + interval '` + positionsWait + `' ELSE positions_until END`

	// All known deployments: a copy may lack the first reference of one.
	positionsDueSQL = `
UPDATE dbcontroller.deployment d SET position_due = true
WHERE id <> $1 AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)`

	showPositionSQL = `UPDATE dbcontroller.deployment SET position_due = false WHERE service = $1 AND region = $2 AND position_due`

	// PositionDueSQL is the condition that the position of a deployment d is waited for.
	PositionDueSQL = `d.position_due AND (SELECT positions_until > clock_timestamp() FROM dbcontroller.meta)`
)

// noticeStart stores the start of the server. A process that has seen numbers of the sequence mark has
// compared them; a process that has just started has seen none, and waits for the positions of other
// deployments.
func (s *Gate) noticeStart(ctx context.Context, tx pgx.Tx, observed *observedEpoch) error {
	if err := observed.scan(tx.QueryRow(ctx, lockEpochSQL)); err != nil || observed.noticed || s.hasEnded(observed) {
		return err // another process was first, or the next look begins an epoch
	}
	due := observed.seen == 0
	b := &pgx.Batch{}
	b.Queue(noticeStartSQL, due)
	if due {
		b.Queue(positionsDueSQL, s.SelfID)
	}
	observed.noticed = true
	return tx.SendBatch(ctx, b).Close()
}

// ShowPosition records that a deployment has shown its position in this database, and that the database has
// not lost it.
func (s *Gate) ShowPosition(ctx context.Context, of schema.DeploymentID) error {
	_, err := s.Pool.Exec(ctx, showPositionSQL, of.Service, of.Region)
	return err
}

// PostgreSQL writes a sequence to its log 32 numbers ahead, so that a copy may continue with greater numbers
// than were taken before it was made. Some more numbers are passed over whenever any were taken: numbers that
// a process has seen on disk are then greater than each number of a copy of before.
const (
	markStep    = 64
	stepMarkSQL = `
SELECT count(nextval('dbcontroller.mark')) FROM dbcontroller.mark m, generate_series(m.last_value + 1, (m.last_value + 33 + 63) / 64 * 64) WHERE m.last_value % 64 <> 0`
)
