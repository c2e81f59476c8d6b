package operate

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/auditlog"
)

// NewAuditLog returns the command audit-log.
func NewAuditLog() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit-log",
		Short: "Verify the record of calls that serve and registry write (--audit-log)",
	}
	verify := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check that no line was changed, removed or inserted; several files of one log in their order",
		Long: `Check that no line of an audit log was changed, removed or inserted: each line has a number, and the hash of the line before. Several files of one log, such
as logrotate leaves, are given in their order.

Lines that were cut off at the end leave no trace in the file: compare the number and the hash of the last line with a copy elsewhere.`,
		Example: "  db-controller audit-log verify /var/log/db-controller/audit.log.1 /var/log/db-controller/audit.log",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var chain auditlog.Chain
			for _, path := range args {
				if err := verifyFile(&chain, path); err != nil {
					return err
				}
			}
			out := cli.PrinterOf(cmd)
			out.Line("%s, from number %d to %d, are as they were written. The hash of the last one: %s",
				cli.Plural(int64(chain.Lines), "line"), chain.First, chain.Seq, chain.Hash) //nolint:gosec // a count
			if chain.Begun > 0 {
				out.Line(
					"A log begins again in them, %d times: the file was new when the process started. Compare the last line of each log with a copy elsewhere.", chain.Begun)
			}
			return out.Document(map[string]any{
				"begun": chain.Begun, "lines": chain.Lines, "first": chain.First,
				"last": chain.Seq, "hash": chain.Hash,
			})
		},
	}
	cli.OutputFlag(verify)
	cmd.AddCommand(verify)
	return cmd
}

func verifyFile(chain *auditlog.Chain, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := chain.Verify(f); err != nil {
		return cli.WithCode(cli.Refused, fmt.Errorf("%s: %w", path, err))
	}
	return nil
}
