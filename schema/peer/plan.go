package peer

import (
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// PlanLimit is the number of resources that a look-ahead visits, in all deployments together. A blocker
// beyond it does not refuse the delete, unless TraceCascades finds it: resources that it blocks wait as
// BLOCKED, as with changes after the look-ahead.
const PlanLimit = 10_000

// OwnerPath takes the place of a field path in a Via that is an owner reference; no field can have this path.
const OwnerPath = "@owner"

// PlanTarget identifies a resource that a deletion removes, in any deployment.
type PlanTarget struct {
	Deployment schema.DeploymentID
	UID        uuid.UUID
}

// Via is one reason why a deletion removes or changes a resource: it refers to, or is owned by, a removed
// target.
type Via struct {
	Target    PlanTarget
	Path      string
	Behaviour schema.Behaviour // 0 for an owner
}

// PlanMember is a resource in the asked deployment that the deletion removes.
type PlanMember struct {
	UID uuid.UUID
	// Kind and Name are empty for a Leaf.
	Kind string
	Name string
	// Vias are all reasons known in its deployment; none for the root of the deletion.
	Vias []Via
	// BlockDeletion refuses the deletion.
	BlockDeletion bool
	// Finalizers: it stays in DELETING until their holders have cleaned up.
	Finalizers []string
	// Entries are the deployments with acting references to it (holder entries), and Ownees the deployments
	// with resources that it owns.
	Entries, Ownees []schema.DeploymentID
}

// Leaf reports whether a member of a compact plan concerns no other deployment, and nothing refuses its
// deletion.
func (m PlanMember) Leaf() bool { return m.Name == "" }

// PlanUnset is a holder from which the deletion removes a value.
type PlanUnset struct {
	UID  uuid.UUID
	Kind string
	Name string
	Via  Via
}

// PlanBlocker is a holder whose reference blocks a member, unless the same deletion removes the holder too.
type PlanBlocker struct {
	// Holder names the holder and the blocked resource, which is in the asked deployment.
	Holder    Holder
	UID       uuid.UUID // of the holder
	TargetUID uuid.UUID
	// Undecided: the holder's write has established the reference and has not committed or aborted yet.
	Undecided bool
	// Unreachable: the holder's deployment did not answer whether the reference exists.
	Unreachable bool
	// Unconfirmed: that deployment has never said that it exists, and the time for it is over. Known of
	// blockades here alone.
	Unconfirmed bool
}

// HolderResource is the resource that blocks.
func (b PlanBlocker) HolderResource() PlanTarget { return PlanTarget{b.Holder.Name.Deployment, b.UID} }

// Target is the resource that is blocked.
func (b PlanBlocker) Target() PlanTarget { return PlanTarget{b.Holder.Target.Deployment, b.TargetUID} }

// PlanQuestion asks a deployment for the effects of a deletion of targets.
type PlanQuestion struct {
	Targets []PlanTarget
	// Limit is the maximum number of members in the answer.
	Limit int
	// Detailed adds, for people, the unsets and the undecided blockers.
	Detailed bool
	// Compact: members that are Leaf have neither a kind nor a name. A detailed question is not compact.
	Compact bool
	// CountLeaves: the answer may have the number of members alone, when all are Leaf and nothing blocks
	// them.
	CountLeaves bool
	// Freeze, unless nil, freezes the members.
	Freeze *Freeze
}

// DeletionPath takes the place of a field path in a question about an atomic deletion; no field can have this
// path.
const DeletionPath = "@deletion"

// FrozenPath takes the place of a field path in a question of a participant of an atomic deletion: has it
// frozen the target there?
const FrozenPath = "@frozen"

// FrozenKey is the key in a question whether a deletion has frozen a resource.
func FrozenKey(deletion AttemptID, target uuid.UUID) BlockadeKey {
	return BlockadeKey{Attempt: deletion, HolderUID: target, Path: FrozenPath, TargetUID: target}
}

// Freeze is an atomic deletion in a question of its coordinator: writers of the members wait until it is
// decided.
type Freeze struct {
	Coordinator schema.DeploymentID
	Epoch       uuid.UUID // of the coordinator's database
	Deletion    AttemptID
	Root        string        // the name of the first resource that the deletion names
	For         time.Duration // then a participant asks for the decision
	// ParticipantEpoch is that of the participant's database in its first answer; zero: it has not answered
	// yet.
	ParticipantEpoch uuid.UUID
}

// DeletionKey is the key in a question about the decision on an atomic deletion.
func DeletionKey(deletion AttemptID) BlockadeKey {
	return BlockadeKey{Attempt: deletion, HolderUID: deletion, Path: DeletionPath, TargetUID: deletion}
}

// Plan lists the effects of a deletion of some targets in one deployment.
type Plan struct {
	Members []PlanMember
	// Leaves is the number of members that are not in Members: all of them, or none.
	Leaves   int
	Blockers []PlanBlocker
	Unsets   []PlanUnset
	// Truncated: there are more members than the limit; MoreUnsets: there are more unsets.
	Truncated, MoreUnsets bool
	// Counts are the numbers of direct references to the targets and members, and Holders the number of
	// different holders of cascading references, if a detailed answer leaves members or unsets out.
	Counts  []PlanCount
	Holders int
	// Uncounted: members or unsets were left out, and could not be counted in time.
	Uncounted bool
	// Epoch of the asked database, in the answer to a question with Freeze.
	Epoch uuid.UUID
	// NotAtomic is the reason why the deletion cannot be atomic; empty: it can.
	NotAtomic string
}

// PlanCount is the number of direct references by one path and behaviour.
type PlanCount struct {
	Path      string
	Behaviour schema.Behaviour
	Count     int
}

// IsZero reports whether there is no reason: the deletion starts with the member.
func (v Via) IsZero() bool { return v.Target.UID == uuid.Nil }

// Trace lists the resources whose deletion would remove one resource.
type Trace struct {
	// Cascades are the targets of its cascading references, and the targets of their cascading references,
	// transitively in the same database.
	Cascades []PlanTarget
	// Owners are the owners of the resource and of the local Cascades. The deletion of one owner is not
	// enough: an ownee is deleted with the last one, which a trace does not decide.
	Owners []PlanTarget
}

// DeleteResult reports whether the resource was removed, or is DELETING because other deployments have to act
// first.
type DeleteResult struct {
	Removed bool
	// Unasked are the deployments that could not be asked for blockers of the cascade.
	Unasked []Unasked
	// Deletion identifies the deletion in every deployment: the deletion that this delete began, or an
	// earlier one that goes on.
	Deletion uuid.UUID
	// Resource is the marked resource; nil when removed.
	Resource *Resource
}
