package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// docs/tutorial.md is executed line by line, with a home of its own and the tests' PostgreSQL; the commands
// print the text that it shows, and the program has the lines that it shows.
func TestTheTutorial(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts six processes")
	}
	text, err := os.ReadFile("../docs/tutorial.md")
	require.NoError(t, err)
	program, err := os.ReadFile("../examples/booking/cleaner/main.go")
	require.NoError(t, err)
	home, checkout := t.TempDir(), t.TempDir()
	server := harness.NewCluster(t)                                     // the tests' common one may have a playground
	require.NoError(t, os.Mkdir(filepath.Join(checkout, "bin"), 0o755)) //nolint:gosec // it has a program
	require.NoError(t, os.Symlink(harness.Binary(t), filepath.Join(checkout, "bin", "db-controller")))
	examples, err := filepath.Abs("../examples")
	require.NoError(t, err)
	goEnv, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	require.NoError(t, err)
	goes := strings.Fields(string(goEnv))
	bash := func(script string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", script) //nolint:gosec // the project's own document
		cmd.Dir = checkout
		cmd.Env = append(os.Environ(), "HOME="+home, "DBCONTROLLER_POSTGRES="+server.DSN(""),
			"GOPROXY=off", "GOWORK=off", "GOFLAGS=-trimpath", "CGO_ENABLED=0", "GOCACHE="+goes[0],
			"GOMODCACHE="+goes[1], "GOPATH="+goes[2])
		return cmd
	}
	var printed string
	blocks := regexp.MustCompile("(?ms)^```(sh background|sh|text|go)\n(.*?)^```$").
		FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 13)
	for _, b := range blocks {
		switch content := b[2]; b[1] {
		case "go":
			require.Contains(t, string(program), content)
		case "text":
			for line := range strings.Lines(content) {
				require.Contains(t, printed, strings.TrimSpace(line))
			}
		case "sh background":
			dev := bash("exec " + strings.TrimSpace(content))
			var log bytes.Buffer
			dev.Stdout, dev.Stderr = &log, &log
			require.NoError(t, dev.Start())
			ended := make(chan error, 1)
			go func() { ended <- dev.Wait() }()
			t.Cleanup(func() { _ = dev.Process.Signal(syscall.SIGINT); <-ended }) //nolint:errcheck // it was interrupted
			require.Eventually(t, func() bool {
				return bash(
					"bin/db-controller list iam.example.com/eu && bin/db-controller list devices.example.com/eu").
					Run() == nil
			}, wait.Limit, 200*time.Millisecond, "dev does not start")
		case "sh":
			here := strings.NewReplacer("make build\n", "", "cd examples/", "cd "+examples+"/").Replace(content)
			out, err := bash(here).CombinedOutput()
			require.NoError(t, err, "%s\n%s", content, out)
			printed = string(out)
		}
	}
}
