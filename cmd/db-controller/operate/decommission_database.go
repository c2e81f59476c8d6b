package operate

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// acceptance returns the requests to the deployments and to the registry that another operator has signed.
func (o *twoOperators) acceptance(cmd *cobra.Command,
	current *adminv1.AcceptDatabaseRequest,
) (*adminv1.AcceptDatabaseRequest, *registryv1.AcceptDatabaseRequest, error) {
	orders, err := o.read(cmd)
	if err != nil {
		return nil, nil, err
	}
	deployments, err := approved[*adminv1.AcceptDatabaseRequest](o, orders)
	if err != nil {
		return nil, nil, err
	}
	registry, err := approved[*registryv1.AcceptDatabaseRequest](o, orders)
	switch signed := deployments[0]; {
	case err != nil:
		return nil, nil, err
	case signed.GetDeployment() != current.GetDeployment():
		return nil, nil, cli.Usage("--approve %s: it is about %s, not %s", o.approve, signed.GetDeployment(),
			current.GetDeployment())
	case signed.GetDatabase() != current.GetDatabase():
		return nil, nil,
			cli.WithCode(cli.Refused, fmt.Errorf("%s uses the database %s, and the database %s was signed: sign again",
				signed.GetDeployment(), current.GetDatabase(), signed.GetDatabase()))
	}
	return deployments[0], registry[0], nil
}

// decommissionDatabase declares to all other deployments and to the registry that the former database of a
// deployment will never come back.
func decommissionDatabase(cmd *cobra.Command, id schema.DeploymentID, reason string, two *twoOperators) error {
	c, err := cli.OpenClient(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	admin, err := c.Admin(cmd.Context(), id)
	if err != nil {
		return err
	}
	replaced, err := admin.Status(cmd.Context(), &adminv1.StatusRequest{})
	if err != nil {
		return cli.Plain(err)
	}
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	req := &adminv1.AcceptDatabaseRequest{
		Deployment: id.String(), Database: replaced.GetDatabase(),
		Epoch: replaced.GetEpoch().GetId(), Reason: reason,
	}
	toRegistry := &registryv1.AcceptDatabaseRequest{Service: id.Service, Region: id.Region, Database: req.GetDatabase()}
	switch {
	case two.propose != "":
		return two.write(cmd, order{approval.AllDeployments, req}, order{approval.Registry, toRegistry})
	case two.approve != "":
		if req, toRegistry, err = two.acceptance(cmd, req); err != nil {
			return err
		}
	}
	out := cli.PrinterOf(cmd)
	out.Line("%s uses the database %s", id, req.GetDatabase())
	var told decisions
	for _, d := range env.Deployments {
		if d.DeploymentID == id {
			continue
		}
		admin, err := c.Admin(cmd.Context(), d.DeploymentID)
		if err == nil {
			_, err = admin.AcceptDatabase(cmd.Context(), req)
		}
		if err != nil {
			told.failed(out, d.DeploymentID, err)
			continue
		}
		told.done(out, d.DeploymentID, "ok; db-controller status "+d.String()+" shows when both have compared")
	}
	_, unstored := c.Registry().AcceptDatabase(cmd.Context(), toRegistry)
	if err := told.result(out, id, "did not answer, and still ignores messages of "+id.String()); err != nil ||
		unstored == nil {
		return err
	}
	return cli.WithCode(cli.Unavailable,
		fmt.Errorf("the registry still names the former database of %s: run the same command again later (%w)", id,
			cli.Plain(unstored)))
}
