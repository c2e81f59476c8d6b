package shadow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/db-controller/db-controller/schema"
)

// Why a deployment was not asked.
type Why int

// A deployment that is away is Unreachable; one that is slow, or for which no time was left, TimedOut.
const (
	Unreachable Why = iota + 1
	TimedOut
	LimitReached
)

// Unasked is a deployment that had a part in a deletion, and could not be asked about it.
type Unasked struct {
	Deployment schema.DeploymentID
	Why        Why
	// After is how long its answer was waited for; 0 when no time was left to ask it.
	After time.Duration
	// Detail is what the call failed with.
	Detail string
}

// Error tells it to people.
func (u Unasked) Error() string {
	switch {
	case u.Why == LimitReached:
		return fmt.Sprintf("%s was not asked: the deletion takes more than the %d resources that are looked at", u.Deployment, PlanLimit)
	case u.Why == TimedOut && u.After == 0:
		return fmt.Sprintf("%s was not asked: no time was left; give the request more", u.Deployment)
	case u.Why == TimedOut:
		return fmt.Sprintf("%s did not answer within %s", u.Deployment, u.After.Round(time.Millisecond))
	}
	return fmt.Sprintf("%s cannot be reached: %s", u.Deployment, u.Detail)
}

// whyNot says of each deployment why it was not asked.
func whyNot(unasked []Unasked) string {
	texts := make([]string, len(unasked))
	for i, u := range unasked {
		texts[i] = u.Error()
	}
	return strings.Join(texts, "; ")
}

// notAsked is why a call to a deployment failed that began then, in a time of its own.
func notAsked(ctx context.Context, d schema.DeploymentID, began time.Time, err error) Unasked {
	u := Unasked{Deployment: d, Why: Unreachable, Detail: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		u.Why, u.After = TimedOut, time.Since(began)
	}
	return u
}

func sortUnasked(unasked []Unasked) []Unasked {
	slices.SortFunc(unasked, func(a, b Unasked) int { return compareDeployments(a.Deployment, b.Deployment) })
	return slices.CompactFunc(unasked, func(a, b Unasked) bool { return a.Deployment == b.Deployment })
}

func compareDeployments(a, b schema.DeploymentID) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region))
}

// inPart gives a part of the time that is left: who takes all of it leaves the rest to others.
func inPart(ctx context.Context, part, of int64) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*time.Duration(part)/time.Duration(of))
}
