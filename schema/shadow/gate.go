package shadow

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// The methods of three rooms that a Store has. Their other methods are for rooms alone. They are described in the rooms
// (internal/gate, follow, cascade).
type (
	// epochs of this database.
	epochs interface {
		NoticeEpoch(ctx context.Context) (awaiting bool, err error)
		PresentEpoch() uuid.UUID
		EpochChanged() <-chan struct{}
		OutdoEpoch(ctx context.Context, by schema.DeploymentID, known uuid.UUID) error
	}
	// peerEpochs are the epochs of other deployments' databases, and their questions about the epoch of this
	// one.
	peerEpochs interface {
		PeerEpoch(ctx context.Context, of schema.DeploymentID) (uuid.UUID, error)
		ReferredKinds(ctx context.Context, of schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error)
		RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID, refersTo peer.TargetKinds) (known uuid.UUID, err error)
	}
	// recovery after a failover or a restore.
	recovery interface {
		Recover(ctx context.Context, env *schema.Environment) error
		EpochToAnnounce(ctx context.Context) (uuid.UUID, error)
		MarkAnnounced(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID) error
		MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error
		ForgetServer(ctx context.Context) error
	}
	// databases are the identities of this deployment's database and of other deployments' databases.
	databases interface {
		Database() uuid.UUID
		CheckCaller(ctx context.Context, who schema.DeploymentID) error
		CheckDatabase(ctx context.Context, with schema.DeploymentID, database uuid.UUID) error
		DatabaseMismatches() []DatabaseMismatch
		AcceptDatabase(ctx context.Context, d AcceptedDatabase) error
	}
	// others are the decisions of operators about other deployments.
	others interface {
		Decommissioned(ctx context.Context) ([]Decommissioned, error)
		IsDecommissioned(id schema.DeploymentID) bool
	}
	// versions of the service.
	versions interface {
		Runs(ctx context.Context, model *schema.Model) (bool, error)
		RunningVersion(ctx context.Context) (string, error)
		Superseded() <-chan struct{}
	}
	// positions of watches of deletions in other deployments.
	positions interface {
		HasPosition(ctx context.Context, of schema.DeploymentID) (bool, error)
		Position(ctx context.Context, of schema.DeploymentID) (token string, err error)
		KeepPositions(ctx context.Context, positions []peer.Position) (kept []bool, err error)
	}
	// following is acting on the holders of deleted resources; finalising is removing resources that wait for nothing any more.
	following interface {
		ActFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, patience time.Duration) (map[uuid.UUID]error, error)
		Forget(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion) error
	}
	finalising interface {
		Finalise(ctx context.Context, seqs []int64) (removed int, err error)
	}
)
