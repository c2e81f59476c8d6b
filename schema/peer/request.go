package peer

import (
	"time"
)

// RequestRetention is the time for which the outcome of a request is kept: repeating the request within this
// time returns the same answer.
const RequestRetention = 24 * time.Hour
