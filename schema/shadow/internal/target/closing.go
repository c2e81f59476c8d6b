package target

import (
	"time"
)

// MaxClosing is the longest time for which a delete closes its targets to new references.
const MaxClosing = 9 * time.Minute

const (

	// ClosesSQL is a condition on a row c of closing: it has not ended, and its end is not impossibly late
	// because the clock went back.
	ClosesSQL      = `c.until > now() AND c.until <= ` + ClosesUntilSQL
	ClosesUntilSQL = `now() + interval '10 min'`
)
