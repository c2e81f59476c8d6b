package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Pages are in the order of holders, since a single target can have most of the references, which would
// mislead the planner. Local references are included, to find references without a target.
const (
	referencesPageSQL = `
SELECT r.target_id, r.behaviour, r.holder_id, r.field_id, r.attempt, r.dangling, h.uid, h.kind_id, h.name, f.deployment_id, f.uid, f.kind_id, f.name, t.id IS NOT NULL,
    CASE WHEN r.delegated THEN f.block_attempt END
FROM (
    SELECT target_id, behaviour, holder_id, field_id, attempt, dangling, delegated FROM dbcontroller.reference
    WHERE (holder_id, field_id, target_id) > ($1, $2, $3)
    ORDER BY holder_id, field_id, target_id LIMIT $4
) AS r
JOIN dbcontroller.shadow h ON h.id = r.holder_id
LEFT JOIN dbcontroller.foreign_target f ON f.id = r.target_id
LEFT JOIN dbcontroller.shadow t ON t.id = r.target_id
ORDER BY r.holder_id, r.field_id, r.target_id`

	stillReferringSQL = `
SELECT i.n - 1
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::uuid[]) WITH ORDINALITY AS i (holder_id, target_id, field_id, attempt, n)
JOIN dbcontroller.reference r ON r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id AND r.attempt IS NOT DISTINCT FROM i.attempt`

	// Only references with the attempt that was compared.
	markDanglingSQL = `
UPDATE dbcontroller.reference r SET dangling = $5
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::uuid[]) AS i (holder_id, target_id, field_id, attempt)
WHERE r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id AND r.attempt IS NOT DISTINCT FROM i.attempt AND r.dangling <> $5`

	renewAttemptSQL = `
UPDATE dbcontroller.reference r SET attempt = $5, dangling = false, delegated = false
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::uuid[]) AS i (holder_id, target_id, field_id, attempt)
WHERE r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id AND r.attempt IS NOT DISTINCT FROM i.attempt`
)

var attemptReferencesSQL = db.Codes(`
SELECT r.target_id, r.behaviour, r.holder_id, r.field_id, r.attempt, r.dangling, h.uid, h.kind_id, h.name, f.deployment_id, f.uid, f.kind_id, f.name, false,
    CASE WHEN r.delegated THEN f.block_attempt END
FROM dbcontroller.reference r
JOIN dbcontroller.shadow h ON h.id = r.holder_id
JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE f.deployment_id = $2 AND (r.attempt = ANY ($1) OR r.delegated AND r.behaviour = {block} AND f.id = ANY (ARRAY (
    SELECT p.id FROM dbcontroller.foreign_target p WHERE p.block_attempt = ANY ($1))))
ORDER BY r.holder_id, r.field_id, r.target_id`)

// A reference under a right may be under none now.
var lookAtRenewedSQL = db.LookAtRights(
	`dbcontroller.foreign_target f WHERE f.id = ANY ($1) AND f.block_attempt IS NOT NULL`)

// Releases the blockades of references that were dropped meanwhile: the confirm of the attempt would make
// these blockades permanent.
var releaseLeftSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
SELECT {release}, @shard, @deployment, @attempt, i.holder_uid, i.field_id, i.target_uid
FROM unnest(@holder_uids::uuid[], @fields::int[], @target_uids::uuid[], @holders::bigint[], @targets::bigint[]) AS i (holder_uid, field_id, target_uid, holder_id, target_id)
WHERE NOT EXISTS (
    SELECT FROM dbcontroller.reference r
    WHERE r.holder_id = i.holder_id AND r.field_id = i.field_id AND r.target_id = i.target_id AND r.attempt IS NOT DISTINCT FROM @attempt
)`)

// referenceRow is a reference with its holder and its target.
type referenceRow struct {
	targetID, holderID       int64
	behaviour                schema.Behaviour
	fieldID, kindID          int32
	attempt                  *uuid.UUID
	holderUID                uuid.UUID
	proxy                    *uuid.UUID // the attempt of the proxy that stands for a reference written under a right
	holderName               string
	deployment, targetKindID *int32
	targetUID                *uuid.UUID
	targetName               *string
	local                    bool
	dangling                 bool
	at                       schema.DeploymentID
	path                     string
	known                    peer.Known
	actedUpon                bool
	notActed                 error
}

// gone reports whether the target is gone, or will be, without acting upon the reference.
func (r *referenceRow) gone() bool {
	return r.known == peer.KnownAbsent || r.known == peer.KnownDeleting
}

// key returns the key of the blockade that holds the target. A reference whose proxy is lost there is
// established by itself.
func (r *referenceRow) key() peer.BlockadeKey {
	if r.proxy != nil && r.behaviour == schema.Block {
		return peer.BlockadeKey{
			Attempt: *r.proxy, HolderUID: *r.targetUID, Path: peer.RightPath,
			TargetUID: *r.targetUID,
		}
	}
	return peer.BlockadeKey{Attempt: *r.attempt, HolderUID: r.holderUID, Path: r.path, TargetUID: *r.targetUID}
}

func scanReferenceRow(row pgx.CollectableRow) (*referenceRow, error) {
	r := &referenceRow{}
	return r, row.Scan(&r.targetID, &r.behaviour, &r.holderID, &r.fieldID, &r.attempt, &r.dangling, &r.holderUID,
		&r.kindID, &r.holderName,
		&r.deployment, &r.targetUID, &r.targetKindID, &r.targetName, &r.local, &r.proxy)
}

func (r *referenceRow) cursor() string {
	return fmt.Sprintf("r %d %d %d", r.holderID, r.fieldID, r.targetID)
}

// references compares the references of resources here, starting after a cursor; save is called with the new
// cursor after each page.
func (v *verifying) references(ctx context.Context, cursor string, save func(string) error) error {
	var target, holder int64
	var field int32
	if cursor != "" {
		if _, err := fmt.Sscanf(cursor, "r %d %d %d", &holder, &field, &target); err != nil {
			return fmt.Errorf("cursor %q: %w", cursor, err)
		}
	}
	for {
		rows, err := v.store.Pool.Query(ctx, referencesPageSQL, holder, field, target, pageRows)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanReferenceRow)
		if err != nil || len(page) == 0 {
			return err
		}
		if err := v.comparePage(ctx, page); err != nil {
			return err
		}
		last := page[len(page)-1]
		target, holder, field = last.targetID, last.holderID, last.fieldID
		if err := save(last.cursor()); err != nil {
			return err
		}
		if err := v.how.Progress(ctx, v.out); err != nil {
			return err
		}
	}
}

// RepairAttempts compares the stored references of attempts with the records of their targets' deployment,
// and establishes lost ones again. The caller passes attempts whose confirm found nothing there: mostly the
// confirm was repeated or the reference dropped, but it can be the first sign that the targets' database has
// lost blockades. It fails with an UnavailableError or a transport error when the deployment cannot be asked.
func (s *Verifier) RepairAttempts(ctx context.Context, at schema.DeploymentID, attempts []peer.AttemptID) error {
	if len(attempts) == 0 {
		return nil
	}
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	rows, err := s.Pool.Query(ctx, attemptReferencesSQL, attempts, deployment)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, scanReferenceRow)
	if err != nil {
		return err
	}
	v := s.verifying(Verification{Repair: true, With: []schema.DeploymentID{at}})
	for page := range slices.Chunk(all, pageRows) {
		if err := v.comparePage(ctx, page); err != nil {
			return err
		}
	}
	if v.out.Repaired > 0 {
		s.Log.Warn("references were established again: the database of their targets had lost them",
			zap.Stringer("deployment", at), zap.Int64("references", v.out.Repaired))
	}
	return v.waits()
}

// waits fails when references were refused for reasons that can pass: they are to be established later. Until
// then their targets' deployment waits for the comparison, unless an operator waives it.
func (v *verifying) waits() error {
	if v.refused == nil {
		return nil
	}
	return fmt.Errorf("%d references are refused for now, and tried again: %w", v.refused.Total(), v.refused)
}

func (v *verifying) comparePage(ctx context.Context, page []*referenceRow) error {
	by := map[schema.DeploymentID][]*referenceRow{}
	for _, r := range page {
		var err error
		if r.path, err = v.store.Names.FieldOf(ctx, v.store.Pool, r.fieldID); err != nil {
			return err
		}
		switch {
		case r.behaviour == schema.AllowDangling:
		case r.deployment == nil && !r.local:
			d := Difference{
				Kind: LocalTargetGone, Holder: v.store.FullName(r.holderName),
				Target: v.store.FullName("?"), Path: r.path, Behaviour: r.behaviour,
			}
			if err := v.found(d); err != nil {
				return err
			}
		case r.deployment == nil:
			v.out.References++
		default:
			if r.at, err = v.store.Names.DeploymentOf(ctx, v.store.Pool, *r.deployment); err != nil {
				return err
			}
			by[r.at] = append(by[r.at], r)
		}
	}
	for at, refs := range by {
		if !v.concerns(at) {
			continue
		}
		v.out.References += int64(len(refs))
		if err := v.compareAt(ctx, at, refs); err != nil {
			return err
		}
	}
	return nil
}

// compareAt compares references to resources of one deployment, and repairs and reports the differences.
func (v *verifying) compareAt(ctx context.Context, at schema.DeploymentID, refs []*referenceRow) error {
	before, err := v.epochs(ctx, at)
	if err != nil {
		return err
	}
	differing, err := v.differing(ctx, at, refs)
	if err == nil {
		err = v.repairReferences(ctx, at, differing)
	}
	if err != nil {
		return v.unreachable(ctx, at, err)
	}
	if err := v.actUpon(ctx, at, differing, before); err != nil {
		return err
	}
	for _, r := range differing {
		d := Difference{
			Kind: differenceOf[r.known], Holder: v.store.FullName(r.holderName), Target: schema.FullName{
				Deployment: at,
				Name:       *r.targetName,
			},
			Path: r.path, Behaviour: r.behaviour, Repaired: v.how.Repair && r.known == peer.KnownMissing || r.actedUpon,
			ActedUpon: r.actedUpon, Err: r.notActed,
		}
		if err := v.found(d); err != nil {
			return err
		}
	}
	return nil
}

// differing returns the references that the target's deployment has no record of, and which are still stored
// after its answer. That is conclusive, since the target's side has a blockade or a holder entry from before
// the reference commits until after it is dropped.
func (v *verifying) differing(ctx context.Context, at schema.DeploymentID,
	refs []*referenceRow,
) ([]*referenceRow, error) {
	questions := make([]peer.CheckedReference, len(refs))
	for i, r := range refs {
		questions[i] = peer.CheckedReference{Key: r.key(), Behaviour: r.behaviour}
	}
	known, err := v.store.Peers.CheckReferences(ctx, at, questions)
	if err != nil {
		return nil, err
	}
	if len(known) != len(refs) {
		return nil, fmt.Errorf("%d answers to %d questions", len(known), len(refs))
	}
	var suspicious, back []*referenceRow
	for i, r := range refs {
		if r.known = known[i]; r.known == peer.KnownHeld && r.dangling {
			back = append(back, r)
		}
		if r.known == peer.KnownNot && v.how.Repair {
			// unknown is not held
			return nil, fmt.Errorf(
				"%s runs another version, and answered with an unknown state of a reference of %s; upgrade this process", at, r.holderName)
		}
		if r.known != peer.KnownHeld && r.known != peer.KnownNot {
			suspicious = append(suspicious, r)
		}
	}
	if v.how.Repair {
		if err := v.markDangling(ctx, back, false); err != nil { // the target exists again: its database was restored
			return nil, err
		}
	}
	if len(suspicious) == 0 {
		return nil, nil
	}
	holders, targets, fields, attempts := referenceColumns(suspicious)
	rows, err := v.store.Pool.Query(ctx, stillReferringSQL, holders, targets, fields, attempts)
	if err != nil {
		return nil, err
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[int])
	out := make([]*referenceRow, len(there))
	for i, n := range there {
		out[i] = suspicious[n]
	}
	return out, err
}

func referenceColumns(refs []*referenceRow) (holders, targets []int64, fields []int32, attempts []uuid.UUID) {
	for _, r := range refs {
		holders, targets = append(holders, r.holderID), append(targets, r.targetID)
		fields, attempts = append(fields, r.fieldID), append(attempts, *r.attempt)
	}
	return holders, targets, fields, attempts
}

// repairReferences establishes lost references again, and marks references whose targets are gone as
// dangling, until they are acted upon or a user updates or deletes their holders.
func (v *verifying) repairReferences(ctx context.Context, at schema.DeploymentID, refs []*referenceRow) error {
	if !v.how.Repair || len(refs) == 0 {
		return nil
	}
	if err := v.reestablish(ctx, at, refs); err != nil {
		return err
	}
	return v.markDangling(ctx, slices.DeleteFunc(slices.Clone(refs), func(r *referenceRow) bool {
		return !r.gone()
	}), true)
}

var differenceOf = map[peer.Known]DifferenceKind{
	peer.KnownMissing: ReferenceLost, peer.KnownDeleting: TargetGoing,
	peer.KnownAbsent: TargetGone, peer.KnownRefused: NotAllowed,
}

// markDangling sets or clears the dangling mark of references: their targets were deleted without acting upon
// them.
func (v *verifying) markDangling(ctx context.Context, refs []*referenceRow, dangling bool) error {
	if len(refs) == 0 {
		return nil
	}
	holders, targets, fields, attempts := referenceColumns(refs)
	return v.store.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markDanglingSQL, holders, targets, fields, attempts, dangling)
		return err
	})
}

// reestablish establishes the KnownMissing references again under a new attempt, as they are stored: with the
// same target, even if the current version derives other references from the bodies. A release of the old
// attempt that is still under way does not affect the new one. Refused references get their new state in
// known.
func (v *verifying) reestablish(ctx context.Context, at schema.DeploymentID, refs []*referenceRow) error {
	for {
		var lost []*referenceRow
		var request []peer.EstablishReference
		for _, r := range refs {
			if r.known != peer.KnownMissing {
				continue
			}
			e, err := v.request(ctx, r)
			if err != nil {
				return err
			}
			lost, request = append(lost, r), append(request, e)
		}
		if len(lost) == 0 {
			return nil
		}
		began, epoch := v.store.Rollback.Seen.Load(), v.store.gate.PresentEpoch()
		attempt := uuid.Must(uuid.NewV7())
		answer, err := v.store.Peers.Establish(ctx, at, attempt, request)
		var refused *peer.RefusedError
		switch {
		case errors.As(err, &refused) && v.leaveRefused(lost, refused):
		case err != nil: // also a refusal of the attempt, which another one does not get
			return err
		default:
			return v.renew(ctx, at, lost, attempt, began, epoch, answer.Epoch)
		}
	}
}

func (v *verifying) request(ctx context.Context, r *referenceRow) (e peer.EstablishReference, err error) {
	holder, err := v.store.Names.KindOf(ctx, v.store.Pool, r.kindID)
	if err != nil {
		return e, err
	}
	target, err := v.store.Names.KindOf(ctx, v.store.Pool, *r.targetKindID)
	return peer.EstablishReference{
		HolderUID: r.holderUID, HolderKind: holder.Kind, HolderName: r.holderName, Path: r.path,
		TargetKind: target.Kind, TargetName: *r.targetName, TargetUID: *r.targetUID, Behaviour: r.behaviour,
	}, err
}

// leaveRefused sets the state of the refused references, so that the others are established without them, and
// reports whether there is one. A refusal for a reason that can pass is not an absent target: the reference
// is left as it is, and noted in v.refused.
func (v *verifying) leaveRefused(refs []*referenceRow, refused *peer.RefusedError) bool {
	left := false
	for _, r := range refs {
		for _, no := range refused.Refusals {
			if no.Holder != r.holderName || no.Path != r.path || no.Target.Name != *r.targetName {
				continue
			}
			switch {
			case no.Reason == peer.TargetMissing || no.Reason == peer.TargetReplaced:
				r.known, left = peer.KnownAbsent, true
			case no.Reason == peer.TargetDeleting:
				r.known, left = peer.KnownDeleting, true
			case no.Reason.Standing() == peer.Later, no.Reason == peer.TargetDeleted: // an undelete ends that
				r.known, left = peer.KnownRefused, true
				v.noteRefusal(no)
			}
		}
	}
	return left
}

// maxRefusals is the number of refusals that a verification remembers; it counts the others.
const maxRefusals = 10

func (v *verifying) noteRefusal(no peer.Refusal) {
	if v.refused == nil {
		v.refused = &peer.RefusedError{}
	}
	if len(v.refused.Refusals) == maxRefusals {
		v.refused.More++
		return
	}
	v.refused.Refusals = append(v.refused.Refusals, no)
}

// renew commits the attempt that replaces the lost ones in the references, and releases blockades that were
// established for references that were dropped meanwhile.
func (v *verifying) renew(ctx context.Context, at schema.DeploymentID, refs []*referenceRow, attempt peer.AttemptID,
	began int64, epoch, there uuid.UUID,
) error {
	s := v.store
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	holders, targets, fields, attempts := referenceColumns(refs)
	var holderUIDs, targetUIDs []uuid.UUID
	for _, r := range refs {
		holderUIDs, targetUIDs = append(holderUIDs, r.holderUID), append(targetUIDs, *r.targetUID)
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		view := gate.CommitView{Present: s.gate.Present(tx)}
		b := &pgx.Batch{}
		b.Queue(gate.ShareVersionSQL, gate.VersionLock)
		b.Queue(gate.SelectNowSQL, []int32{deployment}, []uuid.UUID{there}).QueryRow(view.Scan)
		b.Queue(write.LockOwnSQL, slices.Compact(slices.Sorted(slices.Values(holders))))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if !view.InEpoch(epoch) || slices.Contains(view.Decommissioned, deployment) || view.TooLate(attempt) {
			return fmt.Errorf(
				"%w: a database failed over or was restored, %s was decommissioned, or the attempt is too old",
				peer.ErrAborted, at)
		}
		b = &pgx.Batch{}
		b.Queue(renewAttemptSQL, holders, targets, fields, attempts, attempt)
		write.QueueDecision(b, began, attempt)
		b.Queue(write.ConfirmWorkSQL, []int16{int16(schema.Shard(refs[0].holderName))}, []int32{deployment},
			[]peer.AttemptID{attempt}, []int32{int32(len(refs))})
		b.Queue(lookAtRenewedSQL, targets)
		b.Queue(releaseLeftSQL, db.Named{
			"shard": schema.Shard(refs[0].holderName), "deployment": deployment, "attempt": attempt,
			"holder_uids": holderUIDs, "fields": fields, "target_uids": targetUIDs, "holders": holders,
			"targets": targets,
		})
		return tx.SendBatch(ctx, b).Close()
	})
	return write.Undecided(ctx, s.DB, err)
}
