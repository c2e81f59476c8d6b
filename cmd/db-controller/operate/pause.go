package operate

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// NewPause returns the command pause.
func NewPause() *cobra.Command {
	cmd := newPauseCommand("pause", "Stop deletions in a deployment until resume, for operators", "%s deletes nothing until resume", "%s does nothing for deletions of %s until resume",
		func(ctx context.Context, admin adminv1.AdminServiceClient, of, reason string) error {
			_, err := admin.Pause(ctx, &adminv1.PauseRequest{Of: of, Reason: reason})
			return err
		})
	cmd.Long = `Stop deletions in a deployment until resume.

Nothing is marked or removed in the deployment: deletes are answered UNAVAILABLE, and deletions of other deployments that reach it
wait. With --of, only the deletions of one other deployment wait. References are written, confirmed and released all the same, and
nothing is lost: everything goes on with resume. A transaction that has begun may still end. The reason is stored, and status
shows each pause and the operator who began it.`
	return cmd
}

// NewResume returns the command resume.
func NewResume() *cobra.Command {
	return newPauseCommand("resume", "End a pause, for operators", "%s deletes again", "%s acts upon deletions of %s again",
		func(ctx context.Context, admin adminv1.AdminServiceClient, of, reason string) error {
			_, err := admin.Resume(ctx, &adminv1.ResumeRequest{Of: of, Reason: reason})
			return err
		})
}

func newPauseCommand(name, short, all, some string, call func(ctx context.Context, admin adminv1.AdminServiceClient, of, reason string) error) *cobra.Command {
	var of, reason string
	cmd := cli.NewDeploymentCommand(name+" DEPLOYMENT [--of OTHER] --reason TEXT", short, `  db-controller `+name+` iam.example.com/us-west2 --reason "ticket 4711"
  db-controller `+name+` iam.example.com/us-west2 --of devices.example.com/eastus2 --reason "ticket 4711"`, cli.OfDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			at, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if reason == "" {
				return cli.Usage("--reason is missing: the reason is stored with the decision")
			}
			if of != "" {
				if _, err := schema.ParseDeploymentID(of); err != nil {
					return cli.Usage("--of: %w", err)
				}
			}
			admin, err := c.Admin(cmd.Context(), at)
			if err == nil {
				err = call(cmd.Context(), admin, of, reason)
			}
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			if of == "" {
				out.Line(all, at)
			} else {
				out.Line(some, at, of)
			}
			return out.Document(map[string]string{"deployment": at.String(), "of": cmp.Or(of, at.String())})
		})
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	cmd.Flags().StringVar(&of, "of", "", "service/region of another deployment whose deletions are meant (default: all deletions)")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which the deployment stores")
	return cmd
}
