package verify

import (
	"context"
	"slices"
	"time"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// DifferenceKind classifies a difference between two databases, or between a body and its stored references.
type DifferenceKind string

// Kinds of differences. Of a reference: its target is gone, is being deleted without acting upon it, or its
// deployment has no record of it. Of a blockade: no reference belongs to it. Of an owner: it is gone, lacks a
// required reference, or its deployment has no ownee entry, so that its deletion would not reach the ownee.
const (
	TargetGone      DifferenceKind = "TARGET_GONE"
	TargetGoing     DifferenceKind = "TARGET_DELETING"
	ReferenceLost   DifferenceKind = "REFERENCE_NOT_KNOWN"
	BlockadeOfNone  DifferenceKind = "BLOCKADE_OF_NOTHING"
	OwnerGone       DifferenceKind = "OWNER_GONE"
	OwnerReleased   DifferenceKind = "OWNER_NOT_REFERRING"
	OwneeNotNoted   DifferenceKind = "OWNEE_NOT_KNOWN"
	NotAllowed      DifferenceKind = "REFERENCE_NOT_ALLOWED"
	LocalTargetGone DifferenceKind = "LOCAL_TARGET_GONE"
	// Of a body: a reference in it is not stored, or is stored with another behaviour or target; a stored
	// reference is not in it; the current version cannot parse it.
	ReferenceNotStored DifferenceKind = "REFERENCE_NOT_STORED"
	ReferenceNotInBody DifferenceKind = "REFERENCE_NOT_IN_BODY"
	BodyUnreadable     DifferenceKind = "BODY_UNREADABLE"
	// Of a list of owners, which is stored with the body: an owner in it is not stored as one; a stored one
	// is not in it.
	OwnerNotStored DifferenceKind = "OWNER_NOT_STORED"
	OwnerNotListed DifferenceKind = "OWNER_NOT_IN_LIST"
	// Of an attached table: a row changed, or is gone, and no trigger saw it; its triggers differ from the
	// triggers that attach creates.
	RowMissed    DifferenceKind = "ROW_MISSED"
	TriggerDrift DifferenceKind = "TRIGGER_DRIFT"
)

// Difference was found twice, with Verification.Settle in between, so that it is not caused by messages under
// way.
type Difference struct {
	Kind DifferenceKind
	// Holder refers to Target by Path. For an owner reference, Holder is the ownee, Target its owner, and
	// Path "@owner".
	Holder, Target schema.FullName
	Path           string
	Behaviour      schema.Behaviour
	// Repaired: the repair is done, or is queued as work.
	Repaired bool
	// ActedUpon: the reference was unset, or its holder deleted, by the decision of Verification.Dangling.
	ActedUpon bool
	// Err is the error that kept it from being acted upon in spite of the decision.
	Err error
}

// Dangles reports whether the target is gone, or will be, without acting upon the reference.
func (d Difference) Dangles() bool { return d.Kind == TargetGone || d.Kind == TargetGoing }

// Cause describes, for operators, the possible cause of the difference.
func (d Difference) Cause() string {
	switch d.Kind {
	case TargetGone:
		return "the target was deleted without acting upon the reference from " + d.Holder.Deployment.String() +
			", or was lost when its database failed over or was restored"
	case TargetGoing:
		return "the target is being deleted, and its deployment has no record of the reference"
	case ReferenceLost:
		return d.Target.Deployment.String() + " has no record of the reference: one of the two databases lost commits"
	case NotAllowed:
		return "one of the two databases lost commits, and " + d.Target.Deployment.String() +
			" refuses the reference for now: " + d.Holder.Deployment.String() +
			" does not import the target's service, the target's kind does not accept it, or a quota is full"
	case BlockadeOfNone:
		return "no reference in " + d.Holder.Deployment.String() +
			" belongs to the blockade: one of the two databases lost commits"
	case OwnerGone:
		return "the owner is gone, and the message about its deletion did not arrive: one of the two databases lost commits"
	case OwnerReleased:
		return "the owner does not refer to its ownee, which it is required to, and the message about that did not arrive: one of the two databases lost commits"
	case OwneeNotNoted:
		return d.Target.Deployment.String() +
			" has no record that the owner has ownees here: one of the two databases lost commits"
	case ReferenceNotStored, ReferenceNotInBody, BodyUnreadable, OwnerNotStored, OwnerNotListed:
		return "rows of the database were changed by hand or lost: the protocol does not cause this"
	case RowMissed:
		return "no trigger saw a change of the row: session_replication_role was replica, a trigger was disabled or missing, or it changed by logical replication"
	case TriggerDrift:
		return "somebody has changed the triggers that attach made"
	case LocalTargetGone:
		return "the database lost rows: the protocol does not cause this"
	}
	return ""
}

// Remedy describes, for operators, the way to resolve the difference.
func (d Difference) Remedy() string {
	switch {
	case d.ActedUpon && d.Behaviour.Cascades():
		return "the holder was deleted, as at a deletion of the target"
	case d.ActedUpon:
		return "the value was unset, as at a deletion of the target"
	case d.Err != nil:
		return "not acted upon, run it again: " + d.Err.Error()
	case d.Repaired:
		return "repaired, or being repaired in the background"
	case d.Dangles() && d.Behaviour.Acts():
		return "needs a decision: verify --repair --dangling=act, or update " + d.Holder.String() +
			" so that it refers to a resource that exists, or delete it"
	case d.Dangles() || d.Kind == LocalTargetGone || d.Kind == BodyUnreadable:
		return "needs a decision: update " + d.Holder.String() +
			" so that it refers to a resource that exists, or delete it"
	}
	if d.Kind == TriggerDrift {
		return "attach the table again, as its owner, and then verify --repair"
	}
	if d.Kind == NotAllowed {
		return "it is tried again: describe a version that allows it, or update or delete " + d.Holder.String()
	}
	return "verify --repair"
}

// Verification configures a comparison.
type Verification struct {
	// With are the deployments to compare with, each of which has to answer; nil: all that resources here
	// refer to, are owned by, or are blocked by, and deployments that do not answer are skipped.
	With []schema.DeploymentID
	// Repair repairs differences for which one repair is certain to be right.
	Repair bool
	// Dangling, with Repair, is the decision that dangling references act as at a deletion of their targets;
	// nil: they are reported. References that block have no such effect, and are left.
	Dangling *Decision
	// Bodies is the number of bodies to derive references from and to compare with the stored ones: a sample
	// that moves on with each comparison; 0: all bodies.
	Bodies int
	// Settle is the time between the two looks at a difference (default 2 s): messages under way arrive in
	// between.
	Settle time.Duration
	// Progress, when set, is called after each page with the totals so far, to report them or to limit the
	// rate. Its error ends the verification.
	Progress func(ctx context.Context, so Verified) error
	// Report, when set, is called for each difference. Its error ends the verification.
	Report func(Difference) error
}

// Decision of an operator.
type Decision struct{ Reason, By string }

// Verified counts the compared rows, and the differences. Repaired includes the references that were acted
// upon.
type Verified struct {
	References, Blockades, Owners, Bodies int64
	Differences, Repaired, ActedUpon      int64
	// Unreachable are the deployments that did not answer, with the error.
	Unreachable map[schema.DeploymentID]error
}

// Rows returns the number of rows compared.
func (v Verified) Rows() int64 { return v.References + v.Blockades + v.Owners + v.Bodies }

// pageRows is the number of rows that are compared at a time.
const pageRows = 1000

// run is a verification under way.
type run struct {
	how Verification
	out Verified

	gate *gate.Gate
}

// newRun returns a run that has compared nothing yet.
func newRun(g *gate.Gate, how Verification) *run {
	if how.Settle <= 0 {
		how.Settle = 2 * time.Second
	}
	if how.Progress == nil {
		how.Progress = func(context.Context, Verified) error { return nil }
	}
	return &run{how: how, out: Verified{Unreachable: map[schema.DeploymentID]error{}}, gate: g}
}

// concerns reports whether references to a deployment are compared.
func (r *run) concerns(d schema.DeploymentID) bool {
	return (r.how.With == nil || slices.Contains(r.how.With, d)) && r.out.Unreachable[d] == nil &&
		!r.gate.IsDecommissioned(d)
}

// found counts and reports a difference.
func (r *run) found(d Difference) error {
	r.out.Differences++
	if d.Repaired {
		r.out.Repaired++
	}
	if d.ActedUpon {
		r.out.ActedUpon++
	}
	if r.how.Report == nil {
		return nil
	}
	return r.how.Report(d)
}

// wait waits between the two looks at a difference.
func (r *run) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.how.Settle):
		return nil
	}
}
