package peer

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// Messages are the messages of pieces of work: the messages that this deployment owes to another one now.
type Messages struct {
	// Epoch of the database in which they were read.
	Epoch   uuid.UUID
	Confirm []AttemptID
	// References are, by attempt of Confirm, the references that are stored under it.
	References []int32
	// Scheduled are the deletions that this deployment coordinates, and that the other one has to hide.
	Scheduled     []Scheduled
	Release       []BlockadeKey
	Abandon       []AttemptID
	OwnerReleases []OwnerRelease
	// Seqs are the pieces of work of these messages, which Delivered removes.
	Seqs []int64
	// Delegable are the targets of Confirm to which this deployment wants to be able to refer without asking;
	// empty while it has a process that does not know delegations.
	Delegable []Delegable
	// Wanted are rows of targets of Confirm that this deployment wants the right to block.
	Wanted []int64
	// Confirmed is the answer to Confirm, which the caller sets before Delivered.
	Confirmed *Confirmed
}

// Delegable is a row of a target in another deployment, as it was before the question.
type Delegable struct {
	ID   int64
	UID  uuid.UUID
	Turn int64
}

// Scheduled is a deletion whose members are frozen and hidden until it is carried out at Purge, or undeleted.
type Scheduled struct {
	Deletion AttemptID
	// Deleted is the time of the delete, and Purge the earliest time at which it is carried out, by the clock
	// of the coordinator's database.
	Deleted, Purge time.Time
}

// Confirm tells the targets' deployment that attempts have committed.
type Confirm struct {
	// Epoch of the database in which the attempts were read.
	Epoch    uuid.UUID
	Attempts []AttemptID
	// References are, by attempt, the number of references that were established under it; 0, or none at all:
	// not known.
	References []int32
	// Scheduled are deletions of which the caller is the coordinator.
	Scheduled []Scheduled
	// Delegable: the holder's deployment may be granted delegations of the targets.
	Delegable bool
}

// Confirmed is the answer of the targets' deployment to a confirm.
type Confirmed struct {
	// Unknown are the attempts without a tentative blockade, or with fewer than they have references.
	Unknown []AttemptID
	// Delegated are targets to which the holder's deployment may refer by acting references without asking,
	// as granted in Epoch.
	Delegated []uuid.UUID
	Epoch     uuid.UUID
}

// Derived is the progress of a piece of derivation.
type Derived int

// DerivedAll: done. DerivedSome: a page is done, and others follow. DerivedNot: not possible now; try again
// later.
const (
	DerivedAll Derived = iota
	DerivedSome
	DerivedNot
)

// OwnerRelease reports that an owner has dropped a reference to a resource that it owns.
type OwnerRelease struct {
	Owner uuid.UUID
	Ownee uuid.UUID
}

// Disowned are deleted owners whose deletion has to be sent to a deployment with ownees of them.
type Disowned struct {
	// Epoch of the database in which they were read.
	Epoch  uuid.UUID
	Owners []schema.Deletion
	To     int32   // the ownees' deployment
	IDs    []int64 // by owner
	Seqs   []int64 // the pieces of work, also for owners that are already removed
	Of     []int64 // by piece of work: the id of its owner, 0 when that is already removed
}

// Except returns a copy without the failed owners and their pieces of work.
func (d *Disowned) Except(failed []uuid.UUID) *Disowned {
	out := &Disowned{Epoch: d.Epoch, To: d.To}
	left := map[int64]bool{}
	for i, o := range d.Owners {
		if slices.Contains(failed, o.UID) {
			left[d.IDs[i]] = true
		} else {
			out.Owners, out.IDs = append(out.Owners, o), append(out.IDs, d.IDs[i])
		}
	}
	for i, seq := range d.Seqs {
		if !left[d.Of[i]] {
			out.Seqs, out.Of = append(out.Seqs, seq), append(out.Of, d.Of[i])
		}
	}
	return out
}

// Without returns the pieces of work that are not in told.
func (d *Disowned) Without(told *Disowned) []int64 {
	return slices.DeleteFunc(slices.Clone(d.Seqs), func(seq int64) bool { return slices.Contains(told.Seqs, seq) })
}
