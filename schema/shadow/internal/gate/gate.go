// Package gate checks the conditions of a write transaction: the epoch and the identity of the database, the
// version of the service, and the recorded epochs and databases of other deployments. It divides the shards
// of a deployment among its processes, whose leases write transactions check.
package gate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Gate caches the epochs, databases and versions that this process has read.
type Gate struct {
	*db.DB

	// epoch of the database, as of the last NoticeEpoch; epochChanged receives when a transaction met another
	// one (capacity one).
	epoch        atomic.Pointer[uuid.UUID]
	epochChanged chan struct{}
	// superseded, looked and expired have capacity one; see the methods of these names.
	superseded, looked, expired chan struct{}
	// lookedAt is the time of the last look after which nothing was left to notice; nil before the first.
	lookedAt atomic.Pointer[time.Time]
	// referenced are the deployments that the node manager has read last; nil before it has.
	referenced atomic.Pointer[[]int32]
	// database is the identity of this deployment's database, set by the first NoticeEpoch. checkedDatabases
	// are the identities of the other deployments' databases (uuid.UUID by schema.DeploymentID) that were
	// compared recently, mismatches the ones that differed, and flagged a cache of the flags known to be
	// stored.
	database                              atomic.Pointer[uuid.UUID]
	checkedDatabases, mismatches, flagged sync.Map
	// strangers are the strangers (schema.DeploymentID) that this process has logged.
	strangers sync.Map
	// list is the reason why a recovery does not know the deployments that may refer to resources here; nil
	// when it knows them, or has not asked.
	list atomic.Pointer[peer.ListError]
	// outdone are the deployments (schema.DeploymentID) that knew a later epoch of this database, since an
	// epoch began for another reason.
	outdone sync.Map
	// referred are the kinds (peer.TargetKinds) of other deployments to which the database refers in an epoch
	// (referredIn).
	referred sync.Map
	reading  singleflight.Group // of referred
	// environment is the one of the last Recover of this process.
	environment atomic.Pointer[schema.Environment]
	// latest returns the newest environment that the process has; nil until Follow.
	latest atomic.Pointer[func() *schema.Environment]
	// NotedTargets is a cache of the deployments (int32) that are stored as referred to.
	NotedTargets sync.Map
	// Unknown bounds the rows about attempts that have nothing here.
	Unknown *Allowance
	// decommissioned are the decommissioned deployments that this process has read.
	decommissioned atomic.Pointer[[]schema.DeploymentID]
}

// New reads the epoch of the database and the decommissioned deployments.
func New(ctx context.Context, d *db.DB) (*Gate, error) {
	s := &Gate{
		DB: d, epochChanged: make(chan struct{}, 1), superseded: make(chan struct{}, 1),
		looked: make(chan struct{}, 1), expired: make(chan struct{}, 1),
	}
	s.Unknown = newAllowance(func() int64 {
		return d.Tuning.Load().Quotas.Tentative
	}, func() time.Time { return d.Now() })
	if _, err := s.NoticeEpoch(ctx); err != nil {
		return nil, err
	}
	return s, s.LoadDecommissioned(ctx)
}
