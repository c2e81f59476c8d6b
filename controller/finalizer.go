package controller

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// CleanUp removes the things outside that a controller has made for a resource, which is in DELETING: its
// references and owners are dropped, its body is there. It has to stand being called again, and for a
// resource for which nothing was made.
type CleanUp func(ctx context.Context, r *Resource, v *View) error

// Finalizers remove finalizers: a *client.Client.
type Finalizers interface {
	RemoveFinalizer(ctx context.Context, name, uid, finalizer string) error
}

// finalizers are the parts of a controller in the deletion of its resources.
type finalizers []finalizer

type finalizer struct {
	name   string
	of     Finalizers
	cleans CleanUp
}

// Finalizer lets the controller clean up after each resource in DELETING before it is removed. The kind has
// to declare the finalizer, and name the caller as its holder. A resource in DELETING that has it is not
// reconciled, but cleaned up after; a clean-up that fails is repeated like a run. Filters do not drop the
// beginning of a deletion. Several finalizers are cleaned up in the order of their calls.
func (c *Controller) Finalizer(name string, of Finalizers, cleans CleanUp) *Controller {
	c.finalizers = append(c.finalizers, finalizer{name, of, cleans})
	return c
}

// left reports whether a resource waits for one of these finalizers.
func (fs finalizers) left(r *Resource) bool {
	return slices.ContainsFunc(fs, func(f finalizer) bool { return f.left(r) })
}

func (f finalizer) left(r *Resource) bool {
	return r.GetState() == resourcev1.Resource_STATE_DELETING && slices.Contains(r.GetFinalizers(), f.name)
}

// begins reports whether a change is the beginning of a deletion that waits for one of these finalizers.
func (fs finalizers) begins(before, after *Resource) bool {
	return fs.left(after) && !fs.left(before)
}

// cleanUp cleans up after a resource, and lets it go.
func (fs finalizers) cleanUp(ctx context.Context, r *Resource, v *View) error {
	for _, f := range fs {
		if !f.left(r) {
			continue
		}
		if err := f.cleans(ctx, r, v); err != nil {
			return err
		}
		if err := f.of.RemoveFinalizer(ctx, nameOf(r).String(), r.GetUid(), f.name); err != nil {
			return fmt.Errorf("remove finalizer %s: %w", f.name, err)
		}
	}
	return nil
}

// checkFinalizers fails unless the kind has the finalizers: without one, resources would be removed without a
// clean-up.
func (c *Controller) checkFinalizers(k *kinds) error {
	if len(c.finalizers) == 0 {
		return nil
	}
	name, err := k.present(c.kind)
	if err != nil {
		return err
	}
	declared, err := k.finalizers(c.kind, name)
	if err != nil {
		return err
	}
	for _, f := range c.finalizers {
		if !slices.Contains(declared, f.name) {
			return fmt.Errorf("the kind %s has no finalizer %s: add it to the kind's finalizers in the descriptor",
				c.kind, f.name)
		}
	}
	return nil
}
