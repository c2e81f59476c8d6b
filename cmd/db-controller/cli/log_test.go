package cli

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// A process has the log level of its configuration file after SIGHUP. A file that cannot be read changes nothing.
func TestTheLogLevelIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("log_level: warn\n")
	var stderr bytes.Buffer
	root := &cobra.Command{Use: "db-controller"}
	cmd := &cobra.Command{Use: "serve"}
	root.AddCommand(cmd)
	cmd.Flags().String("config", path, "")
	cmd.Flags().String("log-level", "info", "")
	cmd.SetErr(&stderr)
	require.NoError(t, Configure(cmd))
	log, level, err := NewLogger(cmd)
	require.NoError(t, err)
	require.Equal(t, zapcore.WarnLevel, level.Level())

	hangup := make(chan os.Signal, 100) // so that the signal never ends the test
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- FollowLogLevel(ctx, cmd, level, log) }()
	for content, want := range map[string]zapcore.Level{"log_level: debug\n": zapcore.DebugLevel, "serve:\n  log_level: error\n": zapcore.ErrorLevel, "\n": zapcore.InfoLevel} {
		write(content)
		require.Eventually(t, func() bool {
			require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
			return level.Level() == want
		}, 30*time.Second, 5*time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
	require.Contains(t, stderr.String(), "the log level is changed")
	write("log_level: loud\n")
	_, err = levelAgain(cmd)
	require.Error(t, err)
	write("log_level: error\n")
	require.NoError(t, cmd.Flags().Set("log-level", "debug"))
	setAnnotation(cmd.Flags().Lookup("log-level"), originKey, "flag")
	now, err := levelAgain(cmd)
	require.NoError(t, err)
	require.Equal(t, zapcore.DebugLevel, now, "the command line counts")
}

// No line of the audit is left out, however many come in a second; of other equal lines most are.
func TestNoLineOfTheAuditIsLeftOut(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	cmd := &cobra.Command{Use: "serve"}
	cmd.Flags().String("log-level", "info", "")
	cmd.SetErr(&stderr)
	log, _, err := NewLogger(cmd)
	require.NoError(t, err)
	const lines = 5000
	log = log.With(zap.String("deployment", "a.example.com/us-west2"))
	for range lines {
		log.Named("audit").Info("allowed")
		log.Named("node").Named("audit").Info("denied")
		log.Info("often")
	}
	require.Equal(t, lines, bytes.Count(stderr.Bytes(), []byte(`"allowed"`)))
	require.Equal(t, lines, bytes.Count(stderr.Bytes(), []byte(`"denied"`)))
	require.Less(t, bytes.Count(stderr.Bytes(), []byte(`"often"`)), lines/2)
}
