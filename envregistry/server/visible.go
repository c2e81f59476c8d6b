package server

import (
	"context"
	"slices"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// visible returns the rights that the caller of a request may see: those who decide by them, and operators, see all grants, and a person the own ones. Grants name tenants and
// their projects.
func visible(ctx context.Context, rights *registryv1.Rights) (*registryv1.Rights, error) {
	who, err := identity.CallerFromContext(ctx)
	if err != nil || rights == nil || who.Role != identity.RoleUser {
		return rights, err
	}
	own := &registryv1.Rights{Deny: rights.GetDeny(), CascadeNeedsDelete: rights.GetCascadeNeedsDelete(), Declaration: rights.GetDeclaration()}
	for _, g := range rights.GetGrants() {
		if id := g.GetIdentity(); id == schema.Every || id == who.Identity.String() || g.GetGroup() != "" && slices.Contains(who.Groups, g.GetGroup()) {
			own.Grants = append(own.Grants, g)
		}
	}
	return own, nil
}
