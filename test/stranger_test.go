package test

import (
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

// announce announces an epoch with a deployment's certificate, over a database of its own, as a deployment does.
func (f *fixture) announce(deployment, to string) error {
	f.t.Helper()
	id, err := schema.ParseDeploymentID(deployment)
	require.NoError(f.t, err)
	certs, err := f.Issue(identity.Deployment(id))
	require.NoError(f.t, err)
	epoch := uuid.Must(uuid.NewV7())
	ctx := metadata.AppendToOutgoingContext(f.t.Context(), "dbcontroller-database", uuid.NewSHA1(uuid.Nil, []byte(deployment)).String())
	_, err = schemav1.NewSchemaServiceClient(f.as(certs, to)).AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
	return err
}

// A certificate of a deployment that the registry does not know stops no delete: of a service that nobody knows ever, and of a service
// that imports the called one while its database has lost nothing. After a restore the latter is waited for, because the registry may
// have lost it, until an operator lifts that; and either one can be decommissioned.
func TestAnUnknownCertificateStopsNoDelete_I13_I15(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two processes")
	}
	const of, evil, unlisted = "a.example.com/us-west2", "evil.example.com/mars", "b.example.com/mars"
	f := &fixture{t: t, Processes: harness.NewProcesses(t, oneTarget)}
	for _, name := range []string{"one", "two", "three", "four"} {
		f.mustPut(aWest+"targets/"+name, nil)
	}
	// Before the first environment nobody is known to be a stranger.
	f.eventually("a stranger is refused", func() bool { return status.Code(f.announce(evil, of)) == codes.Unavailable })
	for range 3 {
		require.Equal(t, codes.Unavailable, status.Code(f.announce(evil, of)))
	}
	require.NoError(t, f.announce(unlisted, of))
	f.mustDelete(aWest + "targets/one")

	p := f.Deployments[f.id(aWest+"x/y")]
	require.NoError(t, p.Stop())
	p.Add("--restored")
	require.NoError(t, p.Start())
	f.ready(of)
	f.eventually("it recovers", func() bool {
		e := f.status(of).GetEpoch()
		return e.GetOrdinal() == 2 && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0
	})
	require.Equal(t, codes.Unavailable, status.Code(f.announce(evil, of)))
	f.mustDelete(aWest + "targets/two")
	_ = f.announce(unlisted, of)
	err := f.delete(aWest + "targets/three")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, unlisted)

	out, err := run(t, "waive", of, "--of", unlisted, "--reason", "it does not exist", "--yes", "--context", f.Context)
	require.NoError(t, err, out)
	f.mustDelete(aWest + "targets/three")
	for _, name := range []string{evil, unlisted} {
		out, err = run(t, "decommission", name, "--reason", "stolen", "--yes", "--context", f.Context)
		require.Error(t, err)
		require.Contains(t, out, "--unlisted")
		out, err = run(t, "decommission", name, "--reason", "stolen", "--yes", "--unlisted", "--context", f.Context)
		require.NoError(t, err, out)
		require.ErrorContains(t, f.announce(name, of), "decommissioned")
	}
	f.mustDelete(aWest + "targets/four")
}
