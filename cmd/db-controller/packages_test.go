package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The command lines in deploy/compose name commands and flags that exist, and what they apply is valid.
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
