package shadow

import (
	"context"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/admin"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/deletion"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/operate"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"

	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"

	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// Defaults of Config, for the flags of serve.
const (
	DefaultTentativeTTL   = db.DefaultTentativeTTL
	DefaultOwnerGrace     = db.DefaultOwnerGrace
	DefaultMissingGrace   = db.DefaultMissingGrace
	DefaultChangesKept    = db.DefaultChangesKept
	DefaultRemovalsKept   = db.DefaultRemovalsKept
	DefaultTentativeQuota = db.DefaultTentativeQuota
	DefaultBlockingQuota  = db.DefaultBlockingQuota
	DefaultUnusedQuota    = db.DefaultUnusedQuota

	DefaultReadMaxLag = standby.DefaultMaxLag
	MinReadMaxLag     = standby.MinMaxLag
)

// NewStandby returns a standby for Config.Standby, which its Run follows.
func NewStandby(cfg StandbyConfig) *Standby { return standby.New(cfg) }

// Parameters and results of the store's methods, beside the values of package peer.
type (
	Config    = db.Config
	Times     = db.Times
	Limits    = db.Limits
	Retention = db.Retention
	Tuning    = db.Tuning
	Leases    = gate.Leases
	// Standby answers reads of people in place of the primary.
	Standby       = standby.Standby
	StandbyConfig = standby.Config
	// UserTransaction is an application's part of a transaction that writes resources.
	UserTransaction = gate.UserTransaction

	// Reads.
	ListRequest      = read.ListRequest
	WatchRequest     = read.WatchRequest
	Condition        = read.Condition
	Explanation      = operate.Explanation
	ServerStatus     = operate.ServerStatus
	ExplainedReason  = operate.ExplainedReason
	ResourceView     = operate.ResourceView
	ReferenceView    = operate.ReferenceView
	BlockadeView     = operate.BlockadeView
	Derivation       = operate.Derivation
	Removal          = operate.Removal
	RemovalQuery     = operate.RemovalQuery
	Kept             = read.Kept
	Referrer         = operate.Referrer
	ReferrersRequest = operate.ReferrersRequest
	Referrers        = operate.Referrers
	Stuck            = operate.Stuck
	StuckPage        = operate.StuckPage
	DeletionProgress = cascade.Deletion
	// ScheduledDeletion is a deletion that is decided later.
	ScheduledDeletion = deletion.Scheduled
	DeletionsLeft     = cascade.Left

	Releasable = operate.Releasable

	// Deletes.
	DeleteRequest  = deletion.DeleteRequest
	DeletePlan     = plan.DeletePlan
	PlanGroup      = plan.Group
	PlannedBlocker = plan.PlannedBlocker

	// Operators.
	AuditConfig      = admin.AuditConfig
	EpochConfig      = admin.EpochConfig
	EpochStatus      = operate.EpochStatus
	DatabaseMismatch = gate.DatabaseMismatch
	OperatorDecision = operate.OperatorDecision
	Pause            = operate.Pause
	AcceptedDatabase = gate.AcceptedDatabase
	Decommissioned   = gate.Decommissioned
	DecommissionPlan = admin.DecommissionPlan
	Difference       = verify.Difference
	DifferenceKind   = verify.DifferenceKind
	Verification     = verify.Verification
	Decision         = verify.Decision
	Verified         = verify.Verified
	Outstanding      = admin.Outstanding
	Delegations      = target.Delegations
)

// Limits of a write.
const (
	MaxBodyBytes   = prepare.MaxBodyBytes
	MaxBodyDepth   = prepare.MaxBodyDepth
	MaxStatusBytes = write.MaxStatusBytes
)

// Differences that Verify finds.
const (
	TargetGone    = verify.TargetGone
	OwnerReleased = verify.OwnerReleased
)

// Errors of reads.
var (
	// ErrCostly is the error of a list that reads more rows than its page may cost.
	ErrCostly = read.ErrCostly
	// ErrSlow is the error of a watch whose reader took too long to take a delivery: open it again.
	ErrSlow = read.ErrSlow
)

// CheckMask returns an error for a field mask with more than 1,000 paths or more than 256 KiB in all paths
// together.
func CheckMask(paths []string) error { return prepare.CheckMask(paths) }

// WatchResourcesAs is Store.WatchResources with a conversion of resources, which is done once for all
// watches.
func WatchResourcesAs[T any](ctx context.Context, s *Store, req WatchRequest, as func(peer.Resource) (T, error),
	deliver func(schema.Event[T]) error,
) error {
	return read.WatchResourcesAs(ctx, s.Read, req, as, deliver)
}
