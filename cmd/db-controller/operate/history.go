package operate

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// NewHistory returns the command history.
func NewHistory() *cobra.Command {
	var limit int
	cmd := cli.NewDeploymentCommand("history",
		"Show who changed regions, services, deployments and rights: the newest change first",
		"  db-controller history --limit 5", cobra.NoArgs,
		func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if limit <= 0 {
				return cli.Usage("--limit %d: want at least 1", limit)
			}
			var found []*registryv1.Revision
			for token := ""; ; {
				page, err := c.Registry().ListRevisions(cmd.Context(),
					&registryv1.ListRevisionsRequest{PageSize: int32(min(limit-len(found), 1000)), PageToken: token}) //nolint:gosec // at most 1000
				if err != nil {
					return cli.Plain(err)
				}
				found = append(found, page.GetRevisions()...)
				if token = page.GetNextPageToken(); token == "" || len(found) >= limit {
					if token != "" {
						defer cmd.PrintErrf("there are earlier changes: use --limit %d\n", 10*limit)
					}
					break
				}
			}
			out := cli.PrinterOf(cmd)
			for _, r := range found {
				printRevision(out, r)
			}
			if len(found) == 0 {
				out.Line("nothing was changed yet")
			}
			return out.Document(cli.Messages(found))
		})
	cmd.Long = `Show who changed regions, services, deployments and rights, when, and what changed: the newest change first. It has each apply, remove,
set-version and decommission.`
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number of changes")
	return cmd
}

func printRevision(out cli.Printer, r *registryv1.Revision) {
	out.Line("revision %d  %s  %s (%s)  %s  request %s", r.GetRevision(), cli.At(r.GetTime().AsTime()), r.GetActor(),
		r.GetProof(), r.GetMethod(), r.GetRequestId())
	if r.GetReason() != "" {
		out.Line("  reason: %s", r.GetReason())
	}
	for _, change := range r.GetChanges() {
		out.Line("  %s", strings.ReplaceAll(change, "\n", "\n  "))
	}
}
