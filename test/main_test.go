// Package test tests the program from outside, as its users run it, and the structure of the code.
package test

import (
	"os"
	"testing"

	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
