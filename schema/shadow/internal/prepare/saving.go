package prepare

import (
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// MaxNewReferences is the maximum number of new references to one other deployment in a write.
const MaxNewReferences = 10_000

// Saving is a write under way.
type Saving struct {
	Version *db.Version
	Request *Request // nil: without an id
	Writes  []*Writing
	Unread  bool            // stored resources were not read: none is expected
	Saved   []peer.Resource // set by the transaction
	// New references to other deployments, by deployment, and the attempt that they are established under.
	Attempt peer.AttemptID
	Epoch   uuid.UUID // of this database when the attempt began
	// a number of the sequence mark from before the attempt began: a decision on the attempt has a greater
	// one
	Began   int64
	Foreign map[schema.DeploymentID][]*NewReference
	// New references to other deployments that are written without asking: no attempt is decided for them.
	Delegated []*NewReference
	Within    *gate.UserTransaction // nil: the transaction is the store's own
	// LocalRows are the local targets, and Absent the missing rows of attached tables among them.
	LocalRows, Absent []rows.Key
}

// NewSaving begins a write, and takes the id of its attempt.
func (p *Preparer) NewSaving(v *db.Version) *Saving {
	return &Saving{
		Version: v, Epoch: p.gate.PresentEpoch(), Began: p.Rollback.Seen.Load(), Attempt: p.NewAttempt(),
		Foreign: map[schema.DeploymentID][]*NewReference{},
	}
}

// NewAttempt returns a UUIDv7 by the clock of this process (RFC 9562, section 5.7: its first 48 bits are
// milliseconds).
func (p *Preparer) NewAttempt() peer.AttemptID {
	id, ms := uuid.Must(uuid.NewV7()), p.Now().UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i], ms = byte(ms), ms>>8
	}
	return id
}

// Touches returns the feeds that the write adds rows to.
func (sv *Saving) Touches() feed.Topics {
	touched := db.ChangeFeed
	if len(sv.Foreign) > 0 {
		touched |= db.ConfirmFeed
	}
	for _, wr := range sv.Writes {
		if len(wr.Drop) > 0 || len(wr.AddOwners) > 0 {
			touched |= db.WorkFeed
		}
		if len(wr.Drop) > 0 && len(wr.Add) > 0 {
			touched |= db.NoticeFeed // see NewReference.Late
		}
	}
	return touched
}

// Writing is one resource of a write.
type Writing struct {
	peer.Write
	Kind   schema.KindID
	KindID int32
	// Derives: a derivation, which writes only the references; the body stays unchanged.
	Derives    bool
	BodyText   string // JSON
	LabelsText *string
	OwnersText *string    // JSON
	Before     *ShadowRow // nil: the resource does not exist
	// Of the shadow; a new shadow's is set when it is written.
	ID          int64
	NewRevision int64 // set when it is written
	ShadowUID   uuid.UUID
	Add         []*NewReference
	Drop        []read.HeldReference
	// Owner references that are new or have other flags, and dropped ones.
	AddOwners, DropOwners []OwnerRow
	// Takes are the new references and owners whose deletion takes the resource along, with path and target.
	Takes []peer.Refusal
	// NewOwners are the owners that the resource did not have, and PinnedOwners the new owners that the write
	// names with a uid.
	NewOwners    []schema.FullName
	PinnedOwners []PinnedOwner
}

// takes notes that a write adds a reference, or an owner, whose deletion takes the resource along.
func (wr *Writing) takes(path string, target schema.FullName) {
	wr.Takes = append(wr.Takes, peer.Refusal{Path: path, Target: target})
}

// NewReference is a reference that a write adds.
type NewReference struct {
	schema.Found
	FieldID  int32
	KindID   int32
	Holder   *Writing
	TargetID int64 // of a local target; set when it is locked
	// Late: the local target is DELETING, and the reference replaces a blocking one of the same field.
	Late  bool
	UID   uuid.UUID // of a foreign target; set when it is established
	Epoch uuid.UUID // of the foreign target's database when it was established
	// Rights to the name of the foreign target. Delegated: the reference is one of Saving.Delegated.
	Rights    []DelegatedTarget
	Delegated bool
}

// DelegatedTarget is a target elsewhere to which this deployment has a right.
type DelegatedTarget struct {
	ID  int64
	UID uuid.UUID
}

// ReplacesBlock reports whether a reference that does not block replaces one of the same holder and field
// that blocks a local target. The target may then be DELETING: the holder already keeps it, so the reference
// is not a new one (I4), and acting upon the deletion releases the target.
func (r *NewReference) ReplacesBlock(target int64) bool {
	return r.Behaviour != schema.Block && slices.ContainsFunc(r.Holder.Drop, func(h read.HeldReference) bool {
		return h.TargetID == target && h.FieldID == r.FieldID && h.Behaviour == schema.Block
	})
}

// ReplacedRight returns the attempt of the proxy that stands for the blocking reference which this one
// replaces; zero when none does.
func (r *NewReference) ReplacedRight() (right uuid.UUID) {
	for _, h := range r.Holder.Drop {
		if h.Right != nil && h.FieldID == r.FieldID && h.Target == r.Target && r.Behaviour != schema.Block {
			right = *h.Right
		}
	}
	return right
}

// ReplacedUID returns the uid of the foreign target to which the holder refers by the same field until now,
// so that its deployment recognises a reference that was established before, although its version has no
// place for the target by now. It is zero when there is none, and when the target may be gone: a dangling
// reference, and one that may dangle.
func (r *NewReference) ReplacedUID() (uid uuid.UUID) {
	for _, h := range r.Holder.Drop {
		if h.FieldID == r.FieldID && h.Target == r.Target && h.UID != nil && !h.Dangling &&
			h.Behaviour != schema.AllowDangling {
			uid = *h.UID
		}
	}
	return uid
}

// AllWrites iterates over the writes of savings.
func AllWrites(savings []*Saving) iter.Seq2[*Saving, *Writing] {
	return func(yield func(*Saving, *Writing) bool) {
		for _, sv := range savings {
			for _, wr := range sv.Writes {
				if !yield(sv, wr) {
					return
				}
			}
		}
	}
}
