package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

// makeIn runs a target of the Makefile in a folder, and returns its output.
func makeIn(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", args...) //nolint:gosec // of this test
	cmd.Dir = dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "MAKE") && !strings.HasPrefix(v, "KEY=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A release is refused in one sentence: with changes beside the commit, without the tag of the version, and
// without a key.
func TestAReleaseNeedsACommitATagAndAKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"Makefile", "cmd/db-controller/cli/version.go"} {
		text, err := os.ReadFile("../../" + name) //nolint:gosec // of the repository
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	git := func(args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "git",
			append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...).
			CombinedOutput() //nolint:gosec // of this test
		require.NoError(t, err, string(out))
	}
	refused := func(says string, args ...string) {
		t.Helper()
		out, err := makeIn(t, dir, append([]string{"-s", "release"}, args...)...)
		require.Error(t, err)
		first, _, _ := strings.Cut(out, "\n")
		require.Contains(t, first, says)
	}
	git("init", "-q")
	refused("the tree has changes that are not in a commit")
	git("add", ".")
	git("commit", "-q", "-m", "x")
	refused("the commit lacks the tag of its version, v" + cli.Version)
	git("tag", "v"+cli.Version)
	refused("there is no key to sign with")
	refused("there is no key to sign with", "KEY=/nonexistent")
	key := filepath.Join(t.TempDir(), "cosign.key")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	out, err := makeIn(t, dir, "-s", "release-ready", "KEY="+key)
	require.NoError(t, err, out)
}

// A release runs what a release needs, in order.
func TestAReleaseDependsOnItsChecks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	_, rule, found := strings.Cut(string(text), "\nrelease: release-ready")
	require.True(t, found)
	rule, _, _ = strings.Cut(rule, "\n\n")
	for _, step := range []string{
		"$(MAKE) verify", "FUZZTIME=10m $(MAKE) fuzz", "$(MAKE) upgrade",
		"$(MAKE) release-ready", "$(MAKE) release-files",
	} {
		_, after, found := strings.Cut(rule, "\t"+step)
		require.True(t, found, step)
		rule = after
	}
}

// The provenance names each file with its digest, the commit, and each module once; a folder that lacks one
// of its sources has none.
func TestTheProvenanceNamesWhatWasBuiltOfWhat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(t.TempDir(), "provenance")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./provenance") //nolint:gosec // of the repository
	build.Dir = "../../tools"
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	statement := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), program, dir).Output() //nolint:gosec // built above
		return string(out), err
	}
	for _, file := range [][2]string{
		{"b.sbom.json", `{"components":[{"purl":"pkg:golang/x@v1","hashes":[{"alg":"SHA-256","content":"33"}]}]}`},
		{"metadata.json", `{"tag":"v0.1.0","version":"0.1.0","commit":"abc","date":"2026-01-02T03:04:05+02:00"}`},
		{"checksums.txt", "11  a.tar.gz\n22  b.deb\n"},
	} {
		_, err := statement()
		require.Error(t, err, "without %s", file[0])
		require.NoError(t, os.WriteFile(filepath.Join(dir, file[0]), []byte(file[1]), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.sbom.json"),
		[]byte(
			`{"components":[{"purl":"pkg:golang/std@1.26.0"},{"purl":"pkg:golang/x@v1","hashes":[{"alg":"SHA-256","content":"33"}]}]}`), 0o600))
	text, err := statement()
	require.NoError(t, err)
	for _, want := range []string{
		`"_type":"https://in-toto.io/Statement/v1"`, `"predicateType":"https://slsa.dev/provenance/v1"`,
		`"subject":[{"name":"a.tar.gz","digest":{"sha256":"11"}},{"name":"b.deb","digest":{"sha256":"22"}}]`,
		`"resolvedDependencies":[{"uri":"git+https://github.com/db-controller/db-controller@abc","digest":{"gitCommit":"abc"}},{"uri":"pkg:golang/std@1.26.0"},{"uri":"pkg:golang/x@v1","digest":{"dirHash":"33"}}]`,
		`"startedOn":"2026-01-02T01:04:05Z"`, `"tag":"v0.1.0"`,
	} {
		require.Contains(t, strings.Join(strings.Fields(text), ""), want)
	}
}
