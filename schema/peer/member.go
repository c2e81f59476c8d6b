package peer

import "time"

// Member is a process of a deployment, as the status shows it.
type Member struct {
	Name      string
	Shards    []uint32
	JoinedAt  time.Time
	ExpiresAt time.Time
}
