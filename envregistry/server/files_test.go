package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// folder has files that servers apply.
type folder struct {
	t    *testing.T
	path string
	dsn  string
}

func newFolder(t *testing.T, dsn string) *folder {
	t.Helper()
	return &folder{t, t.TempDir(), dsn}
}

func (f *folder) write(name, content string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.path, name), []byte(content), 0o600))
}

// server returns the files as one server looks at them.
func (f *folder) server() *server.Files {
	f.t.Helper()
	pool, err := postgres.Connect(f.t.Context(), f.dsn, "test", 2)
	require.NoError(f.t, err)
	f.t.Cleanup(pool.Close)
	return server.New(pool, nil, nil, zap.NewNop()).Files([]string{f.path})
}

func version(t *testing.T, c registryv1.RegistryServiceClient) (of string, revision int64) {
	t.Helper()
	answer, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	for _, d := range answer.GetEnvironment().GetDeployments() {
		if d.GetRegion() == west.Region {
			of = d.GetVersion()
		}
	}
	return of, answer.GetEnvironment().GetRevision()
}

// A server applies its files at its start and when they change, also beside limits of operators. A restart
// keeps later changes by operators, a wrong file changes nothing, and the history has the registry as the
// actor.
func TestARegistryAppliesItsFiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t, database(t))
	operator := serve(t, f.dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	services, deployments, _ := strings.Cut(example, "---\nregions:")
	f.write("services.yaml", services)
	f.write("deployments.yml", "regions:"+deployments)
	f.write("rights.yaml",
		"rights: {operators: [{identity: operator/o, verbs: [read, operate]}, {identity: operator/ada, verbs: [read, operate, grant]}]}")
	f.write("README.md", "no YAML")
	first := f.server()
	require.NoError(t, first.Look(t.Context()))
	of, _ := version(t, operator)
	require.Equal(t, "v1", of)

	_, err := operator.SetDeploymentVersion(t.Context(), &registryv1.SetDeploymentVersionRequest{
		Service: west.Service,
		Region:  west.Region, Version: "v2",
	})
	require.NoError(t, err)
	of, revision := version(t, operator)
	require.Equal(t, "v2", of)
	require.NoError(t, first.Look(t.Context()))
	require.NoError(t, f.server().Look(t.Context()), "it starts again")
	of, now := version(t, operator)
	require.Equal(t, "v2", of, "a later change by an operator stays")
	require.Equal(t, revision, now)

	f.write("rights.yaml", "rights: {operators: [{identity: operator/o, verbs: [read, operat]}]}")
	require.ErrorContains(t, first.Look(t.Context()), "rights.yaml")
	f.write("rights.yaml", "rights: {grants: [{identity: user/u, verbs: [read], kind: iam.example.com/Nothing}]}")
	require.ErrorContains(t, first.Look(t.Context()), "Nothing")
	_, now = version(t, operator)
	require.Equal(t, revision, now)
	f.write("rights.yaml",
		"rights: {operators: [{identity: operator/o, verbs: [read]}, {identity: operator/ada, verbs: [read, operate, grant]}]}")
	require.NoError(t, first.Look(t.Context()))
	of, _ = version(t, operator)
	require.Equal(t, "v1", of, "the files say so, and have changed")
	revisions, err := operator.ListRevisions(t.Context(), &registryv1.ListRevisionsRequest{})
	require.NoError(t, err)
	require.Equal(t, "registry", revisions.GetRevisions()[0].GetActor())
	require.NotEqual(t, uuid.Nil.String(), revisions.GetRevisions()[0].GetRequestId())
	require.Equal(t, "files of the registry", revisions.GetRevisions()[0].GetProof())

	require.NoError(t, os.RemoveAll(f.path))
	require.Error(t, first.Look(t.Context()))
	require.NoError(t, os.Mkdir(f.path, 0o700))
	require.ErrorContains(t, first.Look(t.Context()), "no file *.yaml or *.yml")
}

// A registry that was restored counts as complete again when it has the files that were applied, without an
// operator.
func TestARestoredRegistryIsCompletedByItsFiles_I15(t *testing.T) {
	t.Parallel()
	c := newCopied(t)
	f := newFolder(t, c.dsn)
	f.write("all.yaml", example)
	files := f.server()
	require.NoError(t, files.Look(t.Context()))
	c.putBack()
	own := serve(t, c.dsn, identity.Deployment(west))
	require.True(t, incomplete(t, own, c.seen))
	require.NoError(t, files.Look(t.Context()))
	require.False(t, incomplete(t, own, c.seen))
}
