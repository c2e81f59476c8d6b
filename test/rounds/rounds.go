// Package rounds has the length of random schedules, races and large numbers in tests: the length of make
// campaign, or of every run.
package rounds

import (
	"os"
	"testing"
)

// Long reports whether the tests play as many rounds as in make campaign (DBCONTROLLER_TEST_LONG).
func Long() bool { return os.Getenv("DBCONTROLLER_TEST_LONG") != "" }

// Of returns the value for a long run, or the value for every run.
func Of[N any](long, every N) N {
	if Long() {
		return long
	}
	return every
}

// OnlyLong skips a test that is no part of every run, and says why.
func OnlyLong(t testing.TB, why string) {
	t.Helper()
	if !Long() {
		t.Skip(why + ": make campaign")
	}
}
