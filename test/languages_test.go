package test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const project = `
service: iam.example.com
version: v1
kinds: [{kind: Project, patterns: ["projects/{project}"]}]
---
regions: [us-west2]
deployments: [{deployment: iam.example.com/us-west2, version: v1}]
`

// The commands and the program of docs/other-languages.md, unchanged, with Debian's stock library, which
// compares host names where ours compares the URI.
func TestTheExampleForOtherLanguages(t *testing.T) {
	t.Parallel()
	harness.NeedsPython(t)
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(harness.Root(t), "schema"), filepath.Join(dir, "schema")))
	sh := exec.Command("sh", "-eu", "-c", documented(t, "sh"))
	sh.Dir = dir
	out, err := sh.CombinedOutput()
	require.NoError(t, err, string(out))

	p := harness.NewProcesses(t, project)
	for _, d := range p.Deployments {
		said := (&harness.Python{Modules: filepath.Join(dir, "modules") + ":" + pythonClient(t)}).
			Run(t, documented(t, "python"), d.Address, p.ClientCerts(), "projects/acme")
		require.Equal(t,
			"stored projects/acme in iam.example.com/us-west2 with the title Acme\nrefused: NOT_FOUND\ndeleted projects/acme\n", said)
	}
}

// pythonClient is the folder of the client for Python.
func pythonClient(t *testing.T) string { return filepath.Join(harness.Root(t), "docs", "examples") }

const accounts = `
service: iam.example.com
version: v1
kinds:
  - {kind: Project, patterns: ["projects/{project}"]}
  - {kind: Account, patterns: ["accounts/{account}"], references: [{path: project, targets: [Project], behaviour: BLOCK}]}
---
regions: [us-west2]
deployments: [{deployment: iam.example.com/us-west2, version: v1}]
`

// The program prints "writing" when the process may be killed.
const usesPythonClient = `
import sys, threading
from dbcontroller_client import AlreadyExists, Blocked, Client, Error, Invalid, NotFound, Reset, of, pb

address, certs = sys.argv[1:]
client = Client(address, certs, within=300)
known, begun, complete, last = {}, [], threading.Event(), threading.Event()

def follow():
    for event, resource, token in client.watch("Account"):
        if event == "begin":
            begun.append(dict(known))
        elif event == "end":
            complete.set()
        elif event == "delete":
            known.pop(resource.name, None)
        else:
            known[resource.name] = resource.revision
        if resource and resource.name == "accounts/last":
            last.set()
            return

threading.Thread(target=follow, daemon=True).start()
complete.wait()
client.put("projects/p", {"title": "P"}, labels={"team": "a"})
for n in range(40):
    client.put(f"accounts/a{n}", {"project": "projects/p"})
    if n == 5:
        print("writing", flush=True)
for wrong, name in ((NotFound, "accounts/none"), (Invalid, "no name")):
    try:
        client.get(name)
    except wrong as error:
        print(error.code.name, error.reason)
try:
    client.delete("projects/p")
except Blocked as error:
    print("blocked", error.reason, error.metadata["total"], "accounts/a0" in str(error))
try:
    client.call(client.stub.CreateResource, pb.CreateResourceRequest(resource=pb.Resource(name="projects/p")))
except AlreadyExists as error:
    print(error.reason)
try:
    client.put("projects/p", {}, revision=7)
except Error as error:
    print(type(error).__name__, error.reason)
try:
    next(client.list("Account", 'body.project = '))
except Invalid as error:
    print(error.reason)
for n in range(1, 40):
    client.delete(f"accounts/a{n}")
client.put("accounts/last", {})
last.wait()
print(sorted(known) == sorted(a.name for a in client.list("Account")), len(known), "begun", len(begun))
`

// A client that shares no code with ours writes while the process of its deployment is killed: each write
// takes effect once, the watch goes on from its token, and refusals have their classes.
func TestThePythonClientGoesOnOverARestart_I29(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	python := harness.NewPython(t)
	python.Modules += ":" + pythonClient(t)
	p := harness.NewProcesses(t, accounts)
	for _, d := range p.Deployments {
		said := python.RunUntil(t, "writing\n", func() {
			require.NoError(t, d.Kill())
			require.NoError(t, d.Start())
		}, usesPythonClient, d.Address, p.ClientCerts())
		require.Equal(t,
			"writing\nNOT_FOUND NOT_FOUND\nINVALID_ARGUMENT INVALID\nblocked BLOCKED 40 True\nALREADY_EXISTS\nRefused MOVED\nINVALID\nTrue 2 begun 1\n", said)
	}
}

// Certificates of servers have the requested names and addresses, by default this machine's; certificates of
// people have none, since a client that compares only these would take them for servers.
func TestCertificatesHaveHostNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := func(args ...string) map[string]*x509.Certificate {
		out, err := run(t, append([]string{
			"certs", "--dir", dir, "registry", "deployment/a.example.com/us-west2",
			"user/ann", "host/db.example.org",
		}, args...)...)
		require.NoError(t, err, out)
		certs := map[string]*x509.Certificate{}
		for _, name := range []string{
			"registry", "deployment_a.example.com_us-west2", "user_ann",
			"host_db.example.org",
		} {
			raw, err := os.ReadFile(filepath.Join(dir, name, "tls.crt"))
			require.NoError(t, err)
			block, _ := pem.Decode(raw)
			certs[name], err = x509.ParseCertificate(block.Bytes)
			require.NoError(t, err)
		}
		return certs
	}
	certs := made()
	for _, name := range []string{"registry", "deployment_a.example.com_us-west2"} {
		for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
			require.NoError(t, certs[name].VerifyHostname(host), name)
		}
		require.Len(t, certs[name].URIs, 1)
	}
	require.Empty(t, certs["user_ann"].DNSNames)
	require.Empty(t, certs["user_ann"].IPAddresses)
	certs = made("--dns", "iam.example.org,iam", "--ip", "10.0.0.7")
	for _, name := range []string{"registry", "deployment_a.example.com_us-west2"} {
		for _, host := range []string{"iam.example.org", "iam", "10.0.0.7"} {
			require.NoError(t, certs[name].VerifyHostname(host), name)
		}
		require.Error(t, certs[name].VerifyHostname("localhost"))
	}
	require.Empty(t, certs["user_ann"].DNSNames)
	require.Equal(t, []string{"db.example.org"}, certs["host_db.example.org"].DNSNames)
	for name, want := range map[string]string{
		"10.0.0.7": "give it with --ip", "iam:8443": "want a host name",
		",iam": "want a host name",
	} {
		out, err := run(t, "certs", "--dir", dir, "--dns", name, "registry")
		require.Error(t, err, name)
		require.Contains(t, out, want)
	}
}

// services lists the services of a server by reflection.
func services(ctx context.Context, conn grpc.ClientConnInterface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	// Recv tells
	_ = stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	})
	answer, err := stream.Recv()
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names, err
}

// Servers offer reflection where it is configured, and only to callers that the policy allows.
func TestReflectionIsConfiguredAndByThePolicy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := services(t.Context(), f.asUser("a.example.com/us-west2"))
	require.Equal(t, codes.Unimplemented, status.Code(err), "not unless it is asked for: %v", err)
	d := f.Deployments[f.id(aWest+"targets/t")]
	require.NoError(t, d.Stop())
	d.Add("--reflection")
	require.NoError(t, d.Start())
	f.ready("a.example.com/us-west2")
	names, err := services(t.Context(), f.asUser("a.example.com/us-west2"))
	require.NoError(t, err)
	require.True(t, slices.Contains(names, "dbcontroller.resource.v1.ResourceService"), "%v", names)
	_, err = services(t.Context(), f.as(f.Deployments[f.id(bWest+"holders/h")].Certs, "a.example.com/us-west2"))
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
}

// dev reports, with the remedy, that PostgreSQL allows too few connections for the described deployments,
// before anything starts.
func TestDevCountsConnectionsFirst(t *testing.T) {
	t.Parallel()
	server, file := harness.NewCluster(t), filepath.Join(t.TempDir(), "many.yaml")
	text := "service: a.example.com\nversion: v1\nkinds: [{kind: Target, patterns: [\"targets/{target}\"]}]\n---\nregions: ["
	for i := range 20 {
		text += string(rune('a'+i)) + "1, "
	}
	text += "z1]\ndeployments:\n"
	for i := range 20 {
		text += "  - {deployment: a.example.com/" + string(rune('a'+i)) + "1, version: v1}\n"
	}
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := run(t, "dev", "--postgres", server.DSN(""), "--services", file, "--dir", t.TempDir())
	require.Error(t, err)
	said := regexp.MustCompile(
		`has 100 connections, of which (\d+) are in use; 20 deployments need 140: set max_connections there to (\d+) or more`).FindStringSubmatch(out)
	require.NotNil(t, said, out)
	inUse, err := strconv.Atoi(said[1]) // the session that looked whether the server is ready may still be ending
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(140+inUse), said[2])
}
