package server

import (
	"context"
	"slices"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// visible returns the rights that the caller of a request may see: deployments, which decide by them, and
// operators who may read everything see all rights; other callers see their own ones. Grants name tenants and
// their projects.
func visible(ctx context.Context, rights *registryv1.Rights) (*registryv1.Rights, error) {
	who, err := identity.CallerFromContext(ctx)
	if err != nil || rights == nil || who.Role != identity.RoleUser && who.Role != identity.RoleOperator {
		return rights, err
	}
	all := grant.Compile(&schema.Environment{Rights: wire.Rights(rights)})
	if all.Operator(grant.Subject{Identity: who.Identity.String()}, schema.Read, schema.DeploymentID{}) {
		return rights, nil
	}
	own := &registryv1.Rights{
		Deny: rights.GetDeny(), Allow: rights.GetAllow(),
		CascadeNeedsDelete: rights.GetCascadeNeedsDelete(), MaxRemovals: rights.GetMaxRemovals(),
		TwoOperators: rights.GetTwoOperators(), Declaration: rights.GetDeclaration(),
	}
	for _, g := range rights.GetGrants() {
		if id := g.GetIdentity(); id == schema.Every || id == who.Identity.String() || g.GetGroup() != "" &&
			slices.Contains(who.Groups, g.GetGroup()) {
			own.Grants = append(own.Grants, g)
		}
	}
	for _, o := range rights.GetOperators() {
		if o.GetIdentity() == who.Identity.String() {
			own.Operators = append(own.Operators, o)
		}
	}
	return own, nil
}
