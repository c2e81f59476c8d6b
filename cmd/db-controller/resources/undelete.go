package resources

import (
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// NewUndelete returns the command undelete.
func NewUndelete() *cobra.Command {
	cmd := cli.NewDeploymentCommand("undelete NAME...", "Bring back what a delete with a retention has hidden",
		"  db-controller undelete //iam.example.com/us-west2/projects/acme", ofResources(cobra.MinimumNArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			var found []*resourcev1.Resource
			var failed error
			for _, arg := range args {
				name, resources, err := direct.Named(cmd.Context(), c, arg)
				if err != nil {
					return err
				}
				r, err := resources.UndeleteResource(cmd.Context(),
					&resourcev1.UndeleteResourceRequest{Name: name.Name})
				if status.Code(err) == codes.AlreadyExists && len(found) > 0 { // it is back with one before it
					r, err = resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{
						Name:   name.Name,
						Latest: true,
					})
				}
				if err != nil {
					failed = errors.Join(failed, cli.PlainOf(name, err))
					continue
				}
				found = append(found, r)
				if r.GetPurgeTime() != nil {
					cli.PrinterOf(cmd).
						Line("%s is still hidden, by another deletion that takes it along: explain %s names it",
							name, name)
					continue
				}
				cli.PrinterOf(cmd).Line("%s is back, with all that its deletion had hidden", name)
			}
			out := cli.PrinterOf(cmd)
			if out.People() {
				return failed
			}
			return errors.Join(show(cmd, found, len(args) > 1), failed)
		})
	cmd.Long = `Bring back what a delete with a retention has hidden, in all deployments, until its purge time. NAME is a resource that the delete has named: the resources that went along
come back with it. list --show-deleted shows hidden resources, and explain NAME the delete that has hidden one.`
	cli.NamesToo(cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(cli.Many)
	return cmd
}
