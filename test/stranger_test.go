package test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/test/harness"
)

const oneTarget = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }]
---
regions: [us-west2]
deployments: [{ deployment: a.example.com/us-west2, version: v1 }]
`

// announce announces an epoch with a deployment's certificate, over a database of its own, as a deployment
// does.
func (f *fixture) announce(deployment, to string) error {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	certs, err := f.Issue(identity.Deployment(id))
	require.NoError(f.t, err)
	epoch := uuid.Must(uuid.NewV7())
	ctx := metadata.AppendToOutgoingContext(f.t.Context(), "dbcontroller-database",
		uuid.NewSHA1(uuid.Nil, []byte(deployment)).String())
	_, err = schemav1.NewSchemaServiceClient(f.as(certs, to)).
		AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
	return err
}

// follow opens a watch of deletions as announce announces, and returns its first token.
func (f *fixture) follow(deployment, to, kept string) (token string, err error) {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	certs, err := f.Issue(identity.Deployment(id))
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(f.t.Context(), "dbcontroller-database",
		uuid.NewSHA1(uuid.Nil, []byte(deployment)).String()))
	defer cancel()
	stream, err := schemav1.NewSchemaServiceClient(f.as(certs, to)).WatchImportedServiceDeletions(ctx,
		&schemav1.WatchImportedServiceDeletionsRequest{KeptToken: kept})
	for err == nil && token == "" {
		var msg *schemav1.WatchImportedServiceDeletionsResponse
		if msg, err = stream.Recv(); err == nil {
			token = cmp.Or(msg.GetEndOfSnapshot().GetResumeToken(), msg.GetBookmark().GetResumeToken())
		}
	}
	return token, err
}

// A certificate of a deployment that the registry does not know stops no delete: of an unknown service, and
// of a service that imports the called one, also after a restore, and with the position of another
// deployment. One that the registry has lost, and that shows its own position, is waited for until an
// operator lifts that; and each can be decommissioned.
func TestAnUnknownCertificateStopsNoDelete_I13_I15(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two processes")
	}
	const of, evil, unlisted, lost = "a.example.com/us-west2", "evil.example.com/mars", "b.example.com/mars",
		"b.example.com/venus"
	f := &fixture{t: t, Processes: harness.NewProcesses(t, oneTarget)}
	for _, name := range []string{"one", "two", "three", "four"} {
		f.mustPut(aWest+"targets/"+name, nil)
	}
	// Before the first environment no caller is known to be a stranger.
	f.eventually("a stranger is refused", func() bool { return status.Code(f.announce(evil, of)) == codes.Unavailable })
	for range 3 {
		require.Equal(t, codes.Unavailable, status.Code(f.announce(evil, of)))
	}
	require.Equal(t, codes.Unavailable, status.Code(f.announce(unlisted, of)))
	_, err := f.follow(unlisted, of, "")
	require.Equal(t, codes.Unavailable, status.Code(err))
	f.mustDelete(aWest + "targets/one")

	described := filepath.Join(t.TempDir(), "venus.yaml")
	require.NoError(t, os.WriteFile(described, []byte(strings.Replace(oneTarget, "regions: [us-west2]\ndeployments: [",
		"regions: [us-west2, venus]\ndeployments: [{ deployment: "+lost+", version: v1 }, ", 1)), 0o600))
	out, err := run(t, "apply", described, "--context", f.Context)
	require.NoError(t, err, out)
	var position string
	f.eventually("a listed deployment follows", func() bool {
		position, err = f.follow(lost, of, "")
		return err == nil
	})
	out, err = run(t, "remove", lost, "--context", f.Context)
	require.NoError(t, err, out)
	f.eventually("a removed one does not", func() bool {
		_, err = f.follow(lost, of, "")
		return status.Code(err) == codes.Unavailable
	})
	_, err = f.follow(lost, of, position)
	require.Equal(t, codes.Unavailable, status.Code(err), "nothing was lost")

	p := f.Deployments[f.id(aWest+"x/y")]
	require.NoError(t, p.Stop())
	p.Add("--restored")
	require.NoError(t, p.Start())
	f.ready(of)
	f.eventually("it recovers", func() bool {
		e := f.status(of).GetEpoch()
		return e.GetOrdinal() == 2 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0
	})
	for _, name := range []string{evil, unlisted, lost} {
		require.Equal(t, codes.Unavailable, status.Code(f.announce(name, of)))
		_, err = f.follow(name, of, "")
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	_, err = f.follow(evil, of, position)
	require.Equal(t, codes.Unavailable, status.Code(err), "it was issued to another deployment")
	f.mustDelete(aWest + "targets/two")
	_, err = f.follow(lost, of, position)
	require.NoError(t, err)
	err = f.delete(aWest + "targets/three")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, lost)

	out, err = run(t, "force-release", of, "--comparison-of", lost, "--reason", "it does not exist", "--yes",
		"--context", f.Context)
	require.NoError(t, err, out)
	f.mustDelete(aWest + "targets/three")
	for _, name := range []string{evil, unlisted, lost} {
		out, err = run(t, "decommission", name, "--reason", "stolen", "--yes", "--context", f.Context)
		require.Error(t, err)
		require.Contains(t, out, "--unlisted")
		out, err = run(t, "decommission", name, "--reason", "stolen", "--yes", "--unlisted", "--context", f.Context)
		require.NoError(t, err, out)
		require.ErrorContains(t, f.announce(name, of), "decommissioned")
	}
	f.mustDelete(aWest + "targets/four")
}
