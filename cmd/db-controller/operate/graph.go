package operate

import (
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/kindgraph"
)

// NewGraph returns the command graph.
func NewGraph() *cobra.Command {
	cmd := cli.NewDeploymentCommand("graph [SERVICE|SERVICE@VERSION]...",
		"Draw the kinds and their references: -o dot for Graphviz, or -o svg for a browser",
		"  db-controller graph -o svg > kinds.svg\n  db-controller graph devices.example.com | dot -Tpng > kinds.png",
		cobra.ArbitraryArgs,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			services, err := selectServices(env, args)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				services = kindgraph.Running(env)
			}
			g := kindgraph.Of(services)
			if cli.PrinterOf(cmd).Format == "svg" {
				return g.SVG(cmd.OutOrStdout())
			}
			return g.Dot(cmd.OutOrStdout())
		})
	cmd.Long = `Draw the kinds and their references.

An arrow goes from the kind that refers to the kind that it refers to. By default the graph has the versions that run, and all versions of a service of which none runs.`
	cli.OutputIn(cmd, "dot", "svg")
	return cmd
}
