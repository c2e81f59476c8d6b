//go:build crashpoints

package crash

import (
	"os"
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/google/uuid" // the owner of the clock
)

// uuidNow is the clock that dates attempts and epochs.
//
//go:linkname uuidNow github.com/google/uuid.timeNow
var uuidNow func() time.Time

// DBCONTROLLER_CLOCK, such as -1h, is the offset of the process's clock.
func init() {
	if apart, err := time.ParseDuration(os.Getenv("DBCONTROLLER_CLOCK")); err == nil {
		uuidNow = func() time.Time { return time.Now().Add(apart) }
	}
}
