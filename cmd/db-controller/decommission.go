package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

func newDecommission() *cobra.Command {
	var reason, blocking string
	var yes, unlisted bool
	cmd := &cobra.Command{
		Use:   "decommission DEPLOYMENT --reason TEXT --yes",
		Short: "Remove a deployment for ever: the registry and every other deployment stop waiting for it",
		Long: `Declare to the registry and to every other deployment that a deployment will never come back.

Until then its resources count as existing, however long it does not answer. Afterwards, in all other deployments:
  - the targets of its references can be deleted: nothing waits for its blockades and acknowledgements
  - references to its resources are unset or cascade, as declared; blocking references act as --blocking says
  - its resources are removed from owner lists; a resource that loses its last owner is deleted
  - its calls are refused, and its name cannot be used again
This cannot be undone. The command lists the deployments that do not answer: run it again when they do.`,
		Example: `  db-controller decommission iam.example.com/us-west2 --reason "region closed, ticket 4711" --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if reason == "" {
				return errors.New("--reason is missing: the reason is stored with the decision")
			}
			if !yes {
				return fmt.Errorf("%s cannot come back afterwards: add --yes to continue (--help describes the effects)", id)
			}
			return decommission(cmd, id, strings.ToUpper(blocking), reason, unlisted)
		},
	}
	contextFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which every deployment stores")
	cmd.Flags().StringVar(&blocking, "blocking", schema.Unset.String(), "what references that block do when their target was in this deployment: UNSET or CASCADE_DELETE")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: this cannot be undone")
	cmd.Flags().BoolVar(&unlisted, "unlisted", false, "accept a deployment that the registry does not list; other deployments may still wait for it")
	return cmd
}

func decommission(cmd *cobra.Command, id schema.DeploymentID, blocking, reason string, unlisted bool) error {
	if blocking != schema.Unset.String() && blocking != schema.CascadeDelete.String() {
		return fmt.Errorf("--blocking %s: want UNSET or CASCADE_DELETE", blocking)
	}
	c, err := openClient(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	// The registry first: the name cannot be registered again, and no deployment follows it any more.
	_, err = c.Registry.DecommissionDeployment(cmd.Context(), &registryv1.DecommissionDeploymentRequest{Service: id.Service, Region: id.Region, Reason: reason, Unlisted: unlisted})
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("%w: add --unlisted if it exists, or has existed, all the same", plain(err))
	}
	if err != nil {
		return plain(err)
	}
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	cmd.Printf("%s is decommissioned in the registry\n", id)
	var failed []string
	for _, d := range env.Deployments {
		if d.NeverRan() {
			cmd.Printf("  %-40s has never run: it has nothing to remove\n", d.DeploymentID)
			continue
		}
		admin, err := c.Admin(cmd.Context(), d.DeploymentID)
		if err == nil {
			_, err = admin.Decommission(cmd.Context(), &adminv1.DecommissionRequest{Deployment: id.String(), Blocking: blocking, Reason: reason})
		}
		if err != nil {
			cmd.Printf("  %-40s FAILED: %v\n", d.DeploymentID, plain(err))
			failed = append(failed, d.String())
			continue
		}
		cmd.Printf("  %-40s ok; db-controller status %s shows when the work is done\n", d.DeploymentID, d.DeploymentID)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s did not answer, and still waits for %s: run the same command again later", strings.Join(failed, ", "), id)
	}
	return nil
}
