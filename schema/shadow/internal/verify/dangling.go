package verify

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
)

const selectPeerEpochSQL = `SELECT COALESCE(epoch, '00000000-0000-0000-0000-000000000000') FROM dbcontroller.deployment WHERE id = $1`

// epochPair are the epochs of this database and of another deployment's, the zero one when that has announced
// none.
type epochPair struct{ own, there uuid.UUID }

// epochs are read before a deployment is asked, when references may be acted upon by its answers.
func (v *verifying) epochs(ctx context.Context, at schema.DeploymentID) (e epochPair, err error) {
	if v.how.Dangling == nil {
		return e, nil
	}
	id, err := v.store.Names.Deployment(ctx, at)
	if err != nil {
		return e, err
	}
	e.own = v.store.gate.PresentEpoch()
	return e, v.store.Pool.QueryRow(ctx, selectPeerEpochSQL, id).Scan(&e.there)
}

// Why a reference is not acted upon.
var (
	errEpochEnded = errors.New(
		"one of the two databases failed over or was restored meanwhile, or the deployment was decommissioned")
	errChanged = errors.New("the reference has changed meanwhile")
)

// actUpon unsets and cascades the references of a page whose targets are gone, when an operator has decided
// so. A reference that blocks is left: its holder is a person's to decide about.
func (v *verifying) actUpon(ctx context.Context, at schema.DeploymentID, refs []*referenceRow, asked epochPair) error {
	refs = slices.DeleteFunc(slices.Clone(refs), func(r *referenceRow) bool { return !r.gone() || !r.behaviour.Acts() })
	if v.how.Dangling == nil || len(refs) == 0 {
		return nil
	}
	cause, err := v.causeAt(ctx, at)
	if err != nil {
		return err
	}
	d := follow.Dangling{From: at, Cause: cause, Own: asked.own, There: asked.there}
	for _, r := range refs {
		d.Targets, d.Holders = append(d.Targets, *r.targetUID), append(d.Holders, r.holderID)
	}
	slices.Sort(d.Holders)
	d.Holders = slices.Compact(d.Holders)
	acted, failed, err := v.store.follow.ActOnDangling(ctx, d)
	ended := errors.Is(err, peer.ErrStaleEpoch)
	if err != nil && !ended {
		return err
	}
	crash.At("crash-dangling-acted")
	did := map[[3]int64]bool{}
	for _, e := range acted {
		did[[3]int64{e.HolderID, int64(e.FieldID), e.TargetID}] = true
	}
	for _, r := range refs {
		switch {
		case ended:
			r.notActed = errEpochEnded
		case did[[3]int64{r.holderID, int64(r.fieldID), r.targetID}]:
			r.actedUpon = true
		default:
			r.notActed = cmp.Or(failed[r.holderID], errChanged)
		}
	}
	return nil
}

// causeAt records the decision about references to a deployment's resources, once in a verification, and
// returns the cause of the removals that follow from it.
func (v *verifying) causeAt(ctx context.Context, at schema.DeploymentID) (*schema.Cause, error) {
	if cause := v.causes[at]; cause != nil {
		return cause, nil
	}
	id, err := v.store.Names.Deployment(ctx, at)
	if err != nil {
		return nil, err
	}
	d := v.how.Dangling
	if err := v.store.gate.RecordDanglingActed(ctx, id, d.Reason, d.By); err != nil {
		return nil, err
	}
	v.store.Log.Warn("acting upon references whose targets are gone", zap.Stringer("deployment", at),
		zap.String("by", d.By), zap.String("reason", d.Reason), requestid.Field(ctx))
	cause := &schema.Cause{
		ID: uuid.New(), Root: "//" + at.String(), Actor: d.By, RequestID: requestid.ID(ctx),
		At: time.Now(),
	}
	if v.causes == nil {
		v.causes = map[schema.DeploymentID]*schema.Cause{}
	}
	v.causes[at] = cause
	return cause, nil
}
