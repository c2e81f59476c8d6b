package attempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// EstablishAll establishes the attempt's references at all targets' deployments concurrently. When one
// refuses or does not answer, the attempt is decided ABORTED at once, and its blockades, including possible
// ones, are released.
func EstablishAll(ctx context.Context, a *Attempts, sv *prepare.Saving) error {
	var (
		mu      sync.Mutex
		refused peer.RefusedError // guarded by mu
		// Deployments that have, or may have, blockades of the attempt; guarded by mu.
		asked []schema.DeploymentID
		wg    sync.WaitGroup
	)
	for target, refs := range sv.Foreign {
		wg.Go(func() {
			failed, reached := EstablishBy(ctx, a, a.Peers.Establish, sv.Attempt, target, refs)
			mu.Lock()
			defer mu.Unlock()
			refused.Add(failed)
			if reached {
				asked = append(asked, target)
			}
		})
	}
	wg.Wait()
	if refused.Total() == 0 {
		return nil
	}
	if len(asked) == 0 {
		return refused.Sorted()
	}
	if _, err := Abandon(ctx, a, sv, asked); err != nil {
		// I5
		a.Log.Warn("cannot record an aborted attempt; its blockades are resolved when they expire", zap.Error(err),
			requestid.Field(ctx))
	}
	return refused.Sorted()
}

// Call is Establish or WouldEstablish of another deployment.
type Call func(ctx context.Context, target schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference) (*peer.Established, error)

// EstablishBy returns the refused references, and whether the deployment may have inserted blockades.
func EstablishBy(ctx context.Context, a *Attempts, call Call, attempt peer.AttemptID, target schema.DeploymentID,
	refs []*prepare.NewReference,
) (refused *peer.RefusedError, reached bool) {
	if a.gate.IsDecommissioned(target) {
		return refuseAll(refs, peer.TargetDecommissioned, ""), false
	}
	answer, err := call(ctx, target, attempt, establishRequest(refs))
	a.Log.Debug("a deployment was asked to establish references", zap.Stringer("deployment", target),
		zap.Stringer("attempt", attempt), zap.Int("references", len(refs)), zap.Error(err), requestid.Field(ctx))
	if err == nil && len(answer.UIDs) != len(refs) {
		err = fmt.Errorf("its answer has %d uids for %d references", len(answer.UIDs), len(refs))
	}
	if err != nil {
		return refusalsOf(refs, err)
	}
	for i, r := range refs {
		r.UID, r.Epoch = answer.UIDs[i], answer.Epoch
	}
	return nil, true
}

func establishRequest(refs []*prepare.NewReference) []peer.EstablishReference {
	request := make([]peer.EstablishReference, len(refs))
	for i, r := range refs {
		request[i] = peer.EstablishReference{
			HolderUID: r.Holder.ShadowUID, HolderKind: r.Holder.Kind.Kind, HolderName: r.Holder.Name, Path: r.Path,
			TargetKind: r.TargetKind.Kind, TargetName: r.Target.Name, TargetUID: r.ReplacedUID(),
			Behaviour: r.Behaviour, Right: r.ReplacedRight(),
		}
	}
	return request
}

// refusalsOf translates an error of an Establish call into refusals: of the references that it names, or of
// all. reached reports whether the call may have inserted blockades.
func refusalsOf(refs []*prepare.NewReference, err error) (refused *peer.RefusedError, reached bool) {
	switch {
	case err == nil:
		return nil, true
	case errors.As(err, &refused):
		return refused, false // all or nothing
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, peer.ErrNotSent):
		return refuseAll(refs, peer.TargetSlow, ""), true
	}
	return refuseAll(refs, peer.TargetUnreadable, err.Error()), !errors.Is(err, peer.ErrNotSent)
}

func refuseAll(refs []*prepare.NewReference, reason peer.Reason, detail string) *peer.RefusedError {
	e := &peer.RefusedError{Refusals: make([]peer.Refusal, len(refs))}
	for i, r := range refs {
		e.Refusals[i] = peer.Refusal{
			Holder: r.Holder.Name, Path: r.Path, Target: r.Target, Reason: reason,
			Detail: detail,
		}
	}
	return e
}

const (
	decideAbortedSQL = `
INSERT INTO dbcontroller.attempt (id, committed) SELECT unnest($1::uuid[]), false
ON CONFLICT (id) DO NOTHING`

	standsSQL          = `SELECT EXISTS (SELECT FROM dbcontroller.reference WHERE holder_id = ANY ($1) AND attempt = $2)`
	selectDecisionsSQL = `SELECT id, committed FROM dbcontroller.attempt WHERE id = ANY ($1)`
	// The caller's own transaction may have scheduled its deletion: it is not aborted then either.
	selectOutcomeSQL = `SELECT COALESCE(committed, true) FROM dbcontroller.attempt WHERE id = $1`
)

var (
	releaseAttemptSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt)
SELECT {release}, $1, d, $2 FROM unnest($3::int[]) AS d`)

	// One release stands for all attempts of a repeated write. A further attempt makes new work of it: an
	// attempt that is added while its release is under way is not finished with it. It returns the
	// deployments with a release of this attempt: the others got one from a concurrent transaction, for which
	// it has waited, and which the next statement sees.
	releaseChainSQL = db.Codes(`
WITH before AS (
    DELETE FROM dbcontroller.work WHERE chain = @chain AND deployment_id = ANY (@deployments::int[]) RETURNING deployment_id, attempt, earlier
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, chain, earlier)
SELECT {release}, @shard, d, @attempt, @chain, CASE WHEN b.attempt IS NOT NULL THEN (array_prepend(b.attempt, b.earlier))[:@most] END
FROM unnest(@deployments::int[]) AS d LEFT JOIN before b ON b.deployment_id = d ORDER BY d
ON CONFLICT (chain, deployment_id) WHERE chain IS NOT NULL DO NOTHING RETURNING deployment_id`)
)

// earlierReleased bounds the earlier attempts of a release, so that a batch of 1,000 releases has at most the
// 10,000 attempts that one call may have. The blockades of attempts before them expire, are resolved, and
// removed.
const earlierReleased = 9

// chain returns an id that all attempts of a repeated write share: a hash of its holders' names.
func chain(sv *prepare.Saving) uuid.UUID {
	names := make([]string, len(sv.Writes))
	for i, wr := range sv.Writes {
		names[i] = wr.Name
	}
	return uuid.NewSHA1(uuid.Nil, []byte(strings.Join(names, "\n")))
}

// Abandon decides the attempt ABORTED and adds the releases of its blockades as work, for the deployments
// that have, or may have, some. It returns true, and adds nothing, when the attempt has committed.
func Abandon(ctx context.Context, a *Attempts, sv *prepare.Saving,
	at []schema.DeploymentID,
) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	numbers := make([]int32, len(at))
	for i, d := range at {
		if numbers[i], err = a.Names.Deployment(ctx, d); err != nil {
			return false, err
		}
	}
	var holders []int64
	for _, wr := range sv.Writes {
		holders = append(holders, wr.ID)
	}
	err = a.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		// A process that was paused for long may find its decision tidied; the references then prove the
		// commit.
		if err := tx.QueryRow(ctx, standsSQL, holders, sv.Attempt).Scan(&committed); err != nil || committed {
			return err
		}
		if committed, err = abort(ctx, tx, sv.Attempt); err != nil || committed {
			return err
		}
		return release(ctx, tx, sv, numbers)
	})
	return committed, err
}

// abort decides an attempt ABORTED, and reports whether it has committed, or is scheduled.
func abort(ctx context.Context, tx pgx.Tx, attempt peer.AttemptID) (committed bool, err error) {
	attempts := []peer.AttemptID{attempt}
	if _, err := tx.Exec(ctx, decideAbortedSQL, attempts); err != nil {
		return false, err
	}
	// A statement of its own: its snapshot sees a commit for which the insert waited.
	err = tx.QueryRow(ctx, selectOutcomeSQL, attempt).Scan(&committed)
	return committed, err
}

// release adds the releases of an attempt at deployments.
func release(ctx context.Context, tx pgx.Tx, sv *prepare.Saving, deployments []int32) error {
	left := slices.Clone(deployments)
	for len(left) > 0 {
		rows, err := tx.Query(ctx, releaseChainSQL, db.Named{
			"shard": schema.Shard(sv.Writes[0].Name), "attempt": sv.Attempt, "deployments": left, "chain": chain(sv),
			"most": earlierReleased,
		})
		if err != nil {
			return err
		}
		added, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(d int32) bool { return slices.Contains(added, d) })
	}
	return nil
}

// AbandonAt decides an attempt ABORTED, unless it has committed, and adds the release of its blockades at a
// deployment as work.
func AbandonAt(ctx context.Context, a *Attempts, attempt peer.AttemptID, established int32) error {
	_, err := Abort(ctx, a, attempt, []int32{established})
	return err
}

// Abort decides an attempt ABORTED, and adds the releases of its blockades, or of the resources that it has
// frozen, at deployments as work. It returns true, and adds nothing, when the attempt has committed.
func Abort(ctx context.Context, a *Attempts, attempt peer.AttemptID, at []int32) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = a.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		if committed, err = abort(ctx, tx, attempt); err != nil || committed {
			return err
		}
		_, err := tx.Exec(ctx, releaseAttemptSQL, int16(attempt[15])%schema.RingSize, attempt, at)
		return err
	})
	return committed, err
}
