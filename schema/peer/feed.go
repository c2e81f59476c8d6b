package peer

import (
	"github.com/db-controller/db-controller/schema"
)

// Outcomes of watches.
var (
	// ErrReset says that a resume token cannot be resumed: start with a new snapshot.
	ErrReset = schema.ErrReset
)
