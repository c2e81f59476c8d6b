package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

func newDecommission() *cobra.Command {
	var reason, blocking string
	var yes bool
	cmd := &cobra.Command{
		Use:   "decommission DEPLOYMENT --reason TEXT --yes",
		Short: "Declare a deployment gone for ever, to the registry and to every other deployment",
		Long: `Declare a deployment gone for ever, to the registry and to every other deployment.

Without this word nothing of a deployment that is away is ever taken as gone. With it, everywhere else:
  - what its resources refer to can be deleted: their blockades and acknowledgements are waited for no more
  - references to its resources are unset or cascade, as they say; those that block, as --blocking says
  - owner references to its resources are dropped; a resource without owners goes, if it had one
  - the deployment is refused whatever it asks for, and its name cannot be used again
There is no way back. A deployment that cannot be told now is named: run the command again when it can.`,
		Example: `  db-controller decommission iam.example.com/us-west2 --reason "region closed, ticket 4711" --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if reason == "" {
				return errors.New("--reason is missing: who asks later will want to know")
			}
			if !yes {
				return fmt.Errorf("there is no way back for %s: say --yes to go on (--help tells what happens)", id)
			}
			return decommission(cmd, id, strings.ToUpper(blocking), reason)
		},
	}
	contextFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, kept by every deployment")
	cmd.Flags().StringVar(&blocking, "blocking", schema.Unset.String(), "what becomes of references that blocked its resources: UNSET or CASCADE_DELETE")
	cmd.Flags().BoolVar(&yes, "yes", false, "there is no way back")
	return cmd
}

func decommission(cmd *cobra.Command, id schema.DeploymentID, blocking, reason string) error {
	if blocking != schema.Unset.String() && blocking != schema.CascadeDelete.String() {
		return fmt.Errorf("--blocking %s: want UNSET or CASCADE_DELETE", blocking)
	}
	c, err := openClient(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	// First the registry, so that the name is not registered again, and nobody follows it any more.
	_, err = c.Registry.DecommissionDeployment(cmd.Context(), &registryv1.DecommissionDeploymentRequest{Service: id.Service, Region: id.Region, Reason: reason})
	if err != nil {
		return plain(err)
	}
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	cmd.Printf("%s is decommissioned in the registry\n", id)
	var untold []string
	for _, d := range env.Deployments {
		admin, err := c.Admin(cmd.Context(), d.DeploymentID)
		if err == nil {
			_, err = admin.Decommission(cmd.Context(), &adminv1.DecommissionRequest{Deployment: id.String(), Blocking: blocking, Reason: reason})
		}
		if err != nil {
			cmd.Printf("  %-40s NOT TOLD: %v\n", d.DeploymentID, plain(err))
			untold = append(untold, d.String())
			continue
		}
		cmd.Printf("  %-40s told; db-controller status %s shows when all of it is worked off\n", d.DeploymentID, d.DeploymentID)
	}
	if len(untold) > 0 {
		return fmt.Errorf("%s could not be told, and waits for %s as before: run the same command again when it answers", strings.Join(untold, ", "), id)
	}
	return nil
}
