package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func newAcceptDatabase() *cobra.Command {
	var reason string
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-database DEPLOYMENT --reason TEXT --yes",
		Short: "Declare that the database a deployment runs over now has replaced the one before for good",
		Long: `Declare that the database a deployment runs over now has replaced the one before for good, to every other deployment.

Without this word what the deployment says from another database than before counts for nothing: it may have been started
over an empty or a wrong one by mistake, and what it does not know there is not gone. A restored backup and a failover need
no word. With it, everywhere else, after both sides have compared:
  - what the lost database's resources blocked can be deleted
  - references to resources that it had are marked as dangling: a person decides
  - resources that were owned by resources that it had, and by nothing else, are deleted
There is no way back. A deployment that cannot be told now is named: run the command again when it can.`,
		Example: `  db-controller accept-database iam.example.com/us-west2 --reason "disk lost, no backup, ticket 4711" --yes`,
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
				return fmt.Errorf("there is no way back to the database that %s had: say --yes to go on (--help tells what happens)", id)
			}
			return acceptDatabase(cmd, id, reason)
		},
	}
	contextFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, kept by every deployment")
	cmd.Flags().BoolVar(&yes, "yes", false, "there is no way back")
	return cmd
}

func acceptDatabase(cmd *cobra.Command, id schema.DeploymentID, reason string) error {
	c, err := openClient(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	admin, err := c.Admin(cmd.Context(), id)
	if err != nil {
		return err
	}
	now, err := admin.Status(cmd.Context(), &adminv1.StatusRequest{})
	if err != nil {
		return plain(err)
	}
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	word := &adminv1.AcceptDatabaseRequest{Deployment: id.String(), Database: now.GetDatabase(), Epoch: now.GetEpoch().GetId(), Reason: reason}
	cmd.Printf("%s runs over the database %s\n", id, word.GetDatabase())
	var untold []string
	for _, d := range env.Deployments {
		if d.DeploymentID == id {
			continue
		}
		admin, err := c.Admin(cmd.Context(), d.DeploymentID)
		if err == nil {
			_, err = admin.AcceptDatabase(cmd.Context(), word)
		}
		if err != nil {
			cmd.Printf("  %-40s NOT TOLD: %v\n", d.DeploymentID, plain(err))
			untold = append(untold, d.String())
			continue
		}
		cmd.Printf("  %-40s told; db-controller status %s shows when both have compared\n", d.DeploymentID, d.DeploymentID)
	}
	if len(untold) > 0 {
		return fmt.Errorf("%s could not be told, and takes nothing from %s as before: run the same command again when it answers", strings.Join(untold, ", "), id)
	}
	return nil
}
