package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/db-controller/db-controller/test/wait"
)

// limits is a configuration of which one setting can be reloaded.
type limits struct {
	most, nodes int
	dsn         string
}

func (l *limits) flags(f *pflag.FlagSet) {
	f.IntVar(&l.most, "most", 10, "")
	f.IntVar(&l.nodes, "nodes", 2, "")
	SecretFlag(f, &l.dsn, "postgres", "")
	Reloadable(f, OnSignal, "most")
	Reloadable(f, Followed, "postgres-file")
}

func (l *limits) check() error {
	if l.most < 0 {
		return errors.New("--most: want more than 0")
	}
	return nil
}

// running is a command with a file of settings, which it reads again.
type running struct {
	t       *testing.T
	path    string
	log     bytes.Buffer
	applied chan limits
	*reload
}

func run(t *testing.T, text string, args ...string) *running {
	t.Helper()
	r := &running{t: t, path: filepath.Join(t.TempDir(), "c.yaml"), applied: make(chan limits, 1)}
	r.write(text)
	root, cmd := &cobra.Command{Use: "db-controller"}, &cobra.Command{Use: "serve"}
	root.AddCommand(cmd)
	cmd.Flags().String("config", r.path, "")
	cmd.Flags().String("log-level", "info", "")
	(&limits{}).flags(cmd.Flags())
	require.NoError(t, cmd.ParseFlags(args))
	require.NoError(t, Configure(cmd))
	cmd.SetErr(&r.log)
	log, level, err := NewLogger(cmd)
	require.NoError(t, err)
	r.reload = newReload(cmd, level, log, func(f *pflag.FlagSet) (check func() error, apply func()) {
		next := &limits{}
		next.flags(f)
		return next.check, func() { r.applied <- *next }
	})
	return r
}

func (r *running) write(text string) { require.NoError(r.t, os.WriteFile(r.path, []byte(text), 0o600)) }

// hangup returns the only line of the log about a file that is read again.
func (r *running) hangup() map[string]any {
	r.t.Helper()
	r.log.Reset()
	r.read()
	line := map[string]any{}
	require.NoError(r.t, json.Unmarshal(r.log.Bytes(), &line), r.log.String())
	return line
}

// A process has the settings of its file after SIGHUP, as far as they can be reloaded; one line of the log
// names the changed settings, and those that wait for a restart.
func TestSettingsAreReadAgain(t *testing.T) {
	r := run(t, "log_level: warn\npostgres: postgres://u:secret1@localhost/x\n")
	require.Equal(t, zapcore.WarnLevel, r.level.Level())
	r.write("log_level: error\nserve: { most: 20, nodes: 3 }\npostgres: postgres://u:secret2@localhost/x\n")
	line := r.hangup()
	require.Equal(t, zapcore.ErrorLevel, r.level.Level())
	require.Equal(t, "the configuration is read again, and some of it needs a restart", line["msg"], line)
	require.Equal(t, map[string]any{"most": "10 → 20", "log-level": "warn → error"}, line["changed"])
	require.Equal(t, []any{"nodes"}, line["needs_restart"])
	require.Equal(t, 20, (<-r.applied).most)
	require.NotContains(t, r.log.String(), "secret")

	r.write("log_level: debug\npostgres: postgres://u@elsewhere/x\n")
	line = r.hangup()
	require.Equal(t, zapcore.DebugLevel, r.level.Level())
	require.Equal(t, map[string]any{"most": "20 → 10", "log-level": "error → debug"}, line["changed"],
		"what the file leaves out is the default")
	require.Equal(t, []any{"postgres"}, line["needs_restart"])
	<-r.applied
	require.Equal(t, []any{"postgres"}, r.hangup()["needs_restart"], "until the process is restarted")
}

func TestAHangupHasSettingsReadAgain(t *testing.T) {
	r := run(t, "most: 7\n")
	hangup := make(chan os.Signal, 100) // so that the signal never ends the test
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); FollowReloads(ctx, r.cmd, r.level, r.reload.log, r.again) }()
	r.write("most: 8\n")
	require.Eventually(t, func() bool {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		select {
		case applied := <-r.applied:
			return applied.most == 8
		case <-time.After(time.Second):
			return false
		}
	}, wait.Limit, time.Millisecond)
	cancel()
	for {
		select {
		case <-r.applied: // of a signal that came twice
		case <-done:
			return
		}
	}
}

// A file with a mistake changes nothing.
func TestAWrongFileChangesNothing(t *testing.T) {
	for text, says := range map[string]string{
		"most: 5\nmist: 6\n":             `unknown key "mist": did you mean most?`,
		"most: 5\nnodes: many\n":         `"many": want a whole number`,
		"most: -1\n":                     "--most: want more than 0",
		"most: 5\nlog_level: loud\n":     "log-level: unrecognized level", //nolint:misspell // the word of zap
		"postgres-file: /nonexistent\n":  "--postgres-file: open /nonexistent",
		"most: 5\nlog_level: debug\n- x": "did not find expected key",
	} {
		r := run(t, "most: 7\n")
		r.write(text)
		line := r.hangup()
		require.Equal(t, "the configuration could not be read again, all settings stay", line["msg"], text)
		require.Contains(t, line["error"], says)
		require.Equal(t, zapcore.InfoLevel, r.level.Level())
		require.Empty(t, r.applied, text)
	}
}

// The command line and the environment count more than the file, also when it is read again.
func TestTheCommandLineCountsWhenTheFileIsReadAgain(t *testing.T) {
	t.Setenv("DBCONTROLLER_NODES", "9")
	r := run(t, "most: 7\n", "--most=8", "--log-level=info")
	r.write("most: 1\nnodes: 2\nlog_level: debug\n")
	require.Equal(t, "the configuration is read again, and no setting has changed", r.hangup()["msg"])
	applied := <-r.applied
	require.Equal(t, limits{most: 8, nodes: 9}, applied)
}
