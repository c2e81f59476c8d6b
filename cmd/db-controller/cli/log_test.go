package cli

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

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
