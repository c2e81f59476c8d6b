package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The command lines in deploy/compose name commands and flags that exist, and apply valid files.
func TestTheCommandsInComposeExist(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/compose/compose.yaml")
	require.NoError(t, err)
	var compose struct {
		Services map[string]struct{ Command []string }
	}
	require.NoError(t, yaml.Unmarshal(raw, &compose))
	checked := 0
	for name, service := range compose.Services {
		if len(service.Command) == 0 {
			continue
		}
		cmd, flags, err := newRoot().Find(service.Command)
		require.NoError(t, err, name)
		require.NoError(t, cmd.ParseFlags(flags), name)
		checked++
	}
	require.GreaterOrEqual(t, checked, 5)
	require.Zero(t, command(t, "validate", "../../deploy/compose/services.yaml").code)
}

// The units of systemd start commands that exist.
func TestTheCommandsInUnitsExist(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	require.NoError(t, err)
	require.Len(t, units, 2)
	for _, unit := range units {
		raw, err := os.ReadFile(unit)
		require.NoError(t, err)
		_, rest, ok := strings.Cut(string(raw), "\nExecStart=/usr/local/bin/db-controller ")
		require.True(t, ok, unit)
		line, _, _ := strings.Cut(rest, "\n")
		cmd, flags, err := newRoot().Find(strings.Fields(line))
		require.NoError(t, err, unit)
		require.NotEqual(t, "db-controller", cmd.Name())
		require.NoError(t, cmd.ParseFlags(flags), unit)
	}
}

// systemd accepts the units, where it is installed.
func TestSystemdAcceptsTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	program, err := os.Executable()
	require.NoError(t, err)
	for unit, as := range map[string]string{
		"db-controller-registry.service": "db-controller-registry.service",
		"db-controller@.service":         "db-controller@iam.service",
	} {
		raw, err := os.ReadFile(filepath.Join("../../deploy/systemd", unit))
		require.NoError(t, err)
		path := filepath.Join(dir, as)
		require.NoError(t,
			os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), "/usr/local/bin/db-controller", program)), 0o600))
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput() //nolint:gosec // a program of the system
		require.NoError(t, err, string(out))
		for line := range strings.Lines(string(out)) { // it verifies the units of other packages as well
			require.NotContains(t, line, "db-controller", string(out))
		}
	}
}

// The static program trusts authorities that only the image can have: of PostgreSQL servers, issuers of
// tokens and receivers of OTLP.
func TestTheImageHasAuthorities(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/container/Containerfile")
	require.NoError(t, err)
	_, image, found := strings.Cut(string(raw), "\nFROM scratch\n")
	require.True(t, found)
	require.Contains(t, image, "COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/\n")
}
