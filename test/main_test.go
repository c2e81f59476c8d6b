// Package test has what is tested from outside: the program as its users run it, and the shape of the code.
package test

import (
	"os"
	"testing"

	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) {
	code := harness.Main(m)
	harness.RemoveBinary()
	os.Exit(code)
}
