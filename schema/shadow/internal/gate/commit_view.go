package gate

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
)

const (
	// Also whether the epoch of another database has ended since references were established there ($1, $2).
	SelectNowSQL = `
SELECT ` + RunningColumns + `, now(), ARRAY(SELECT deployment_id FROM dbcontroller.decommissioned), ` + PresentSQL + `,
    EXISTS (
        SELECT FROM dbcontroller.deployment d JOIN unnest($1::int[], $2::uuid[]) AS i (id, epoch) ON i.id = d.id WHERE d.epoch > i.epoch
    )
FROM dbcontroller.meta m`
)

// CommitView is the state of the database that a write reads under the version lock; it holds until the
// write's commit.
type CommitView struct {
	Running
	At             time.Time
	Decommissioned []int32
	Present        *EpochCheck
	ended          bool // the epoch of another database has ended since references were established there
}

// Scan reads the row of SelectNowSQL.
func (n *CommitView) Scan(row pgx.Row) error {
	return row.Scan(slices.Concat(n.Into(), []any{&n.At, &n.Decommissioned}, n.Present.Columns(), []any{&n.ended})...)
}

// InEpoch reports whether an attempt that began in an epoch can still commit.
func (n *CommitView) InEpoch(epoch uuid.UUID) bool { return !n.ended && n.Present.Is(epoch) }

// TooLate reports whether an attempt is too old to commit. That bounds the time for which its decision and
// its tombstones have to be kept.
func (n *CommitView) TooLate(attempt peer.AttemptID) bool {
	return n.At.Sub(peer.AttemptTime(attempt)) > peer.MaxAttemptAge
}
