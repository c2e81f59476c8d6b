package peer

import (
	"github.com/google/uuid"
)

// IsZero reports whether there is no reason: the deletion starts with the member.
func (v Via) IsZero() bool { return v.Target.UID == uuid.Nil }
