//go:build crashpoints

package crash

import (
	"os"
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/google/uuid" // whose clock it is
)

// uuidNow is the clock that attempts and epochs are dated with.
//
//go:linkname uuidNow github.com/google/uuid.timeNow
var uuidNow func() time.Time

// DBCONTROLLER_CLOCK, such as -1h, is how far the process's clock is from the others'.
func init() {
	if apart, err := time.ParseDuration(os.Getenv("DBCONTROLLER_CLOCK")); err == nil {
		uuidNow = func() time.Time { return time.Now().Add(apart) }
	}
}
