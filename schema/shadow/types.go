package shadow

import (
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// State is that of a resource. The numbers are stored.
type State int16

// A resource goes from Active to Deleting to Gone, never back (I12).
const (
	Active   State = 1
	Deleting State = 2
	Gone     State = 3
)

// Revision moves with every change of one incarnation of a resource; 0 stands for any. Two incarnations of a name are
// told apart by their uids, not by it.
type Revision int64

// AttemptID names one try of one write that needs foreign references: a UUIDv7, so that it tells its age.
type AttemptID = uuid.UUID

// Resource is a resource as its deployment has it.
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
	// BlockDeletion: no delete takes it.
	BlockDeletion bool `json:",omitempty"`
}

// Mode is what a write expects to find.
type Mode int

// Create wants no such resource, Update wants one, Put takes either.
const (
	Put Mode = iota
	Create
	Update
)

// Write is one resource to be written. Body is the whole new body, in the shape of encoding/json. With a mask, an
// update replaces only what it names: labels, labels.<key>, owner_references, body, body.<field>...
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

// Holder names a reference, for messages: who has it, in which field, and to what.
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

// EstablishReference is one reference that a holder elsewhere is about to have.
type EstablishReference struct {
	HolderUID  uuid.UUID
	HolderKind string
	HolderName string
	Path       string
	TargetKind string
	TargetName string
	TargetUID  uuid.UUID // zero: any
	Behaviour  schema.Behaviour
}

// Question asks the holder's deployment about one blockade.
type Question struct {
	Key BlockadeKey
	// By the clock of the target's database, and only by it.
	Expired bool
}

// Answers are the verdicts on several questions, in order, and the epoch of the database that they are of.
type Answers struct {
	Verdicts []Verdict
	Epoch    uuid.UUID
}

// Established are the uids of the targets of several references, in order; the version that the targets' deployment
// runs, and the epoch of its database.
type Established struct {
	UIDs    []uuid.UUID
	Version string
	Epoch   uuid.UUID
}

// Verdict is the answer of the holder's deployment.
type Verdict int

// Undecided attempts may still commit; unknown is not absent (I15).
const (
	Undecided Verdict = iota
	Held
	GoneVerdict
)
