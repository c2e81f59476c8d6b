package test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const canary = "c4n4ry-pa55w0rd"

// Errors of a database do not contain its password.
func TestErrorsContainNoPassword(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	_, err := run(t, "certs", "--dir", certs, "registry", "deployment/a.example.com/us-west2")
	require.NoError(t, err)
	certDir := filepath.Join(certs, "deployment_a.example.com_us-west2")
	for name, dsn := range map[string]string{
		"nobody there":   "postgres://u:" + canary + "@127.0.0.1:1/db",
		"no port":        "postgres://u:" + canary + "@127.0.0.1:port/db",
		"no URL":         "postgres://u:" + canary + "@[127.0.0.1/db",
		"unknown words":  "host=127.0.0.1 password=" + canary + " nonsense",
		"no TLS":         "postgres://u:" + canary + "@db.example.org/db",
		"wrong settings": "postgres://u:" + canary + "@127.0.0.1:1/db?sslmode=nonsense",
		"a keyword":      "host=127.0.0.1 port=1 user=u password='" + canary + "'",
	} {
		for _, args := range [][]string{
			{
				"serve", "--deployment", "a.example.com/us-west2", "--postgres", dsn, "--registry", "127.0.0.1:1",
				"--certs", certDir, "--listen", "127.0.0.1:0", "--migrate", "--start-timeout", "1s",
			},
			{
				"registry", "--postgres", dsn, "--certs", filepath.Join(certs, "registry"), "--listen", "127.0.0.1:0",
				"--start-timeout", "1s",
			},
			{"migrate", "up", "--postgres", dsn, "--roles"},
			{"migrate", "status", "--postgres", dsn},
			{"dev", "--postgres", dsn, "--dir", t.TempDir()},
		} {
			out, err := run(t, append(args, "--log-level", "debug")...)
			require.Error(t, err, "%s of %s", args[0], name)
			require.NotContains(t, out, canary, "%s of %s", args[0], name)
			require.NotEmpty(t, out)
		}
	}
}

// All outputs of running processes: logs, metrics, health, errors.
func TestOutputsContainNoSecrets(t *testing.T) {
	t.Parallel()
	addresses, err := playground.FreeAddresses(1)
	require.NoError(t, err)
	f := newFixture(t, "--log-level", "debug")
	d := f.Deployments[f.id(aWest+"x/y")]
	dsn, err := url.Parse(d.DSN)
	require.NoError(t, err)
	secrets := map[string]string{}
	if password, ok := dsn.User.Password(); ok && len(password) > 8 {
		secrets["the database's password"] = password
	}
	conn, err := pgx.Connect(t.Context(), d.DSN)
	require.NoError(t, err)
	var key []byte
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT token_keys[1] FROM dbcontroller.meta`).Scan(&key))
	require.NoError(t, conn.Close(context.Background()))
	secrets["the key of tokens"], secrets["the key of tokens, in base64"] = hex.EncodeToString(key),
		base64.StdEncoding.EncodeToString(key)
	raw, err := os.ReadFile(filepath.Join(d.Certs, "tls.key"))
	require.NoError(t, err)
	secrets["the private key"] = strings.Split(string(raw), "\n")[1]
	secrets["what users store"] = canary

	f.mustPut(aWest+"targets/t", fields{"secret": canary})
	f.mustPut(bEast+"holders/h", fields{"block": aWest + "targets/t", "secret": canary})
	f.settled()
	out := map[string]string{}
	note := func(from string, err error) {
		require.Error(t, err, from)
		out[from] = err.Error()
	}
	note("a blocked delete", f.delete(aWest+"targets/t"))
	_, err = f.put(bEast+"holders/h2", fields{"block": aWest + "targets/none", "secret": canary})
	note("a refused write", err)
	_, err = f.put(aWest+"targets/nul", fields{"secret": canary + "\x00"})
	note("a body that cannot be stored", err)
	resources := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2"))
	_, err = resources.ListResources(t.Context(), &resourcev1.ListResourcesRequest{
		Kind:      "Target",
		PageToken: "nonsense",
	})
	note("a wrong page", err)
	_, err = resources.ListResources(t.Context(), &resourcev1.ListResourcesRequest{Kind: "Target", Filter: "body.x ="})
	note("a wrong filter", err)
	for _, path := range []string{
		"/metrics", "/readyz?verbose", "/livez?verbose", "/healthz?verbose", "/debug/pprof/",
		"/debug/vars", "/",
	} {
		out[path] = get(t, d.HTTP+path)
	}
	require.Contains(t, out["/debug/pprof/"], "404", "profiles are not served there")

	require.NoError(t, f.Deployments[f.id(bWest+"x/y")].Kill())
	_, err = f.put(aWest+"targets/elsewhere", nil, ownedBy("Holder", bWest+"holders/x"))
	require.NoError(t, err, "an owner is asked for later")
	require.NoError(t, f.Deployments[f.id(aEast+"x/y")].Kill())
	_, err = f.put(aWest+"targets/far", fields{"next": aEast + "targets/t"})
	note("a region that is away", err)
	_, err = resources.ListResources(t.Context(), &resourcev1.ListResourcesRequest{Kind: "Target", Region: "eastus2"})
	note("a request for a region that is away", err)
	for _, from := range []string{"a region that is away", "a request for a region that is away"} {
		require.NotContains(t, out[from], "127.0.0.1", "the host of another deployment")
		require.Contains(t, out[from], "connection refused")
	}
	require.NoError(t, f.Deployments[f.id(bWest+"x/y")].Start())
	require.NoError(t, f.Deployments[f.id(aEast+"x/y")].Start())

	// Profiles, on a listener of their own.
	p := f.withPprof(addresses[0])
	require.Contains(t, get(t, "http://"+addresses[0]+"/debug/pprof/"), "goroutine")
	out["pprof cmdline"] = get(t, "http://"+addresses[0]+"/debug/pprof/cmdline")
	require.Contains(t, out["pprof cmdline"], "404")
	require.NoError(t, p.Stop())
	for name, d := range f.Deployments {
		require.NoError(t, d.Stop())
		log, err := os.ReadFile(d.Log())
		require.NoError(t, err)
		require.NotEmpty(t, log)
		out["the log of "+name.String()] = string(log)
	}
	for from, text := range out {
		for what, secret := range secrets {
			require.NotContains(t, text, secret, "%s in %s", what, from)
		}
	}
	said, err := run(t, "serve", "--deployment", "a.example.com/us-west2", "--postgres", "postgres://127.0.0.1:1/x",
		"--registry", "127.0.0.1:1",
		"--certs", d.Certs, "--listen", "127.0.0.1:0", "--pprof", "0.0.0.0:0")
	require.Error(t, err)
	require.Contains(t, said, "want a loopback address")
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(raw)
}

// withPprof starts one more process of a deployment, with profiles.
func (f *fixture) withPprof(address string) *playground.Process {
	f.t.Helper()
	return f.another("a.example.com/us-west2", "profiled", "--pprof", address)
}
