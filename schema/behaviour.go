package schema

import "fmt"

// Behaviour is the effect on the holder of a reference when its target is deleted. The numbers are stored in
// databases and sent between deployments; they never change.
type Behaviour int16

// The behaviours. Unset and CascadeDelete act in the target's transaction when holder and target are in one
// database, and after it when they are not; AsyncUnset and AsyncCascadeDelete always act after it.
const (
	Block              Behaviour = 1
	Unset              Behaviour = 2
	CascadeDelete      Behaviour = 3
	AsyncUnset         Behaviour = 4
	AsyncCascadeDelete Behaviour = 5
	AllowDangling      Behaviour = 6
)

var behaviourNames = [...]string{
	Block: "BLOCK", Unset: "UNSET", CascadeDelete: "CASCADE_DELETE",
	AsyncUnset: "ASYNC_UNSET", AsyncCascadeDelete: "ASYNC_CASCADE_DELETE", AllowDangling: "ALLOW_DANGLING",
}

func (b Behaviour) String() string {
	if b.Valid() {
		return behaviourNames[b]
	}
	return fmt.Sprintf("Behaviour(%d)", int16(b))
}

// Valid reports whether the number is one of the behaviours.
func (b Behaviour) Valid() bool { return b >= Block && b <= AllowDangling }

// Cascades reports whether the holder is deleted as well.
func (b Behaviour) Cascades() bool { return b == CascadeDelete || b == AsyncCascadeDelete }

// Unsets reports whether the value is removed from the holder's field.
func (b Behaviour) Unsets() bool { return b == Unset || b == AsyncUnset }

// Acts reports whether the holder changes when the target is deleted.
func (b Behaviour) Acts() bool { return b.Cascades() || b.Unsets() }

// Later reports whether the behaviour acts after the target's transaction even inside one database.
func (b Behaviour) Later() bool { return b == AsyncUnset || b == AsyncCascadeDelete }

// ParseBehaviour parses a name such as CASCADE_DELETE.
func ParseBehaviour(s string) (Behaviour, error) {
	for b := Block; b <= AllowDangling; b++ {
		if behaviourNames[b] == s {
			return b, nil
		}
	}
	return 0, fmt.Errorf(
		"behaviour %q: want one of BLOCK, UNSET, CASCADE_DELETE, ASYNC_UNSET, ASYNC_CASCADE_DELETE, ALLOW_DANGLING",
		clip(s))
}
