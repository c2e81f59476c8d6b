// Package wait has the bounds of all waits of the tests.
package wait

import "time"

const (
	// Limit bounds each wait for an event. Nothing that works takes as long, on whatever machine; a test that fails takes its time.
	Limit = 5 * time.Minute
	// Poll is the pause between two looks at a condition: a look costs processes and PostgreSQL milliseconds that the others need.
	Poll = 50 * time.Millisecond
)
