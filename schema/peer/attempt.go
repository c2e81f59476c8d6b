// Package peer has the values that deployments exchange, and the interface to send them.
package peer

import (
	"time"
)

// MaxAttemptAge is how old an attempt may be to establish anything; closedAttemptRetention is well beyond it, so that
// an attempt is refused by its age before its tombstone is removed.
const (
	MaxAttemptAge          = 12 * time.Hour
	ClosedAttemptRetention = 25 * time.Hour
)

// AttemptTime returns the time in a UUIDv7, by the clock of the holder's deployment, in milliseconds.
func AttemptTime(a AttemptID) time.Time {
	var ms int64
	for _, b := range a[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}
