package operate

import (
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
)

// NewSetVersion returns the command set-version.
func NewSetVersion() *cobra.Command {
	cmd := cli.NewDeploymentCommand("set-version DEPLOYMENT VERSION",
		"Switch a deployment to another described version of its service",
		"  db-controller set-version devices.example.com/eastus2 v2",
		cobra.MatchAll(cobra.ExactArgs(2), func(cmd *cobra.Command, args []string) error {
			return cli.OfDeployment(cmd, args[:1])
		}),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			before, err := c.Environment(cmd.Context())
			if err != nil {
				return cli.Plain(err)
			}
			if _, listed := before.Deployment(id); !listed {
				return &client.UnregisteredError{Deployment: id, Known: deploymentNames(before)}
			}
			d, err := direct.SetVersion(cmd.Context(), c, id, args[1])
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			if listed, _ := before.Deployment(id); listed.Version == d.GetVersion() {
				out.Line("nothing has changed: %s was switched to %s before", id, d.GetVersion())
			} else {
				out.Line("%s switches to %s; see its progress with: db-controller status %s", id, d.GetVersion(), id)
			}
			return out.Document(map[string]string{"deployment": id.String(), "version": d.GetVersion()})
		})
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	return cmd
}
