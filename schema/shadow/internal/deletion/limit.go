package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// limit refuses a delete whose plan removes more resources than it may. Resources that join the deletion after the plan do not count: the limit is for mistakes, and
// locks nothing.
func (s *Deleter) limit(ctx context.Context, reqs []DeleteRequest) error {
	most := cmp.Or(reqs[0].MaxRemovals, peer.PersonFrom(ctx).MaxRemovals, -1)
	if most < 0 {
		return nil
	}
	names := make([]string, len(reqs))
	for i, req := range reqs {
		names[i] = req.Name
	}
	found, err := s.PlanDelete(ctx, names...)
	if notThere(err) {
		if names, err = s.there(ctx, names); err != nil || len(names) == 0 {
			return err // the delete answers that there is none
		}
		if found, err = s.PlanDelete(ctx, names...); notThere(err) {
			err = fmt.Errorf("%w: resources of the request came or went", peer.ErrAborted)
		}
	}
	if err != nil {
		return err
	}
	return removesAtMost(found, most)
}

func notThere(err error) bool {
	return errors.Is(err, peer.ErrNotFound) || errors.Is(err, peer.ErrDeleting)
}

// there returns those of several names whose resources exist and are not in DELETING.
func (s *Deleter) there(ctx context.Context, names []string) (out []string, err error) {
	if len(names) == 1 {
		return nil, nil
	}
	for _, name := range names {
		switch _, err := s.PlanDelete(ctx, name); {
		case err == nil:
			out = append(out, name)
		case !notThere(err):
			return nil, err
		}
	}
	return out, nil
}

// removesAtMost refuses a plan that removes more resources, or may: what it did not count is unknown, and not absent.
func removesAtMost(found *plan.DeletePlan, most int64) error {
	if len(found.Unasked) > 0 {
		return &peer.UnavailableError{Unasked: found.Unasked, Err: errors.New("the resources that the delete removes there cannot be counted, and max_removals limits their number")}
	}
	removed, more := int64(0), found.Truncated || found.Uncounted
	for _, g := range found.Groups {
		if !g.Unset {
			removed, more = removed+int64(g.Count), more || g.AtLeast
		}
	}
	switch {
	case !more && removed <= most:
		return nil
	case more:
		return fmt.Errorf("the delete removes %d resources or more, %d are allowed: %w", removed, most, peer.ErrTooManyRemovals)
	}
	return fmt.Errorf("the delete removes %d resources, %d are allowed: %w", removed, most, peer.ErrTooManyRemovals)
}
