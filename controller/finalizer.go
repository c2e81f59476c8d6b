package controller

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// CleanUp removes the things outside that a controller has made for a resource, which is in DELETING: its references and owners are dropped, its
// body is there. It has to stand being called again, and for a resource for which nothing was made.
type CleanUp func(ctx context.Context, r *Resource, v *View) error

// Finalizers remove finalizers: a *client.Client.
type Finalizers interface {
	RemoveFinalizer(ctx context.Context, name, uid, finalizer string) error
}

// finalizer is the part of a controller in the deletion of its resources.
type finalizer struct {
	name   string
	of     Finalizers
	cleans CleanUp
}

// Finalizer lets the controller clean up after each resource in DELETING before it is removed. The kind has to declare the finalizer, and
// name the caller as its holder. A resource in DELETING that has it is not reconciled, but cleaned up after; a clean-up that fails is
// repeated like a run. Filters do not drop the beginning of a deletion.
func (c *Controller) Finalizer(name string, of Finalizers, cleans CleanUp) *Controller {
	c.finalizer = &finalizer{name, of, cleans}
	return c
}

// left reports whether a resource waits for this finalizer; f may be nil.
func (f *finalizer) left(r *Resource) bool {
	return f != nil && r.GetState() == resourcev1.Resource_STATE_DELETING && slices.Contains(r.GetFinalizers(), f.name)
}

// begins reports whether a change is the beginning of a deletion that waits for this finalizer.
func (f *finalizer) begins(before, after *Resource) bool {
	return f.left(after) && !f.left(before)
}

// cleanUp cleans up after a resource, and lets it go.
func (f *finalizer) cleanUp(ctx context.Context, r *Resource, v *View) error {
	if err := f.cleans(ctx, r, v); err != nil {
		return err
	}
	if err := f.of.RemoveFinalizer(ctx, nameOf(r).String(), r.GetUid(), f.name); err != nil {
		return fmt.Errorf("remove finalizer %s: %w", f.name, err)
	}
	return nil
}

// checkFinalizer fails unless the kind has the finalizer: without it, resources would be removed and nobody would clean up.
func (c *Controller) checkFinalizer(k *kinds) error {
	if c.finalizer == nil {
		return nil
	}
	name, err := k.present(c.kind)
	if err != nil {
		return err
	}
	declared, err := k.finalizers(c.kind, name)
	if err == nil && !slices.Contains(declared, c.finalizer.name) {
		err = fmt.Errorf("the kind %s has no finalizer %s: add it to the kind's finalizers in the descriptor", c.kind, c.finalizer.name)
	}
	return err
}
