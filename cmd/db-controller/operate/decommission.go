package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// NewDecommission returns the command decommission.
func NewDecommission() *cobra.Command {
	var reason, blocking string
	var yes, unlisted, database bool
	var two twoOperators
	cmd := &cobra.Command{
		Use:   "decommission DEPLOYMENT [--former-database] --reason TEXT --yes",
		Short: "Declare that a deployment, or its former database, will never come back",
		Long: `Declare to the registry and to every other deployment that a deployment will never come back.

Until then its resources count as existing. Afterwards, in all other deployments:
  - the targets of its references can be deleted: nothing waits for its blockades and acknowledgements
  - references to its resources are unset or cascade, as declared; blocking references act as --blocking says
  - its resources are removed from owner lists; a resource that loses its last owner is deleted
  - its calls are refused, and its name cannot be used again
Without --yes the command counts what it would do in each deployment. It lists the deployments that do not answer: run it again when they do.

With --former-database only the former database of the deployment will never come back, and its present one has replaced it. Until then the
others ignore messages of a new database; a restored backup and a failover need no declaration. Afterwards, once both sides have compared their
records, in all other deployments:
  - resources that were blocked by resources of the lost database can be deleted
  - references to resources of the lost database are marked as dangling: a person decides
  - resources whose only owners were in the lost database are deleted`,
		Example: `  db-controller decommission iam.example.com/us-west2 --reason "region closed, ticket 4711" --yes
  db-controller decommission iam.example.com/us-west2 --former-database --reason "disk lost, no backup, ticket 4711" --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return cli.Usage("%w", err)
			}
			if err := two.check(cmd, "reason", "blocking", "unlisted"); err != nil {
				return err
			}
			if reason == "" && two.approve == "" {
				return cli.Usage("--reason is missing: the reason is stored with the decision")
			}
			if database {
				if cmd.Flags().Changed("blocking") || unlisted {
					return cli.Usage("--former-database takes no --blocking and no --unlisted")
				}
				if !yes && two.propose == "" {
					return cli.Usage(
						"the former database of %s cannot be used again afterwards: add --yes to continue (--help describes the effects)", id)
				}
				return decommissionDatabase(cmd, id, reason, &two)
			}
			decided := decommissioning{
				id: id,
				deployments: &adminv1.DecommissionRequest{
					Deployment: id.String(), Blocking: strings.ToUpper(blocking),
					Reason: reason,
				},
				registry: &registryv1.DecommissionDeploymentRequest{
					Service: id.Service, Region: id.Region,
					Reason: reason, Unlisted: unlisted,
				},
			}
			if b := decided.deployments.GetBlocking(); b != schema.Unset.String() &&
				b != schema.CascadeDelete.String() {
				return cli.Usage("--blocking %s: want UNSET or CASCADE_DELETE", b)
			}
			switch {
			case two.propose != "":
				return two.write(cmd, order{approval.Registry, decided.registry},
					order{approval.AllDeployments, decided.deployments})
			case two.approve != "":
				if err := decided.approved(cmd, &two); err != nil {
					return err
				}
			}
			if !yes {
				return decided.plan(cmd)
			}
			return decided.run(cmd)
		},
	}
	cli.ContextFlag(cmd)
	cli.OutputFlag(cmd)
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which every deployment stores")
	cmd.Flags().StringVar(&blocking, "blocking", schema.Unset.String(),
		"effect of blocking references to resources of this deployment: UNSET or CASCADE_DELETE")
	cmd.Flags().BoolVar(&database, "former-database", false,
		"only the former database will never come back: the present one has replaced it")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: this cannot be undone")
	cmd.Flags().BoolVar(&unlisted, "unlisted", false,
		"accept a deployment that the registry does not list; other deployments may still wait for it")
	two.flags(cmd)
	return cmd
}

// decommissioning is the decision to decommission a deployment.
type decommissioning struct {
	id          schema.DeploymentID
	deployments *adminv1.DecommissionRequest // for each other deployment
	registry    *registryv1.DecommissionDeploymentRequest
}

// approved replaces the requests by those that another operator has signed.
func (d *decommissioning) approved(cmd *cobra.Command, two *twoOperators) error {
	orders, err := two.read(cmd)
	if err != nil {
		return err
	}
	deployments, err := approved[*adminv1.DecommissionRequest](two, orders)
	if err != nil {
		return err
	}
	registry, err := approved[*registryv1.DecommissionDeploymentRequest](two, orders)
	if err != nil {
		return err
	}
	d.deployments, d.registry = deployments[0], registry[0]
	if signed := d.registry.GetService() + "/" +
		d.registry.GetRegion(); d.deployments.GetDeployment() != d.id.String() || signed != d.id.String() {
		return cli.Usage("--approve %s: it is about %s, not %s", two.approve, d.deployments.GetDeployment(), d.id)
	}
	cli.PrinterOf(cmd).Line("blocking references: %s; reason: %s", d.deployments.GetBlocking(),
		d.deployments.GetReason())
	return nil
}

// plan shows the effects of decommissioning in each deployment, and fails: the command needs
// --yes, since it cannot be undone.
func (d *decommissioning) plan(cmd *cobra.Command) error {
	id, order := d.id, bare(d.deployments)
	order.ValidateOnly = true
	confirm := cli.Usage("%s cannot come back afterwards: add --yes to continue (--help describes the effects)", id)
	c, err := cli.OpenClient(cmd)
	if err != nil {
		return errors.Join(confirm, fmt.Errorf("what it would do is not known: %w", err))
	}
	defer c.Close()
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return errors.Join(confirm, fmt.Errorf("what it would do is not known: %w", cli.Plain(err)))
	}
	if _, listed := env.Deployment(id); !listed && !d.registry.GetUnlisted() {
		return notListed(cmd.Context(), c, id)
	}
	out := cli.PrinterOf(cmd)
	rows, plans := [][]any{}, []plannedPart{}
	for _, other := range env.Deployments {
		if other.DeploymentID == id || other.NeverRan() {
			continue
		}
		part := plannedPart{Deployment: other.String()}
		admin, err := c.Admin(cmd.Context(), other.DeploymentID)
		var answer *adminv1.DecommissionResponse
		if err == nil {
			answer, err = admin.Decommission(cmd.Context(), order)
		}
		if err != nil {
			part.Error = cli.Plain(err).Error()
			rows = append(rows, []any{other, "", "", "", "", "", "not known: " + part.Error})
		} else {
			p := answer.GetPlan()
			part.Plan = cli.Message(p)
			rows = append(rows, []any{
				other, counted(p.GetDeleted()), counted(p.GetUnset()), counted(p.GetDangling()),
				counted(p.GetOwned()), counted(p.GetReleased()), "",
			})
		}
		plans = append(plans, part)
	}
	out.Line("Decommissioning %s would do, as far as is stored now:", id)
	out.Table("IN DELETED UNSET DANGLING OWNED RELEASED NOTES", rows)
	out.Line(
		"DELETED: resources that refer to resources there; UNSET, DANGLING: references to there; OWNED: resources with an owner there, which are deleted\nif they have no other; RELEASED: references from there that no longer keep anything.")
	if err := out.Document(map[string]any{"deployment": id.String(), "plan": plans}); err != nil {
		return err
	}
	return confirm
}

// plannedPart has the effects of decommissioning in one deployment, or the reason why they are not known.
type plannedPart struct {
	Deployment string          `json:"deployment"`
	Plan       json.RawMessage `json:"plan,omitempty" message:"dbcontroller.admin.v1.DecommissionResponse.Plan"`
	Error      string          `json:"error,omitempty"`
}

// mostCounted is the greatest count of a plan.
const mostCounted = 100_000

func counted(n int64) string {
	if n >= mostCounted {
		return fmt.Sprintf("≥ %d", mostCounted)
	}
	return strconv.FormatInt(n, 10)
}

func (d *decommissioning) run(cmd *cobra.Command) error {
	c, err := cli.OpenClient(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	// The registry first: the name cannot be registered again, and no deployment follows it any more.
	_, err = c.Registry().DecommissionDeployment(cmd.Context(), d.registry)
	if status.Code(err) == codes.NotFound {
		return notListed(cmd.Context(), c, d.id)
	}
	if err != nil {
		return cli.Plain(err)
	}
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	out := cli.PrinterOf(cmd)
	out.Line("%s is decommissioned in the registry", d.id)
	var told decisions
	for _, other := range env.Deployments {
		if other.NeverRan() {
			told.done(out, other.DeploymentID, "has never run: it has nothing to remove")
			continue
		}
		admin, err := c.Admin(cmd.Context(), other.DeploymentID)
		if err == nil {
			_, err = admin.Decommission(cmd.Context(), d.deployments)
		}
		if err != nil {
			told.failed(out, other.DeploymentID, err)
			continue
		}
		told.done(out, other.DeploymentID, "ok; db-controller status "+other.String()+" shows when the work is done")
	}
	return told.result(out, d.id, "did not answer, and still waits for "+d.id.String())
}

// notListed names the deployments that are listed: a name may be misspelt.
func notListed(ctx context.Context, c *client.Client, id schema.DeploymentID) error {
	env, err := c.Environment(ctx)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w; add --unlisted if it exists, or has existed, all the same",
		&client.UnregisteredError{Deployment: id, Known: deploymentNames(env)})
}

// decisions are the answers of deployments to an operator's decision about one deployment.
type decisions []decided

type decided struct {
	Deployment string `json:"deployment"`
	Told       bool   `json:"told"`
	Message    string `json:"message"`
}

func (d *decisions) done(out cli.Printer, id schema.DeploymentID, text string) {
	*d = append(*d, decided{id.String(), true, text})
	out.Line("  %-40s %s", id, text)
}

func (d *decisions) failed(out cli.Printer, id schema.DeploymentID, err error) {
	*d = append(*d, decided{id.String(), false, cli.Plain(err).Error()})
	out.Line("  %-40s FAILED: %v", id, cli.Plain(err))
}

// result prints the answers for programs. It returns an error when a deployment did not receive the decision.
func (d decisions) result(out cli.Printer, about schema.DeploymentID, effect string) error {
	var silent []string
	for _, one := range d {
		if !one.Told {
			silent = append(silent, one.Deployment)
		}
	}
	err := out.Document(map[string]any{"deployment": about.String(), "answers": append(decisions{}, d...)})
	if err == nil && len(silent) > 0 {
		err = cli.WithCode(cli.Unavailable, fmt.Errorf("%s %s: run the same command again later",
			strings.Join(silent, ", "), effect))
	}
	return err
}
