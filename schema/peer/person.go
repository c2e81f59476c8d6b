package peer

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// Permission reports for each of some resources whether a person has a right on it.
type Permission func(ctx context.Context, names []schema.FullName) ([]bool, error)

// Person has the rights of the writing person. A permission that is nil allows all names.
type Person struct {
	// Refer is the right to refer. About resources of other deployments it knows the grants of the
	// environment alone: a reference that these allow may still be denied by its deployment.
	Refer Permission
	// Delete is the right to delete. About resources of other deployments it knows the grants of the
	// environment alone.
	Delete Permission
	// DeleteKind is the right to delete all resources of a kind in a deployment.
	DeleteKind func(ctx context.Context, at schema.DeploymentID, kind string) (bool, error)
	// CascadeNeedsDelete: a delete needs the right to delete all that it takes along.
	CascadeNeedsDelete bool
	// MaxRemovals is the maximum number of resources that a delete removes when its request has no number; 0
	// for any number.
	MaxRemovals int64
}

type personKey struct{}

// WithPerson stores in ctx the rights of the writing person. Writes without it, such as derivations after a
// version switch, have all rights here.
func WithPerson(ctx context.Context, p Person) context.Context {
	return context.WithValue(ctx, personKey{}, p)
}

// PersonFrom returns the value of WithPerson, or a person with all rights.
func PersonFrom(ctx context.Context) Person {
	p, _ := ctx.Value(personKey{}).(Person)
	return p
}
