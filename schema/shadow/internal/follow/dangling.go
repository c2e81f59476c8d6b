package follow

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// Dangling are references to targets of another deployment that do not exist there any more, and an
// operator's decision that they act as at a deletion of their targets.
type Dangling struct {
	// From is the deployment of the targets.
	From    schema.DeploymentID
	Targets []uuid.UUID
	// Holders of the references, in order, no more than one transaction takes.
	Holders []int64
	Cause   *schema.Cause
	// Own and There are the epochs of this database and of From's, as they were known before From was asked.
	Own, There uuid.UUID
}

// ActOnDangling unsets and cascades the holders of dangling references. Under the holders' locks it reads
// again which of these references still dangle: a reference that was established again, or refers elsewhere,
// is left alone. It is idempotent, and returns the references that it has acted upon, and the errors of
// holders that could not be handled, by id. It fails with ErrStaleEpoch when one of the two databases has
// failed over or was restored since From was asked, because then the targets may exist again, or when From
// was decommissioned.
func (s *Follower) ActOnDangling(ctx context.Context,
	d Dangling,
) (acted []plan.Edge, failed map[int64]error, err error) {
	if _, err := s.Current(); err != nil {
		return nil, nil, err
	}
	a := &acting{
		store: s, from: d.From, began: time.Now(), patience: math.MaxInt64, actingOn: danglingOnSQL, dangling: &d,
		deletions: map[uuid.UUID]schema.Deletion{}, failed: map[uuid.UUID]error{},
		failedHolders: map[uuid.UUID]failedHolders{}, meeting: map[int64]bool{},
	}
	for _, uid := range d.Targets {
		a.deletions[uid] = schema.Deletion{UID: uid, Cause: d.Cause}
	}
	if err := a.load(ctx, d.Targets); err != nil {
		return nil, nil, err
	}
	targets := slices.Sorted(maps.Keys(a.targets))
	if _, err := a.batch(ctx, targets, d.Holders, false); err != nil {
		return nil, nil, fmt.Errorf("act upon dangling references to %s: %w", d.From, err)
	}
	failed = map[int64]error{}
	for _, f := range a.failedHolders {
		for id := range f.holders {
			failed[id] = f.cause
		}
	}
	return a.acted, failed, s.ForgetUnreferred(ctx, targets)
}

// sameEpochs fails with ErrStaleEpoch when an epoch has ended since the targets' deployment was asked. An
// epoch that is announced later waits for the version's lock, until this transaction ends.
func (s *Follower) sameEpochs(ctx context.Context, tx pgx.Tx, from int32, d Dangling) error {
	view := gate.CommitView{Present: s.gate.Present(tx)}
	b := &pgx.Batch{}
	b.Queue(gate.ShareVersionSQL, gate.VersionLock)
	b.Queue(gate.SelectNowSQL, []int32{from}, []uuid.UUID{d.There}).QueryRow(view.Scan)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if !view.InEpoch(d.Own) || slices.Contains(view.Decommissioned, from) {
		return peer.ErrStaleEpoch
	}
	return nil
}

var danglingOnSQL = actingOnSQL + ` AND dangling`
