package operate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// NewWaive returns the command waive.
func NewWaive() *cobra.Command {
	var of, reason string
	var yes bool
	var two twoOperators
	cmd := cli.NewDeploymentCommand("waive DEPLOYMENT --of OTHER --reason TEXT --yes", "Let a deployment delete again without waiting for the comparison of another one",
		`  db-controller waive iam.example.com/us-west2 --of devices.example.com/eastus2 --reason "it is down for days, ticket 4711" --yes`, cli.OfDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			at, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if err := two.check(cmd, "reason"); err != nil {
				return err
			}
			other, err := schema.ParseDeploymentID(of)
			request := &adminv1.WaiveComparisonRequest{Deployment: of, Reason: reason}
			if err == nil && two.approve != "" {
				if request, err = two.waiver(cmd, other); err != nil {
					return err
				}
			}
			switch {
			case err != nil:
				return cli.Usage("--of: %w", err)
			case request.GetReason() == "":
				return cli.Usage("--reason is missing: the reason is stored with the decision")
			case two.propose != "":
				return two.write(cmd, order{at.String(), request})
			case !yes:
				return cli.Usage("resources to which %s refers, in references that %s has lost, can then be deleted: add --yes to continue (--help describes the effects)", other, at)
			}
			admin, err := c.Admin(cmd.Context(), at)
			if err != nil {
				return cli.Plain(err)
			}
			before, err := admin.Status(cmd.Context(), &adminv1.StatusRequest{})
			if err != nil {
				return cli.Plain(err)
			}
			waited := before.GetEpoch().GetUnconfirmed()
			waits := slices.Contains(waited, other.String())
			env, err := c.Environment(cmd.Context())
			if err != nil {
				return cli.Plain(err)
			}
			if _, listed := env.Deployment(other); !waits && !listed {
				return cli.WithCode(cli.Refused, fmt.Errorf("%s is not registered, and %s does not wait for it; it waits for: %s", other, at, cmp.Or(strings.Join(waited, ", "), "none")))
			}
			if _, err = admin.WaiveComparison(cmd.Context(), request); err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			if waits {
				out.Line("%s no longer waits for %s", at, other)
			} else {
				out.Line("nothing has changed: %s did not wait for %s; it waits for: %s", at, other, cmp.Or(strings.Join(waited, ", "), "none"))
			}
			return out.Document(map[string]string{"deployment": at.String(), "of": other.String()})
		})
	cmd.Long = `Let a deployment delete again without waiting for the comparison of another one.

After a failover or a restore of either database, a deployment deletes nothing until the other one has compared its references, without a
limit of time. This command ends the wait once: targets of references that the deployment has lost can be deleted, and the references are marked
as dangling when the other deployment compares later. Decommission a deployment that never comes back instead.`
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	cmd.Flags().StringVar(&of, "of", "", "service/region of the deployment that has not compared")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which the deployment stores")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: this cannot be undone")
	two.flags(cmd)
	return cmd
}

// waiver returns the request that another operator has signed.
func (o *twoOperators) waiver(cmd *cobra.Command, of schema.DeploymentID) (*adminv1.WaiveComparisonRequest, error) {
	orders, err := o.read(cmd)
	if err != nil {
		return nil, err
	}
	signed, err := approved[*adminv1.WaiveComparisonRequest](o, orders)
	if err == nil && signed[0].GetDeployment() != of.String() {
		err = cli.Usage("--approve %s: it is about %s, not %s", o.approve, signed[0].GetDeployment(), of)
	}
	if err != nil {
		return nil, err
	}
	return signed[0], nil
}
