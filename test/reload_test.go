package test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// After SIGHUP a deployment has the quota of its file, without a restart; the log names the settings that
// have changed, and the settings that need a restart.
func TestAQuotaIsReloaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "serve.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("max-blocking: 2\n")
	f := newFixture(t, "--config", file)
	f.mustPut(aWest+"targets/x", fields{})
	holders := 0
	hold := func() error {
		holders++
		_, err := f.put(fmt.Sprintf("%sholders/h%d", bEast, holders), fields{"block": aWest + "targets/x"})
		return err
	}
	f.eventually("the quota is full", func() bool { return hold() != nil })
	require.ErrorContains(t, hold(), "quota of references")

	write("max-blocking: 1000\nnodes: 3\n")
	target := f.Deployments[f.id(aWest+"x/y")].Process
	require.NoError(t, target.Signal(syscall.SIGHUP))
	f.eventually("the quota is that of the file", func() bool { return hold() == nil })
	log, err := os.ReadFile(target.Log())
	require.NoError(t, err)
	require.Contains(t, string(log), `"changed":{"max-blocking":"2 → 1000"},"needs_restart":["nodes"]`)
}
