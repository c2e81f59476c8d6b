package peer

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

// Why is the reason why a deployment was not asked, or did not answer.
type Why int

// Unreachable: the call failed. TimedOut: it did not answer in time, or no time was left to ask.
// LimitReached: the walk stopped at PlanLimit.
const (
	Unreachable Why = iota + 1
	TimedOut
	LimitReached
)

// Unasked is a deployment that a deletion reaches, and that did not contribute to its plan.
type Unasked struct {
	Deployment schema.DeploymentID
	Why        Why
	// After is the time that the walk waited for the answer; 0 when no time was left to ask.
	After time.Duration
	// Detail is the text of the call's error.
	Detail string
}

// Error describes it for people.
func (u Unasked) Error() string {
	switch {
	case u.Why == LimitReached:
		return fmt.Sprintf("%s was not asked: the deletion exceeds the limit of %d resources for a look-ahead",
			u.Deployment, PlanLimit)
	case u.Why == TimedOut && u.After == 0:
		return fmt.Sprintf("%s was not asked: no time was left; give the request a longer deadline", u.Deployment)
	case u.Why == TimedOut:
		return fmt.Sprintf("%s did not answer within %s", u.Deployment, u.After.Round(time.Millisecond))
	}
	return fmt.Sprintf("%s cannot be reached: %s", u.Deployment, u.Detail)
}

// describeUnasked joins the descriptions of several deployments.
func describeUnasked(unasked []Unasked) string {
	texts := make([]string, len(unasked))
	for i, u := range unasked {
		texts[i] = u.Error()
	}
	return strings.Join(texts, "; ")
}

// NotAsked describes a failed call to a deployment; ctx is the call's own, and began its start.
func NotAsked(ctx context.Context, d schema.DeploymentID, began time.Time, err error) Unasked {
	u := Unasked{Deployment: d, Why: Unreachable, Detail: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		u.Why, u.After = TimedOut, time.Since(began)
	}
	return u
}

// SortUnasked sorts by deployment, and keeps one entry for each.
func SortUnasked(unasked []Unasked) []Unasked {
	slices.SortFunc(unasked, func(a, b Unasked) int { return CompareDeployments(a.Deployment, b.Deployment) })
	return slices.CompactFunc(unasked, func(a, b Unasked) bool { return a.Deployment == b.Deployment })
}

// CompareDeployments orders deployments by service and region.
func CompareDeployments(a, b schema.DeploymentID) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region))
}

// InPart returns a context with the fraction part/of of the remaining time, so that the caller keeps the rest
// for other work.
func InPart(ctx context.Context, part, of int64) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*time.Duration(part)/time.Duration(of))
}

// WithDefaultTimeout returns a context that ends after d, unless the caller has set a deadline.
func WithDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// GaveUp reports whether the deadline ended a try, which then has changed nothing: in a statement, or in the
// last question to another deployment.
func GaveUp(err error) bool {
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		another := func(u Unasked) bool { return u.Why != TimedOut }
		return len(unavailable.Unasked) > 0 && !slices.ContainsFunc(unavailable.Unasked, another)
	}
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnknown)
}
