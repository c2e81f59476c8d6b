package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

// configured is an entry of the output of config print.
type configured struct{ Flag, Value, Origin, Reload string }

// settingsOf returns the output of config print.
func settingsOf(t *testing.T, args ...string) map[string]configured {
	t.Helper()
	got := command(t, append([]string{"config", "print"}, args...)...)
	require.Zero(t, got.code, got.errOut)
	var all []configured
	require.NoError(t, json.Unmarshal([]byte(got.out), &all))
	by := map[string]configured{}
	for _, c := range all {
		by[c.Flag] = c
	}
	return by
}

// A section is for one command, the keys beside the sections are for all; lists and nulls have the meaning of
// YAML.
func TestAFileHasSectionsForSeveralCommands(t *testing.T) {
	file := write(t, `log-level: debug
registry: { listen: ":7000" }
postgres: postgres://common:s3cr3t@localhost/x
serve:
  registry: localhost:7000
  nodes: 3
  owner_grace: 1m
  max-blocking: null
dev:
  services: [a.yaml, "b,c.yaml"]
migrate: { set: registry }
`)
	secret := filepath.Join(t.TempDir(), "postgres")
	require.NoError(t, os.WriteFile(secret, []byte("host=localhost password=s3cr3t\n"), 0o600))
	t.Setenv("DBCONTROLLER_LEASE", "7s")
	t.Setenv("DBCONTROLLER_NODES", "4")

	serve := settingsOf(t, "serve", "--config", file, "-o", "json", "--", "--name", "x")
	require.Equal(t, configured{"nodes", "4", "environment DBCONTROLLER_NODES", "restart"}, serve["nodes"])
	require.Equal(t, configured{"lease", "7s", "environment DBCONTROLLER_LEASE", "restart"}, serve["lease"])
	require.Equal(t, configured{"owner-grace", "1m0s", "configuration " + file + ": serve.owner_grace", "SIGHUP"},
		serve["owner-grace"])
	require.Equal(t, configured{"log-level", "debug", "configuration " + file + ": log-level", "SIGHUP"},
		serve["log-level"])
	require.Equal(t, configured{"registry", "localhost:7000", "configuration " + file + ": serve.registry", "restart"},
		serve["registry"])
	require.Equal(t, configured{"max-blocking", "10000000", "default", "SIGHUP"}, serve["max-blocking"])
	require.Equal(t, configured{"name", "x", "flag", "restart"}, serve["name"])
	require.Equal(t, "postgres://common:xxxxx@localhost/x", serve["postgres"].Value)
	require.Equal(t, "followed", serve["certs"].Reload)
	require.Equal(t, ":7000", settingsOf(t, "registry", "--config", file, "-o", "json")["listen"].Value)
	require.Equal(t, "registry", settingsOf(t, "migrate", "up", "--config", file, "-o", "json")["set"].Value)
	require.Equal(t, `[a.yaml,"b,c.yaml"]`, settingsOf(t, "dev", "--config", file, "-o", "json")["services"].Value)

	migrate := settingsOf(t, "migrate", "up", "-o", "json", "--", "--postgres-file", secret)
	require.Equal(t, configured{"postgres", "host=localhost password=xxxxx", "file " + secret, ""}, migrate["postgres"])
}

// config print shows the settings, and refuses values that the command refuses. Missing settings are none.
func TestConfigPrintRefusesAbsurdValues(t *testing.T) {
	for says, args := range map[string][]string{
		"--nodes -1: want 1 to":                   {"serve", "--", "--nodes", "-1"},
		"--owner-grace -5m0s: want more than 0s":  {"serve", "--", "--owner-grace", "-5m"},
		"give --advertise host:port":              {"serve", "--", "--listen", ":7101"},
		"--call-memory 1: want at least 64":       {"registry", "--", "--call-memory", "1"},
		`"many" for "--nodes" flag: want a whole`: {"serve", "--", "--nodes", "many"},
		`deployment "iam": want service/region`:   {"serve", "--", "--deployment", "iam"},
		`--registry: registry "localhost": want`:  {"serve", "--", "--registry", "localhost:7000,localhost"},
		`--authorizer: address "policy": want`:    {"serve", "--", "--authorizer", "policy"},
		`--authorizer-identity: `: {
			"serve", "--", "--authorizer", "policy:7000",
			"--authorizer-identity", "somebody",
		},
	} {
		got := command(t, append([]string{"config", "print"}, args...)...)
		require.Equal(t, cli.WrongUsage, got.code, args)
		require.Contains(t, got.errOut, says)
	}
	got := command(t, "config", "print", "serve", "--nodes", "-1")
	require.Equal(t,
		ran{
			cli.WrongUsage, "",
			"error: unknown flag: --nodes: the flags of the command follow --, as in: db-controller config print migrate up -- --set registry\n",
		}, got)
	got = command(t, "config", "print", "serve", "--", "--nodes", "-1")
	require.Regexp(t, `(?m)^nodes +-1 +flag +restart$`, got.out, "where the wrong value comes from")
	require.Zero(t, command(t, "config", "print", "serve").code, "what is missing is not wrong")
}

// A mistake is named with the nearest right word, and nothing is done.
func TestMistakesInTheConfigurationAreRefused(t *testing.T) {
	secret := write(t, "x")
	for says, text := range map[string]string{
		`unknown key "nods": did you mean nodes?`:                              "serve: { nods: 3 }\n",
		`serve: unknown key "xxxxxxxxxx": known are advertise, audit-interval`: "serve: { xxxxxxxxxx: 3 }\n",
		`unknown section "srve": did you mean serve?`:                          "srve: { nodes: 3 }\n",
		`: nodes: want one value, not a list`:                                  "nodes: [1, 2]\n",
		`.nodes: want a value, not fields`:                                     "serve: { nodes: { a: 1 } }\n",
		`.name: want a value, not fields`:                                      "serve: { name: { 1: 1 } }\n",
		`serve: unknown key "7": known are advertise`:                          "serve: { 7: 1 }\n",
		`.nodes: "many": want a whole number`:                                  "serve: { nodes: many }\n",
		`.lease: "5": want a duration with its unit, such as 30s or 5m`:        "serve: { lease: 5 }\n",
		`.max-blocking: "99999999999999999999": the number is too large`:       "serve: { max-blocking: \"99999999999999999999\" }\n",
		`.migrate: "perhaps": want true or false`:                              "serve: { migrate: perhaps }\n",
		`are both given`:                     "serve: { postgres: x, postgres-file: " + secret + " }\n",
		`--postgres-file: open /nonexistent`: "serve: { postgres-file: /nonexistent }\n",
	} {
		got := command(t, "serve", "--config", write(t, text))
		require.Equal(t, cli.WrongUsage, got.code, text)
		require.Contains(t, got.errOut, says)
	}
	t.Setenv("DBCONTROLLER_PORT", "tcp://10.0.0.1:7000") // as Kubernetes sets for a service of that name
	require.Contains(t, command(t, "serve").errOut, "missing: --deployment")
	t.Setenv("DBCONTROLLER_LOG_LEVL", "debug")
	got := command(t, "serve")
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "unknown variable DBCONTROLLER_LOG_LEVL: did you mean DBCONTROLLER_LOG_LEVEL?")
	t.Setenv("DBCONTROLLER_SERVE_LISTEN", ":7001") // as the section of the file would lead to
	require.Contains(t, command(t, "serve").errOut,
		"unknown variable DBCONTROLLER_SERVE_LISTEN: did you mean DBCONTROLLER_LISTEN?")
}

func TestTheSchemaOfTheConfigurationHasEverySetting(t *testing.T) {
	t.Parallel()
	got := command(t, "config", "schema")
	require.Zero(t, got.code, got.errOut)
	var s struct {
		Properties map[string]struct {
			Properties map[string]struct{ Type []string }
			AnyOf      []any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(got.out), &s))
	require.Equal(t, []string{"integer", "null"}, s.Properties["serve"].Properties["nodes"].Type)
	require.Len(t, s.Properties["registry"].AnyOf, 2, "a flag of serve, and a command")
	for _, name := range cli.FlagsBelow(newRoot()) {
		require.Contains(t, s.Properties, name)
	}
}

// client.yaml can be moved with its certificates.
func TestPathsInClientYAMLAreRelativeToTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Zero(t, command(t, "certs", "--dir", filepath.Join(dir, "certs"), "operator/alice").code)
	file := filepath.Join(dir, "client.yaml")
	require.NoError(t, os.WriteFile(file, []byte("registry: localhost:1\ncerts: certs/operator_alice\n"), 0o600))
	c, err := client.Open(file)
	require.NoError(t, err)
	c.Close()
}
