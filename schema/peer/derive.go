package peer

// Derived is the progress of a piece of derivation.
type Derived int

// DerivedAll: done. DerivedSome: a page is done, and others follow. DerivedNot: not possible now; try again later.
const (
	DerivedAll Derived = iota
	DerivedSome
	DerivedNot
)
