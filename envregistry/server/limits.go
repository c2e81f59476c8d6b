package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
)

// permitted returns an error unless the limits of the author allow the change: operate on each deployment
// that it touches, on a service in all regions, or in a region with all services, and grant for the rights.
func (a *author) permitted(before, after *schema.Environment, vouches []schema.Deployment) error {
	if a == nil || a.who.Role == identity.RoleRegistry {
		return nil
	}
	rights := grant.Compile(before)
	if err := a.second(rights); err != nil {
		return err
	}
	var wanted []schema.DeploymentID // without a region: in all of them; without a service: all of them
	for _, d := range vouches {
		wanted = append(wanted, d.DeploymentID)
	}
	for _, d := range slices.Concat(before.Deployments, after.Deployments) {
		old, now := find(before, d.DeploymentID), find(after, d.DeploymentID)
		if old == nil || now == nil || deploymentDifferences(old, *now) != nil {
			wanted = append(wanted, d.DeploymentID)
		}
	}
	for _, d := range slices.Concat(before.Services, after.Services) {
		same := func(other *schema.Descriptor) bool {
			return other.ServiceVersion == d.ServiceVersion && sameDescriptor(other, d)
		}
		if !slices.ContainsFunc(before.Services, same) || !slices.ContainsFunc(after.Services, same) {
			wanted = append(wanted, schema.DeploymentID{Service: d.Service})
		}
	}
	for _, r := range slices.Concat(before.Regions, after.Regions) {
		if !slices.Contains(before.Regions, r) || !slices.Contains(after.Regions, r) {
			wanted = append(wanted, schema.DeploymentID{Region: r})
		}
	}
	for _, id := range wanted {
		if err := a.operates(rights, id); err != nil {
			return err
		}
	}
	if after.Rights != before.Rights {
		return within(rights, a.who, schema.GrantRights, schema.DeploymentID{})
	}
	return nil
}

// operates returns an error unless the limits of the author, and of the operator who has signed the request,
// allow to operate at a deployment.
func (a *author) operates(rights *grant.Rights, at schema.DeploymentID) error {
	if (a.signedBy != identity.Identity{}) {
		if err := within(rights, identity.Caller{Identity: a.signedBy}, schema.Operate, at); err != nil {
			return err
		}
	}
	return within(rights, a.who, schema.Operate, at)
}

// second returns an error for a decision that needs two operators and has one.
func (a *author) second(rights *grant.Rights) error {
	if (a.signedBy == identity.Identity{}) && slices.Contains(rights.TwoOperators, a.decision) {
		return approval.Missing(a.decision)
	}
	return nil
}

// decides returns an error unless the author may decide about a deployment.
func (a *author) decides(rights *grant.Rights, about schema.DeploymentID) error {
	if err := a.second(rights); err != nil {
		return err
	}
	return a.operates(rights, about)
}

// approved verifies the approval in the request of a decision. The transaction demands one where the rights
// require it.
func (s *Server) approved(ctx context.Context, by *author, req approval.Request) (err error) {
	by.decision = approval.Decision(req)
	if by.signedBy, err = approval.Verify(s.authorities, approval.Registry, by.who.Identity, req,
		time.Now()); err != nil {
		err = status.Errorf(codes.PermissionDenied, "approval: %v", err)
		by.ended(ctx, err)
		return err
	}
	if (by.signedBy != identity.Identity{}) {
		by.who.Proof = approval.Proof(by.who.Proof, by.signedBy)
	}
	return nil
}

// within returns an error unless the limits of an operator allow a verb at a deployment.
func within(rights *grant.Rights, who identity.Caller, verb schema.Verb, at schema.DeploymentID) error {
	if rights.Operator(grant.Subject{Identity: who.Identity.String()}, verb, at) {
		return nil
	}
	where := at.String()
	switch {
	case at == schema.DeploymentID{}:
		where = "all deployments"
	case at.Region == "":
		where = at.Service + " in all regions"
	case at.Service == "":
		where = "all services in " + at.Region
	}
	return status.Error(codes.PermissionDenied,
		fmt.Sprintf("%s has no right to %s at %s: ask an operator with the verb grant", who.Identity, verb, where))
}

// reads returns an error unless the limits of the caller allow to read everything.
func (s *Server) reads(ctx context.Context) error {
	who, err := identity.CallerFromContext(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	env, err := s.store.read(ctx)
	if err != nil {
		return s.fail(err)
	}
	return within(grant.Compile(env), who, schema.Read, schema.DeploymentID{})
}
