package peer

import "github.com/google/uuid"

// RightPath takes the place of a field path in the blockade of a proxy, which stands for all references that
// a deployment writes under the right to block a resource; no field can have this path. The holder uid of
// such a blockade is the target's.
const RightPath = "@delegation"

// OfRight reports whether the blockade belongs to a proxy.
func (k BlockadeKey) OfRight() bool { return k.Path == RightPath }

// EntryPath takes the place of a field path in the key of a holder entry, whose uids are the target's; no
// field can have this path. A release with such a key says that the sender has dropped its last acting
// reference to the target; it is a hint, after which the target's deployment asks.
const EntryPath = "@entry"

// RecallMode is the effect of a recall on a right.
type RecallMode int

// RecallLooks: it stays. RecallIfFree: it ends when nothing was written under it that still stands.
// RecallEnds: it ends. RecallCloses: it ends, and so does the acting right. RecallIfUnused: the acting right
// ends when no acting reference stands.
const (
	RecallLooks RecallMode = iota
	RecallIfFree
	RecallEnds
	RecallCloses
	RecallIfUnused
)

// Close is the recall that ends all rights to a target.
func Close(target uuid.UUID) Recall { return ofTarget(target, RecallCloses) }

// IfUnused is the recall that ends the acting right to a target to which nothing refers by acting references.
func IfUnused(target uuid.UUID) Recall { return ofTarget(target, RecallIfUnused) }

func ofTarget(target uuid.UUID, mode RecallMode) Recall {
	return Recall{Question: Question{Key: BlockadeKey{
		Attempt: target, HolderUID: target, Path: RightPath,
		TargetUID: target,
	}}, Mode: mode}
}

// MaxRecalled is the number of holders that the answer to a recall names.
const MaxRecalled = 100

// Recall asks about one blockade of a proxy, or (Close, IfUnused) about the rights to a target.
type Recall struct {
	Question
	Mode RecallMode
}

// Recalled are the answers to several recalls, in order, and the epoch of the holders' database.
type Recalled struct {
	Answers []RecallAnswer
	Epoch   uuid.UUID
}

// EntryLooks are questions whether holder entries of a deployment are used, in an epoch of the own database.
type EntryLooks struct {
	Own     uuid.UUID
	Entries []EntryLook
}

// EntryLook is the question about one entry, by the number under which it is stored.
type EntryLook struct {
	Seq    int64 // of the piece of work
	Target uuid.UUID
	Look   int64
}

// RecallAnswer is the verdict on the blockade of a proxy: held as long as references stand that were written
// under the right, or the right itself. Holders are the first of them; More: there are others.
type RecallAnswer struct {
	Verdict Verdict
	Holders []RecalledHolder
	More    bool
	// Closed answers RecallCloses and RecallIfUnused: there are no rights, or no acting one, from now on,
	// until this deployment grants others.
	Closed bool
}

// RecalledHolder has a reference that was written under a right.
type RecalledHolder struct {
	UID        uuid.UUID
	Name, Path string
	// Leaving: the resource is in DELETING, and keeps the reference until it is removed.
	Leaving bool
}

// Of returns an answer; nil if there are none.
func (r *Recalled) Of(i int) *RecallAnswer {
	if r == nil {
		return nil
	}
	return &r.Answers[i]
}
