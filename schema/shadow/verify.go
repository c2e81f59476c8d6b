package shadow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// Known is what a target's deployment knows of a reference.
type Known int

// KnownNot says nothing: the answer of a version that has another word. The others are as CheckReferencesResponse has
// them.
const (
	KnownNot Known = iota
	KnownHeld
	KnownMissing
	KnownDeleting
	KnownAbsent
	knownRefused // it is missing, and cannot be established any more
)

// CheckedReference is a reference that its target's deployment is asked about.
type CheckedReference struct {
	Key       BlockadeKey
	Behaviour schema.Behaviour
}

const checkReferencesSQL = `
SELECT i.n - 1, s.state, EXISTS (
    SELECT FROM dbcontroller.blockade b WHERE b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id
        AND b.attempt = i.attempt AND b.deployment_id = $1
) OR i.behaviour <> 1 AND EXISTS (
    SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id AND e.deployment_id = $1
)
FROM unnest($2::uuid[], $3::uuid[], $4::int[], $5::uuid[], $6::smallint[]) WITH ORDINALITY
    AS i (attempt, holder_uid, field_id, target_uid, behaviour, n)
JOIN dbcontroller.shadow s ON s.uid = i.target_uid`

// CheckReferences tells what is known here of references of another deployment, in order: a blocking one has its
// blockade, the others have one until they are confirmed, and then the entry of their deployment.
func (s *Store) CheckReferences(ctx context.Context, holder schema.DeploymentID, refs []CheckedReference) ([]Known, error) {
	own := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	keys, behaviours := make([]BlockadeKey, len(refs)), make([]int16, len(refs))
	for i, r := range refs {
		keys[i], behaviours[i] = r.Key, int16(r.Behaviour)
	}
	k, err := s.keyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	out := make([]Known, len(refs))
	for i := range out {
		out[i] = KnownAbsent
	}
	err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		if epoch, err := s.epochOf(ctx, tx); err != nil || epoch != own { // what is not known there may be lost
			return cmp.Or(err, s.recoveringSelf())
		}
		rows, err := tx.Query(ctx, checkReferencesSQL, deployment, k.attempts, k.holders, k.fields, k.targets, behaviours)
		if err != nil {
			return err
		}
		var n int
		var state State
		var held bool
		_, err = pgx.ForEachRow(rows, []any{&n, &state, &held}, func() error {
			switch {
			case held:
				out[n] = KnownHeld
			case state == Deleting:
				out[n] = KnownDeleting
			default:
				out[n] = KnownMissing
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check references: %w", err)
	}
	return out, nil
}

// DifferenceKind says in what two databases differ.
type DifferenceKind string

// Kinds of differences. Of a reference: its target is gone, is deleted without it, or does not know of it. Of a blockade:
// nothing refers by it. Of an owner: it is gone, or will not tell that it goes.
const (
	TargetGone      DifferenceKind = "TARGET_GONE"
	TargetGoing     DifferenceKind = "TARGET_DELETING"
	ReferenceLost   DifferenceKind = "REFERENCE_NOT_KNOWN"
	BlockadeOfNone  DifferenceKind = "BLOCKADE_OF_NOTHING"
	OwnerGone       DifferenceKind = "OWNER_GONE"
	OwnerLetGo      DifferenceKind = "OWNER_NOT_REFERRING"
	OwneeNotNoted   DifferenceKind = "OWNEE_NOT_KNOWN"
	NotAllowed      DifferenceKind = "REFERENCE_NOT_ALLOWED"
	LocalTargetGone DifferenceKind = "LOCAL_TARGET_GONE"
	// Of a body: it names what no stored reference does, or otherwise; a stored reference is not in it; the version that runs
	// cannot read it.
	ReferenceNotStored DifferenceKind = "REFERENCE_NOT_STORED"
	ReferenceNotInBody DifferenceKind = "REFERENCE_NOT_IN_BODY"
	BodyUnreadable     DifferenceKind = "BODY_UNREADABLE"
)

// Difference is one that was found twice, so that it is nothing under way.
type Difference struct {
	Kind DifferenceKind
	// Holder refers to Target by Path; or is the ownee, and Target its owner.
	Holder, Target schema.FullName
	Path           string
	Behaviour      schema.Behaviour
	// Repaired: what is certain was done, or is work now.
	Repaired bool
}

// Cause tells how it can have come.
func (d Difference) Cause() string {
	switch d.Kind {
	case TargetGone:
		return "the target was deleted without " + d.Holder.Deployment.String() + ", or was lost in a failover of its database or by restoring it"
	case TargetGoing:
		return "the target is being deleted, and its deployment does not know of the reference"
	case ReferenceLost:
		return d.Target.Deployment.String() + " does not know of the reference: one of the two databases lost commits"
	case NotAllowed:
		return "one of the two databases lost commits, and " + d.Holder.Deployment.String() + " does not import the target's service any more"
	case BlockadeOfNone:
		return d.Holder.Deployment.String() + " has no such reference any more: one of the two databases lost commits"
	case OwnerGone:
		return "the owner is gone, and its deployment has not told it: one of the two databases lost commits"
	case OwnerLetGo:
		return "the owner has to refer to what it owns, and does not any more, which its deployment has told: one of the two databases lost commits"
	case OwneeNotNoted:
		return d.Target.Deployment.String() + " does not know that it has ownees here: one of the two databases lost commits"
	case ReferenceNotStored, ReferenceNotInBody, BodyUnreadable:
		return "somebody changed rows of the database, or it lost some: this is not something that the protocol leaves behind"
	case LocalTargetGone:
		return "the database lost rows: this is not something that the protocol leaves behind"
	}
	return ""
}

// Remedy tells what to do about it.
func (d Difference) Remedy() string {
	switch {
	case d.Repaired:
		return "repaired: it is settled in the background"
	case d.Kind == TargetGone || d.Kind == TargetGoing || d.Kind == NotAllowed || d.Kind == LocalTargetGone || d.Kind == BodyUnreadable:
		return "a person decides: update " + d.Holder.String() + " so that it refers to something that is there, or delete it"
	}
	return "verify --repair"
}

// Verification says what is compared.
type Verification struct {
	// With names the deployments; nil: all that something here refers to, is owned by, or is blocked by.
	With []schema.DeploymentID
	// Repair does what is certain.
	Repair bool
	// Bodies is from how many bodies references are derived, and compared with those that are stored: a sample, which moves
	// on from one comparison to the next; 0: from all.
	Bodies int
	// Settle is how long what differs may take to settle by itself (default 2 s).
	Settle time.Duration
	// Progress, when set, is called after each page with what was compared so far: to tell it, and to keep a rate. Its error
	// ends the verification.
	Progress func(ctx context.Context, so Verified) error
	// Report takes each difference. Its error ends the verification.
	Report func(Difference) error
}

// Verified says what was compared.
type Verified struct {
	References, Blockades, Owners, Bodies int64
	Differences, Repaired                 int64
	// Unreachable could not be asked, with why.
	Unreachable map[schema.DeploymentID]error
}

// Rows is how much was compared.
func (v Verified) Rows() int64 { return v.References + v.Blockades + v.Owners + v.Bodies }

// verifying is a verification under way: it reads its own database in pages, and asks the other side of each of them.
type verifying struct {
	store *Store
	how   Verification
	out   Verified
}

func (s *Store) verifying(how Verification) *verifying {
	if how.Settle <= 0 {
		how.Settle = 2 * time.Second
	}
	if how.Progress == nil {
		how.Progress = func(context.Context, Verified) error { return nil }
	}
	return &verifying{store: s, how: how, out: Verified{Unreachable: map[schema.DeploymentID]error{}}}
}

// Verify compares what resources here refer to, what blocks here, and the owners of resources here, with what other
// deployments have of it, and the references that bodies have with those that are stored. A difference is looked at again, so that what is under way is none. It pages through, with
// memory for a page.
func (s *Store) Verify(ctx context.Context, how Verification) (Verified, error) {
	v := s.verifying(how)
	for _, pass := range []func(context.Context, string, func(string) error) error{v.references, v.blockades, v.owners} {
		if err := pass(ctx, "", func(string) error { return nil }); err != nil {
			return v.out, fmt.Errorf("verify: %w", err)
		}
	}
	if err := v.bodies(ctx); err != nil {
		return v.out, fmt.Errorf("verify: %w", err)
	}
	return v.out, nil
}

// verifyPage is how many rows are compared at a time.
const verifyPage = 1000

func (v *verifying) concerns(d schema.DeploymentID) bool {
	return (v.how.With == nil || slices.Contains(v.how.With, d)) && v.out.Unreachable[d] == nil && !v.store.Barred(d)
}

func (v *verifying) found(d Difference) error {
	v.out.Differences++
	if d.Repaired {
		v.out.Repaired++
	}
	if v.how.Report == nil {
		return nil
	}
	return v.how.Report(d)
}

// unreachable notes that a deployment cannot be asked; the others are.
func (v *verifying) unreachable(ctx context.Context, d schema.DeploymentID, err error) error {
	if ctx.Err() != nil || v.how.With != nil { // one that was asked for has to answer
		return fmt.Errorf("ask %s: %w", d, err)
	}
	v.out.Unreachable[d] = err
	return nil
}

// settle waits a moment before differences are looked at again.
func (v *verifying) settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(v.how.Settle):
		return nil
	}
}
