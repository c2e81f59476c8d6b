package resources

import (
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// referrer is a line of the command referrers, for programs.
type referrer struct {
	Holder    string `json:"holder"`
	Kind      string `json:"kind"`
	Path      string `json:"path"`
	Behaviour string `json:"behaviour"`
}

// NewReferrers returns the command referrers.
func NewReferrers() *cobra.Command {
	var limit int
	cmd := cli.NewDeploymentCommand("referrers NAME", "List the resources that refer to a resource, or that it owns, in all deployments",
		"  db-controller referrers //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if limit <= 0 {
				return cli.Usage("--limit %d: want at least 1", limit)
			}
			out, found := cli.PrinterOf(cmd), []referrer{}
			for r, err := range c.Referrers(cmd.Context(), args[0]) {
				if err != nil {
					return cli.Plain(err)
				}
				if len(found) == limit {
					cmd.PrintErrf("there are more: use --limit %d\n", 10*limit)
					break
				}
				line := referrer{Holder: r.GetHolder(), Kind: r.GetKind(), Path: r.GetPath(), Behaviour: "owned"}
				if b := schema.Behaviour(r.GetBehaviour()); b.Valid() {
					line.Behaviour = b.String()
				}
				out.Line("%-60s %-20s %-24s %s", line.Holder, line.Kind, line.Path, line.Behaviour)
				found = append(found, line)
			}
			if len(found) == 0 {
				out.Line("Nothing refers to %s, and it owns nothing.", args[0])
			}
			return out.Document(found)
		})
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum number of resources")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}
