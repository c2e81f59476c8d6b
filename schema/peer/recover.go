package peer

import (
	"errors"
)

// ErrPassGone means that a pass has ended, or was replaced by another one.
var ErrPassGone = errors.New("the comparison has ended or was replaced by a newer one")
