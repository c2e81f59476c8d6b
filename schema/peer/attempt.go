// Package peer has the values that deployments exchange, and the interface to send them.
package peer

import (
	"time"
)

// MaxAttemptAge is the age up to which an attempt may establish references; ClosedAttemptRetention is well
// beyond it, so that an attempt is refused by its age before its tombstone is removed.
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
