package peer

import (
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// State is the lifecycle state of a resource. The numbers are stored.
type State int16

// A resource goes from Active to Deleting to Gone, never back (I12).
const (
	Active   State = 1
	Deleting State = 2
	Gone     State = 3
)

// Revision increases with every change of a resource; 0 in a condition matches any. It does not identify an
// incarnation of a name: the uid does.
type Revision int64

// AttemptID identifies one try of one write with new references to other deployments: a UUIDv7, which
// contains its time.
type AttemptID = uuid.UUID

// Resource is a stored resource.
type Resource struct {
	UID        uuid.UUID
	Kind       string
	Name       string
	State      State
	Revision   Revision
	Generation int64
	Labels     map[string]string
	Body       []byte // JSON object; nil when gone
	CreatedAt  time.Time
	UpdatedAt  time.Time
	Owners     []OwnerReference `json:",omitempty"`
	// BlockDeletion refuses deletes that would remove the resource.
	BlockDeletion bool `json:",omitempty"`
	// Finalizers are the finalizers that a resource in DELETING still has.
	Finalizers []string `json:",omitempty"`
	// Status is the report of a controller, a JSON object; nil for nothing. StatusGeneration increases with
	// its changes.
	Status           []byte `json:",omitempty"`
	StatusGeneration int64  `json:",omitempty"`
	// DeletedAt and PurgeAt are of a resource in a scheduled deletion, which is hidden: the time of the
	// delete, and the time at which it is carried out. Zero: it is in none.
	DeletedAt, PurgeAt time.Time `json:",omitzero"`
}

// Mode is the precondition of a write.
type Mode int

// Create fails with ErrExists when the resource exists, Update with ErrNotFound when it does not; Put does
// either.
const (
	Put Mode = iota
	Create
	Update
)

// Write is one resource to write. Body is the whole new body, with the types of encoding/json. With a mask,
// an update replaces only the fields of the mask: labels, labels.<key>, owner_references, body,
// body.<field>...
type Write struct {
	Mode     Mode
	Name     string
	UID      uuid.UUID // zero: any
	Revision Revision  // 0: any
	Labels   map[string]string
	Body     map[string]any
	Owners   []OwnerReference `json:",omitempty"`
	Mask     []string         `json:",omitempty"`
}

// Holder describes a reference in messages: the holder's name, the field path, and the target.
type Holder struct {
	Name   schema.FullName
	Path   string
	Target schema.FullName
}

// BlockadeKey identifies a blockade. Two equal values under one path are one reference.
type BlockadeKey struct {
	Attempt   AttemptID
	HolderUID uuid.UUID
	Path      string
	TargetUID uuid.UUID
}

// EstablishReference is one new reference of a holder in another deployment.
type EstablishReference struct {
	HolderUID  uuid.UUID
	HolderKind string
	HolderName string
	Path       string
	TargetKind string
	TargetName string
	TargetUID  uuid.UUID // zero: any
	Behaviour  schema.Behaviour
	// Right is the attempt of the proxy that stands for the reference which this one replaces; zero: none
	// does.
	Right AttemptID
}

// MaxTogether is the number of references of an attempt that is established together with others.
const MaxTogether = 20

// EstablishAttempt is one of several attempts that are established together, each by itself.
type EstablishAttempt struct {
	Attempt AttemptID
	Refs    []EstablishReference
	// Until is the time after which nothing is established for the attempt.
	Until time.Time
}

// EstablishOutcome is the answer to one of several attempts. Err is ErrLeftOut for an attempt that has to be
// sent by itself.
type EstablishOutcome struct {
	Established *Established
	Err         error
}

// Question asks the holder's deployment about one blockade.
type Question struct {
	Key BlockadeKey
	// Expired, by the clock of the target's database: an undecided attempt is to be aborted.
	Expired bool
}

// Answers are the verdicts on several questions, in order, and the epoch of the holder's database.
type Answers struct {
	Verdicts []Verdict
	Epoch    uuid.UUID
}

// Established are the uids of the targets of several references, in order; the version that the targets'
// deployment runs, and the epoch of its database.
type Established struct {
	UIDs    []uuid.UUID
	Version string
	Epoch   uuid.UUID
}

// Verdict is the answer of the holder's deployment to a Question.
type Verdict int

// Undecided: the attempt may still commit, and the blockade stays (I15). Held: its committed reference
// exists. GoneVerdict: the reference does not exist, and the attempt can no longer commit one. Leaving: its
// committed reference exists, and its holder, which is in DELETING, keeps the reference until it is removed.
const (
	Undecided Verdict = iota
	Held
	GoneVerdict
	Leaving
)

// OwnerReference names an owner of a resource, in any deployment. A resource is deleted with its last owner.
// Two owner references are the same when owner, kind and uid are equal.
type OwnerReference struct {
	Owner schema.FullName `json:"owner"`
	Kind  string          `json:"kind"`
	// UID of the owner; when it is zero, the controller looks it up by name and stores it.
	UID uuid.UUID `json:"uid"`
	// Version of the service that the owner's deployment runs. The store keeps it up to date; users cannot
	// set it.
	Version string `json:"version,omitempty"`
	// Controller marks the managing owner for readers; the store does not use it.
	Controller bool `json:"controller,omitempty"`
	// Requires: the owner reference is valid only while the owner itself refers to the resource.
	Requires bool `json:"requires,omitempty"`
	// UnsetOnDelete: when this owner is the last one to be deleted, the resource stays, without owners.
	UnsetOnDelete bool `json:"unset_on_delete,omitempty"`
}

// KindID is the kind of the owner.
func (r OwnerReference) KindID() schema.KindID {
	return schema.KindID{Service: r.Owner.Deployment.Service, Kind: r.Kind}
}

// Bits of owner_reference.flags.
const (
	flagController int16 = 1 << iota
	FlagRequires
	FlagUnsetOnDelete
)

// Flags are the stored bits of the owner reference.
func (r OwnerReference) Flags() (f int16) {
	for _, set := range []struct {
		on   bool
		flag int16
	}{{r.Controller, flagController}, {r.Requires, FlagRequires}, {r.UnsetOnDelete, FlagUnsetOnDelete}} {
		if set.on {
			f |= set.flag
		}
	}
	return f
}
