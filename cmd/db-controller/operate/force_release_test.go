package operate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func TestACutListOfReleasableRowsSaysSo(t *testing.T) {
	t.Parallel()
	rows := make([]*adminv1.Releasable, maxReleasable)
	for i := range rows {
		rows[i] = &adminv1.Releasable{What: "BLOCKADE", Key: "BLOCKADE|1", Other: "//a/r/holders/1"}
	}
	text := func(n int) string { return printed(func(out cli.Printer) { printReleasable(out, rows[:n]) }) }
	require.Contains(t, text(maxReleasable), "These are the first 10000.")
	require.NotContains(t, text(maxReleasable-1), "These are the first")
}
