package peer

import (
	"github.com/db-controller/db-controller/schema"
)

// Known is the state of a reference in its target's deployment.
type Known int

// KnownNot decides nothing: a newer version answered with a value that this one lacks. The values up to
// KnownAbsent equal the values of CheckReferencesResponse.
const (
	KnownNot Known = iota
	KnownHeld
	KnownMissing
	KnownDeleting
	KnownAbsent
	KnownRefused // only in this process: missing, and establishing it again was refused
)

// CheckedReference is a reference in a question to its target's deployment.
type CheckedReference struct {
	Key       BlockadeKey
	Behaviour schema.Behaviour
}
