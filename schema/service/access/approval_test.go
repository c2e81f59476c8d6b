package access_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/access"
)

const twoOperators = `
rights:
  two_operators: [decommission]
  operators:
    - {identity: operator/ada, verbs: [read, operate, grant]}
    - {identity: operator/omar, verbs: [read, operate]}
    - {identity: operator/olga, verbs: [read]}
`

// A decision that the rights list is carried out for one operator when another one has signed it, who may
// operate here as well; the caller's proof names that one. A decision that they do not list needs no
// signature, but a wrong one is refused.
func TestADecisionNeedsTwoOperators(t *testing.T) {
	t.Parallel()
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	load := func(id identity.Identity) *identity.Credentials {
		dir := t.TempDir()
		require.NoError(t, authority.Issue(dir, id))
		c, err := identity.Load(identity.InDir(dir))
		require.NoError(t, err)
		return c
	}
	operator := func(name string) identity.Identity {
		return identity.Identity{Role: identity.RoleOperator, Name: name}
	}
	a, _ := newAccess(t, twoOperators, func(c *access.Config) { c.Credentials = load(identity.Deployment(self)) })
	sign := func(by string, req approval.Request) string {
		text, err := approval.Sign(load(operator(by)), self.String(), req, time.Now())
		require.NoError(t, err)
		return text
	}
	decommission, release := &adminv1.DecommissionRequest{Deployment: "b.example.com/eu", Reason: "x"},
		&adminv1.ForceReleaseRequest{Keys: []string{"k"}, Reason: "x"}
	waive := &adminv1.WaiveComparisonRequest{Deployment: "b.example.com/eu", Reason: "x"}
	for name, c := range map[string]struct {
		sender, method string
		req            approval.Request
		proof          string
		want           codes.Code
	}{
		"decommission alone": {
			sender: "ada", method: adminv1.AdminService_Decommission_FullMethodName,
			req: decommission, want: codes.PermissionDenied,
		},
		"its plan": {
			sender: "ada", method: adminv1.AdminService_Decommission_FullMethodName,
			req:   &adminv1.DecommissionRequest{Deployment: "b.example.com/eu", ValidateOnly: true},
			proof: "certificate",
		},
		"signed by another one": {
			sender: "omar", method: adminv1.AdminService_Decommission_FullMethodName,
			req: &adminv1.DecommissionRequest{
				Deployment: "b.example.com/eu", Reason: "x",
				Approval: sign("ada", decommission),
			}, proof: "certificate, signed by operator/ada",
		},
		"another request": {
			sender: "omar", method: adminv1.AdminService_Decommission_FullMethodName,
			req: &adminv1.DecommissionRequest{
				Deployment: "b.example.com/eu", Reason: "x", Blocking: "CASCADE_DELETE",
				Approval: sign("ada", decommission),
			}, want: codes.PermissionDenied,
		},
		"signed by the sender": {
			sender: "ada", method: adminv1.AdminService_ForceRelease_FullMethodName,
			req:  &adminv1.ForceReleaseRequest{Keys: []string{"k"}, Reason: "x", Approval: sign("ada", release)},
			want: codes.PermissionDenied,
		},
		"signed without the right": {
			sender: "ada", method: adminv1.AdminService_ForceRelease_FullMethodName,
			req:  &adminv1.ForceReleaseRequest{Keys: []string{"k"}, Reason: "x", Approval: sign("olga", release)},
			want: codes.PermissionDenied,
		},
		"sent without the right": {
			sender: "olga", method: adminv1.AdminService_ForceRelease_FullMethodName,
			req:  &adminv1.ForceReleaseRequest{Keys: []string{"k"}, Reason: "x", Approval: sign("ada", release)},
			want: codes.PermissionDenied,
		},
		"force-release": {
			sender: "omar", method: adminv1.AdminService_ForceRelease_FullMethodName,
			req:   &adminv1.ForceReleaseRequest{Keys: []string{"k"}, Reason: "x", Approval: sign("ada", release)},
			proof: "certificate, signed by operator/ada",
		},
		"accept-database alone": {
			sender: "ada", method: adminv1.AdminService_AcceptDatabase_FullMethodName,
			req: &adminv1.AcceptDatabaseRequest{Deployment: "b.example.com/eu"}, want: codes.PermissionDenied,
		},
		"a decision that is not listed": {
			sender: "omar", method: adminv1.AdminService_WaiveComparison_FullMethodName,
			req: waive, proof: "certificate",
		},
		"with a wrong signature": {
			sender: "omar", method: adminv1.AdminService_WaiveComparison_FullMethodName,
			req: &adminv1.WaiveComparisonRequest{
				Deployment: "b.example.com/eu", Reason: "x",
				Approval: sign("ada", decommission),
			}, want: codes.PermissionDenied,
		},
	} {
		proof := ""
		ctx := identity.NewCallerContext(t.Context(), identity.Caller{
			Identity: operator(c.sender),
			Proof:    identity.ByCertificate,
		})
		_, err := call(a, ctx, c.method, c.req, func(ctx context.Context, _ any) (any, error) {
			who, err := identity.CallerFromContext(ctx)
			proof = who.Proof
			return nil, err
		})
		require.Equal(t, c.want, status.Code(err), "%s: %v", name, err)
		require.Equal(t, c.proof, proof, name)
	}
	_, err = call(a, as(t, identity.RoleOperator, "ada"), adminv1.AdminService_Decommission_FullMethodName,
		decommission, fine)
	require.ErrorContains(t, err,
		"decommission needs two operators here: sign it with --propose FILE, and let another operator send it with --approve FILE")
}
