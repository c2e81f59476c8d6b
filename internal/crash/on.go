//go:build crashpoints

package crash

import (
	"os"
	"syscall"
)

var point = os.Getenv("DBCONTROLLER_CRASH")

// At ends the process at the point that DBCONTROLLER_CRASH names.
func At(name string) {
	if name == point {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	}
}
