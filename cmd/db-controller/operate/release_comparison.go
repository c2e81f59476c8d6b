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

// runComparison lets a deployment delete again without the comparison of another one.
func (f *forceRelease) runComparison(cmd *cobra.Command, c *client.Client, deployment string) error {
	if len(f.keys) > 0 || f.unanswered || f.unconfirmedOf != "" {
		return cli.Usage("--comparison-of stands alone: it takes no --key, no --unanswered and no --unconfirmed-of")
	}
	at, err := schema.ParseDeploymentID(deployment)
	if err != nil {
		return cli.Usage("%w", err)
	}
	other, err := schema.ParseDeploymentID(f.comparisonOf)
	if err != nil {
		return cli.Usage("--comparison-of: %w", err)
	}
	request := &adminv1.WaiveComparisonRequest{Deployment: other.String(), Reason: f.reason}
	if f.two.approve != "" {
		if request, err = f.two.waiver(cmd, other); err != nil {
			return err
		}
	}
	switch {
	case request.GetReason() == "":
		return cli.Usage("--reason is missing: the reason is stored with the decision")
	case f.two.propose != "":
		return f.two.write(cmd, order{at.String(), request})
	case !f.yes:
		return cli.Usage(
			"resources to which %s refers, in references that %s has lost, can then be deleted: add --yes to continue (--help describes the effects)", other, at)
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
		return cli.WithCode(cli.Refused,
			fmt.Errorf("%s is not registered, and %s does not wait for it; it waits for: %s", other, at,
				cmp.Or(strings.Join(waited, ", "), "none")))
	}
	if _, err = admin.WaiveComparison(cmd.Context(), request); err != nil {
		return cli.Plain(err)
	}
	out := cli.PrinterOf(cmd)
	if waits {
		out.Line("%s no longer waits for %s", at, other)
	} else {
		out.Line("nothing has changed: %s did not wait for %s; it waits for: %s", at, other,
			cmp.Or(strings.Join(waited, ", "), "none"))
	}
	return out.Document(map[string]string{"deployment": at.String(), "comparisonOf": other.String()})
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
