package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// An operator changes only the parts of the environment that its limits allow, by every method: the
// deployments of a region, of a service, the rights.
func TestOperatorsChangeWhatTheirLimitsAllow(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	as := func(name string) registryv1.RegistryServiceClient {
		return serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: name})
	}
	ada, olga, omar, ida := as("ada"), as("olga"), as("omar"), as("ida")
	apply(t, ada, example)
	apply(t, ada, `
rights:
  operators:
    - {identity: operator/ada, verbs: [read, operate, grant]}
    - {identity: operator/olga, verbs: [read]}
    - {identity: operator/omar, verbs: [operate], deployments: ["*/us-west2"]}
    - {identity: operator/ida, verbs: [operate], deployments: [iam.example.com/*]}
`)
	denied := func(err error, says string) {
		t.Helper()
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
	version := func(c registryv1.RegistryServiceClient, region, to string) error {
		_, err := c.SetDeploymentVersion(t.Context(), &registryv1.SetDeploymentVersionRequest{
			Service: west.Service,
			Region:  region, Version: to,
		})
		return err
	}
	denied(version(olga, "us-west2", "v2"),
		"operator/olga has no right to operate at iam.example.com/us-west2: ask an operator with the verb grant")
	denied(version(omar, "eastus2", "v2"), "operator/omar has no right to operate at iam.example.com/eastus2")
	require.NoError(t, version(omar, "us-west2", "v2"))
	require.NoError(t, version(ida, "eastus2", "v2"))
	_, err := dryRun(t, omar,
		"service: iam.example.com\nversion: v3\nkinds: [{kind: Project, patterns: ['projects/{project}']}]\n")
	denied(err, "iam.example.com in all regions")
	_, err = dryRun(t, ida,
		"service: iam.example.com\nversion: v3\nkinds: [{kind: Project, patterns: ['projects/{project}']}]\n")
	require.NoError(t, err)
	for _, c := range []registryv1.RegistryServiceClient{olga, omar, ida} {
		_, err = dryRun(t, c, "rights: {default: allow}")
		denied(err, "to grant at all deployments")
	}
	_, err = dryRun(t, ada, "rights: {default: allow}")
	require.NoError(t, err)
	_, err = olga.Remove(t.Context(), &registryv1.RemoveRequest{Deployments: []string{"iam.example.com/eastus2"}})
	denied(err, "iam.example.com/eastus2")
	_, err = ida.Remove(t.Context(), &registryv1.RemoveRequest{
		Deployments: []string{"iam.example.com/eastus2"},
		Regions:     []string{"eastus2"},
	})
	denied(err, "all services in eastus2")
	_, err = omar.AcceptDatabase(t.Context(), &registryv1.AcceptDatabaseRequest{
		Service: west.Service,
		Region:  "eastus2", Database: "b5a4fd9a-2e0c-4a58-9a3e-6a35b5f0a001",
	})
	denied(err, "iam.example.com/eastus2")
	_, err = omar.DecommissionDeployment(t.Context(), &registryv1.DecommissionDeploymentRequest{
		Service: west.Service,
		Region:  "eastus2", Reason: "x",
	})
	denied(err, "iam.example.com/eastus2")
	_, err = omar.DecommissionDeployment(t.Context(), &registryv1.DecommissionDeploymentRequest{
		Service: west.Service,
		Region:  "mars", Reason: "x", Unlisted: true,
	})
	denied(err, "iam.example.com/mars")
	_, err = omar.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{})
	denied(err, "to read at all deployments")
	_, err = olga.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{})
	require.NoError(t, err)
	_, err = ada.Apply(t.Context(),
		&registryv1.ApplyRequest{Rights: &registryv1.Rights{Operators: []*registryv1.Operator{{
			Identity: "operator/ada",
			Verbs:    []string{"read"},
		}}}})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "nobody could change the rights again: %v", err)
}

// An operator declares nothing complete, and sees no grants, beyond the limits: also by applying unchanged
// rights.
func TestOperatorsVouchWithinTheirLimits_I15(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	as := func(name string) registryv1.RegistryServiceClient {
		return serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: name})
	}
	ada, nobody := as("ada"), as("nobody")
	apply(t, ada, example)
	apply(t, ada, `
rights:
  grants: [{identity: user/secret, verbs: [operate], name: projects/secret}, {identity: "*", verbs: [read]}]
  operators: [{identity: operator/ada, verbs: [read, operate, grant]}]
`)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), `UPDATE dbcontroller_registry.deployment SET applied_in = NULL`) // as an older copy
	require.NoError(t, err)
	env, err := nobody.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.True(t, env.GetOwnGrantsOnly())
	require.Len(t, env.GetEnvironment().GetRights().GetGrants(), 1, "everybody's")
	require.Empty(t, env.GetEnvironment().GetRights().GetOperators())
	_, err = nobody.Apply(t.Context(), &registryv1.ApplyRequest{Deployments: env.GetEnvironment().GetDeployments()})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	env, err = ada.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.True(t, env.GetIncomplete())
	require.False(t, env.GetOwnGrantsOnly())
	require.Len(t, env.GetEnvironment().GetRights().GetOperators(), 1)
}

// written is a sink in memory.
type written struct {
	mu  sync.Mutex
	all []byte
}

func (w *written) Last() (auditlog.Chain, error) { return auditlog.Chain{}, nil }
func (w *written) Close() error                  { return nil }

func (w *written) Write(lines [][]byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, bytes.Join(lines, nil)...)
	return len(lines), nil
}

// A change is asked for, and then changed, denied or failed; a call that changes nothing is allowed.
func TestTheAuditLogOfTheRegistryHasEachOutcome(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	ada := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "ada"})
	apply(t, ada, example)
	apply(t, ada, "rights: {operators: [{identity: operator/ada, verbs: [read, operate, grant]}]}")
	pool, err := postgres.Connect(t.Context(), dsn, "test", 4)
	require.NoError(t, err)
	defer pool.Close()
	sink := &written{}
	log, err := auditlog.Open(auditlog.Config{
		Source: "registry", Sink: sink, Classes: auditlog.Classes, Required: true,
		Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	s := server.New(pool, log, nil, zap.NewNop())
	for _, by := range []struct {
		who      string
		versions []string
	}{{"ada", []string{"v2", "v2", "v9"}}, {"olga", []string{"v1"}}} { // in this order: v1 is a change only after v2
		ctx := identity.NewContext(t.Context(), identity.Identity{Role: identity.RoleOperator, Name: by.who})
		for _, version := range by.versions {
			_, err := s.SetDeploymentVersion(ctx, &registryv1.SetDeploymentVersionRequest{
				Service: west.Service,
				Region:  west.Region, Version: version,
			})
			t.Log(by.who, version, err)
		}
	}
	require.NoError(t, log.Close())
	got := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(sink.all)); d.More(); {
		var e auditlog.Event
		require.NoError(t, d.Decode(&e))
		got[e.Identity] = append(got[e.Identity], string(e.Outcome))
	}
	require.Equal(t, map[string][]string{"": {"began"}, "operator/ada": {
		"asked", "changed", "asked", "allowed",
		"asked", "failed",
	}, "operator/olga": {"asked", "denied"}}, got)
}

// A deployment is decommissioned, and a database accepted, for an operator when another one has signed the
// request; the history names both.
func TestTheRegistryAsksForTwoOperators(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	apply(t, serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "ada"}),
		example+"\n---\nrights: {two_operators: [decommission]}\n")
	pool, err := postgres.Connect(t.Context(), dsn, "test", 4)
	require.NoError(t, err)
	defer pool.Close()
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	load := func(id identity.Identity) *identity.Credentials {
		dir := t.TempDir()
		require.NoError(t, authority.Issue(dir, id))
		c, err := identity.Load(identity.InDir(dir))
		require.NoError(t, err)
		return c
	}
	ada := load(identity.Identity{Role: identity.RoleOperator, Name: "ada"})
	s := server.New(pool, nil, load(identity.Identity{Role: identity.RoleRegistry}), zap.NewNop())
	omar := identity.NewCallerContext(t.Context(),
		identity.Caller{
			Identity: identity.Identity{Role: identity.RoleOperator, Name: "omar"},
			Proof:    identity.ByCertificate,
		})
	decommission := &registryv1.DecommissionDeploymentRequest{
		Service: west.Service, Region: "eastus2",
		Reason: "closed",
	}
	accept := &registryv1.AcceptDatabaseRequest{
		Service: west.Service, Region: west.Region,
		Database: "b5a4fd9a-2e0c-4a58-9a3e-6a35b5f0a001",
	}
	_, err = s.DecommissionDeployment(omar, decommission)
	require.ErrorContains(t, err, "decommission needs two operators")
	_, err = s.AcceptDatabase(omar, accept)
	require.ErrorContains(t, err, "decommission needs two operators")
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	for _, at := range []string{approval.AllDeployments, west.String()} {
		decommission.Approval, err = approval.Sign(ada, at,
			&registryv1.DecommissionDeploymentRequest{Service: west.Service, Region: "eastus2", Reason: "closed"},
			time.Now())
		require.NoError(t, err)
		_, err = s.DecommissionDeployment(omar, decommission)
		require.ErrorContains(t, err, "for another server", at)
	}
	decommission.Approval, err = approval.Sign(ada, approval.Registry,
		&registryv1.DecommissionDeploymentRequest{Service: west.Service, Region: "eastus2", Reason: "closed"},
		time.Now())
	require.NoError(t, err)
	accept.Approval, err = approval.Sign(ada, approval.Registry,
		&registryv1.AcceptDatabaseRequest{Service: west.Service, Region: west.Region, Database: accept.GetDatabase()},
		time.Now())
	require.NoError(t, err)
	for range 2 { // a repetition changes nothing
		_, err = s.DecommissionDeployment(omar, decommission)
		require.NoError(t, err)
		_, err = s.AcceptDatabase(omar, accept)
		require.NoError(t, err)
	}
	revisions, err := s.ListRevisions(omar, &registryv1.ListRevisionsRequest{PageSize: 2})
	require.NoError(t, err)
	require.Len(t, revisions.GetRevisions(), 2)
	for _, r := range revisions.GetRevisions() {
		require.Equal(t, "operator/omar", r.GetActor())
		require.Equal(t, "certificate, signed by operator/ada", r.GetProof())
	}
}
