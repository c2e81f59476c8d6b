package resources

import (
	"context"
	"errors"
	"slices"
	"time"

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
	var timeout time.Duration
	cmd := cli.NewDeploymentCommand("referrers NAME",
		"List the resources that refer to a resource, or that it owns, in all deployments",
		"  db-controller referrers //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if limit <= 0 {
				return cli.Usage("--limit %d: want at least 1", limit)
			}
			if timeout <= 0 {
				return cli.Usage("--timeout %s: want more than 0s", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			out, found, rows := cli.PrinterOf(cmd), []referrer{}, [][]any{}
			var silent error
			for r, err := range c.Referrers(ctx, args[0]) {
				if err != nil { // the referrers found so far are true
					silent = cli.Plain(err)
					break
				}
				if len(found) == limit {
					cmd.PrintErrf("there are more: use --limit %d\n", 10*limit)
					break
				}
				line := referrer{Holder: r.GetHolder(), Kind: r.GetKind(), Path: r.GetPath(), Behaviour: "owned"}
				if b := schema.Behaviour(r.GetBehaviour()); b.Valid() {
					line.Behaviour = b.String()
				}
				found = append(found, line)
				rows = append(rows, []any{line.Holder, line.Kind, line.Path, line.Behaviour})
			}
			if silent != nil && len(found) == 0 {
				return silent
			}
			if silent == nil && len(found) < limit {
				name, _ := schema.ParseFullName(args[0]) // the arguments are checked
				kept, err := keepersBefore(ctx, c, name)
				if err != nil {
					silent = cli.Plain(err)
				}
				for _, k := range kept { // no record of them is kept at the target
					line := referrer{
						Holder: k.Holder, Kind: k.Kind, Path: k.Path,
						Behaviour: schema.AllowDangling.String(),
					}
					if !slices.Contains(found, line) {
						found, rows = append(found, line),
							append(rows, []any{line.Holder, line.Kind, line.Path, line.Behaviour})
					}
				}
			}
			if len(found) == 0 {
				out.Line("Nothing refers to %s, and it owns nothing.", args[0])
			} else {
				out.Table("NAME KIND FIELD BEHAVIOUR", rows)
			}
			names := make([]string, len(found))
			for i, r := range found {
				names[i] = r.Holder
			}
			return errors.Join(out.Names(names...), out.Document(found), silent)
		})
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second,
		"how long to wait for the deployments; the referrers of those that answered are printed")
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum number of resources")
	cli.NamesToo(cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}
