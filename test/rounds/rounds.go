// Package rounds has the length of random schedules, races and large numbers in tests: that of make campaign, or that of every run.
package rounds

import (
	"os"
	"testing"
)

// Long reports whether the tests play as many rounds as in make campaign (DBCONTROLLER_TEST_LONG).
func Long() bool { return os.Getenv("DBCONTROLLER_TEST_LONG") != "" }

// Of returns the value of a long run, or that of every run.
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
