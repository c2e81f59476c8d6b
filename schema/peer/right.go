package peer

import "github.com/google/uuid"

// RightPath takes the place of a field path in the blockade of a proxy, which stands for all references that a deployment writes under
// the right to block a resource; no field can have this path. The holder uid of such a blockade is the target's.
const RightPath = "@delegation"

// OfRight reports whether the blockade is that of a proxy.
func (k BlockadeKey) OfRight() bool { return k.Path == RightPath }

// RecallMode is the effect of a recall on a right.
type RecallMode int

// RecallLooks: it stays. RecallIfFree: it ends when nothing was written under it that still stands. RecallEnds: it ends. RecallCloses: it ends,
// and so does the acting right.
const (
	RecallLooks RecallMode = iota
	RecallIfFree
	RecallEnds
	RecallCloses
)

// Close is the recall that ends all rights to a target.
func Close(target uuid.UUID) Recall {
	return Recall{Question: Question{Key: BlockadeKey{Attempt: target, HolderUID: target, Path: RightPath, TargetUID: target}}, Mode: RecallCloses}
}

// MaxRecalled is the number of holders that the answer to a recall names.
const MaxRecalled = 100

// Recall asks about one blockade of a proxy, or (Close) about all rights to a target.
type Recall struct {
	Question
	Mode RecallMode
}

// Recalled are the answers to several recalls, in order, and the epoch of the holders' database.
type Recalled struct {
	Answers []RecallAnswer
	Epoch   uuid.UUID
}

// RecallAnswer is the verdict on the blockade of a proxy: held as long as references stand that were written under the right, or the
// right itself. Holders are the first of them; More: there are others.
type RecallAnswer struct {
	Verdict Verdict
	Holders []RecalledHolder
	More    bool
	// Closed answers RecallCloses: there are no rights from now on, until this deployment grants others.
	Closed bool
}

// RecalledHolder has a reference that was written under a right.
type RecalledHolder struct {
	UID        uuid.UUID
	Name, Path string
}

// Of returns an answer; nil if there are none.
func (r *Recalled) Of(i int) *RecallAnswer {
	if r == nil {
		return nil
	}
	return &r.Answers[i]
}
