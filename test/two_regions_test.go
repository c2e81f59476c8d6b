package test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/test/harness"
)

// docs/two-regions.md is executed by one shell, with two PostgreSQL servers and free ports; each block prints
// the lines that follow it.
func TestTwoRegionsByTheDocument(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts the processes of two regions")
	}
	for _, program := range []string{"psql", "pg_dump", "pg_restore", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	raw, err := os.ReadFile("../docs/two-regions.md")
	require.NoError(t, err)
	text := string(raw)
	addresses, err := playground.FreeAddresses(6)
	require.NoError(t, err)
	replace := []string{
		"postgres://postgres:secret@localhost:5441", superuserOf(t, harness.NewCluster(t)),
		"postgres://postgres:secret@localhost:5442", superuserOf(t, harness.NewCluster(t)),
	}
	for i, port := range []string{"7000", "7001", "7002", "8000", "8001", "8002"} {
		_, free, _ := strings.Cut(addresses[i], ":")
		replace = append(replace, port, free)
	}
	dir := t.TempDir()
	t.Cleanup(func() { endProcesses(t, dir) })
	require.NoError(t, os.Symlink(harness.Binary(t), filepath.Join(dir, "db-controller")))

	script, blocks := "", regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(text, -1)
	for i, b := range blocks {
		if b[1] == "sh" {
			script += fmt.Sprintf("echo '== %d'\n%s", i, strings.NewReplacer(replace...).Replace(b[2]))
		}
	}
	bash := exec.CommandContext(t.Context(), "bash", "-eu", "-c", script) //nolint:gosec // the project's own document
	bash.Dir, bash.Env = dir, append(os.Environ(), "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := bash.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for i, b := range blocks {
		if b[1] != "text" {
			continue
		}
		_, printed, found := strings.Cut(string(out), fmt.Sprintf("== %d\n", i-1))
		require.True(t, found)
		printed, _, _ = strings.Cut(printed, "\n== ")
		for line := range strings.Lines(b[2]) {
			require.Contains(t, printed, strings.TrimSpace(line))
		}
	}
}

func superuserOf(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	u, err := url.Parse(c.DSN(""))
	require.NoError(t, err)
	u.Path, u.RawQuery = "", ""
	return u.String()
}

// endProcesses ends the processes whose ids are in files.
func endProcesses(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	require.NoError(t, err)
	for _, file := range files {
		raw, err := os.ReadFile(file) //nolint:gosec // written by the document
		require.NoError(t, err)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended
		}
	}
}
