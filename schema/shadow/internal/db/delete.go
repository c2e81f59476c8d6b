package db

import (
	"context"
	"errors"
	"slices"

	"github.com/db-controller/db-controller/schema/peer"
)

// GaveUp reports whether the deadline ended a try, which then has changed nothing: in a statement, or in the last
// question to another deployment.
func GaveUp(err error) bool {
	var unavailable *peer.UnavailableError
	if errors.As(err, &unavailable) {
		another := func(u peer.Unasked) bool { return u.Why != peer.TimedOut }
		return len(unavailable.Unasked) > 0 && !slices.ContainsFunc(unavailable.Unasked, another)
	}
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, peer.ErrUnknown)
}
