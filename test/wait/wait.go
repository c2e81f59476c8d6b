// Package wait has the bounds of all waits of the tests.
package wait

import "time"

const (
	// Limit bounds each wait for an event. No working step takes as long, on any machine; a test that fails
	// takes its time.
	Limit = 5 * time.Minute
	// Poll is the pause between two looks at a condition: a look costs processes and PostgreSQL milliseconds
	// that the others need.
	Poll = 50 * time.Millisecond
)
