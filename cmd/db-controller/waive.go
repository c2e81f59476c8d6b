package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func newWaive() *cobra.Command {
	var of, reason string
	var yes bool
	cmd := resourceCommand("waive DEPLOYMENT --of OTHER --reason TEXT --yes", "Let a deployment delete again without waiting for another one's comparison",
		`  db-controller waive iam.example.com/us-west2 --of devices.example.com/eastus2 --reason "it stays away for days, ticket 4711" --yes`, cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			at, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			other, err := schema.ParseDeploymentID(of)
			switch {
			case err != nil:
				return fmt.Errorf("--of: %w", err)
			case reason == "":
				return errors.New("--reason is missing: who asks later will want to know")
			case !yes:
				return fmt.Errorf("what %s refers to at %s, and is not known there, can be deleted then: say --yes to go on (--help tells what happens)", other, at)
			}
			admin, err := c.Admin(cmd.Context(), at)
			if err == nil {
				_, err = admin.WaiveComparison(cmd.Context(), &adminv1.WaiveComparisonRequest{Deployment: other.String(), Reason: reason})
			}
			if err != nil {
				return plain(err)
			}
			cmd.Printf("%s waits for %s no more\n", at, other)
			return nil
		})
	cmd.Long = `Let a deployment delete again without waiting for another one's comparison.

After a failover or a restore, of either of the two, a deployment deletes nothing until the other one has compared what it
refers to there. That is waited for however long the other one is away; status shows it. With this word it is not waited for
any more, once: what the other one refers to, and is not known here, can be deleted, and is marked as dangling when it
compares after all. One that never comes back is decommissioned instead.`
	cmd.Flags().StringVar(&of, "of", "", "service/region of the deployment that is waited for")
	cmd.Flags().StringVar(&reason, "reason", "", "why, kept by the deployment")
	cmd.Flags().BoolVar(&yes, "yes", false, "there is no way back")
	return cmd
}
