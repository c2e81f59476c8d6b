package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// verification has the arguments of verify.
type verification struct {
	repair, yes      bool
	dangling, reason string
}

// NewVerify returns the command verify.
func NewVerify() *cobra.Command {
	var how verification
	cmd := &cobra.Command{
		Use:   "verify [DEPLOYMENT...]",
		Short: "Compare references, blockades and owners between deployments; list differences, and make the certain repairs",
		Long: `Compare the references, blockades and owners of deployments, of all by default, with the records of the other deployments, and the references in
bodies with the stored references.

Only a database that loses commits (a failover to a standby that lagged behind, a restored backup) causes differences.

--repair repairs the differences whose repair is certain: a reference that the deployment of its target has lost is
established again, blockades without a reference are removed, owners are checked again, references are derived from bodies
again. When the target of a reference does not exist any more, a person decides about its holder.

With --repair --dangling=act, an operator decides about all of these at once: values are unset, and holders deleted with everything that cascades
from them, as their descriptors say; references that block are left. Without --yes it prints the numbers. If it is interrupted, run it again.

The command fails when differences remain, or when a deployment did not answer.`,
		Example: `  db-controller verify
  db-controller verify iam.example.com/us-west2 --repair
  db-controller verify --repair --dangling=act --reason "standby lagged, ticket 4711" --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := how.check(); err != nil {
				return err
			}
			c, err := cli.OpenClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return verify(cmd, c, args, how)
		},
	}
	cli.ContextFlag(cmd)
	cli.OutputFlag(cmd)
	cmd.ValidArgsFunction = cli.CompleteDeployments(cli.Many)
	cmd.Flags().BoolVar(&how.repair, "repair", false, "repair the differences whose repair is certain")
	cmd.Flags().StringVar(&how.dangling, "dangling", "report",
		"references whose targets are gone: report, or act as at deletions of their targets")
	cmd.Flags().StringVar(&how.reason, "reason", "", "the reason for --dangling=act, which every deployment stores")
	cmd.Flags().BoolVar(&how.yes, "yes", false, "confirm --dangling=act: this cannot be undone")
	return cmd
}

func (how verification) check() error {
	switch {
	case how.dangling == "act" && !how.repair:
		return cli.Usage("--dangling=act is a repair: add --repair")
	case how.dangling == "act" && how.reason == "":
		return cli.Usage("--reason is missing: the reason is stored with the decision")
	case how.dangling == "act" || how.dangling == "report":
		return nil
	}
	return cli.Usage("--dangling %s: want report or act", how.dangling)
}

func (how verification) request() *adminv1.VerifyRequest {
	req := &adminv1.VerifyRequest{Repair: how.repair}
	if how.dangling == "act" {
		req.Dangling, req.Reason = adminv1.VerifyRequest_DANGLING_ACT, how.reason
	}
	return req
}

// verified sums up the results of all deployments.
type verified struct {
	out cli.Printer

	Deployments []verifiedDeployment `json:"deployments"`
	Differences []json.RawMessage    `json:"differences" message:"dbcontroller.admin.v1.VerifyResponse.Difference"`

	found, repaired int64
	dangling        int64 // of found, not repaired: the target is gone
	unasked         []string
}

// verifiedDeployment has the totals of a deployment, or the reason why there are none.
type verifiedDeployment struct {
	Deployment string          `json:"deployment"`
	Totals     json.RawMessage `json:"totals,omitempty" message:"dbcontroller.admin.v1.VerifyResponse.Progress"`
	Error      string          `json:"error,omitempty"`
}

func verify(cmd *cobra.Command, c *client.Client, names []string, how verification) error {
	all := verified{out: cli.PrinterOf(cmd), Deployments: []verifiedDeployment{}, Differences: []json.RawMessage{}}
	of, err := all.which(cmd.Context(), c, names)
	if err != nil {
		return err
	}
	if how.dangling == "act" {
		if err := all.confirmActing(cmd, c, of, how.yes); err != nil {
			return err
		}
	}
	for _, id := range of {
		if err := all.one(cmd, c, id, how); refusesCaller(err) {
			return cli.Plain(err)
		} else if err != nil {
			all.out.Line("%s: NOT VERIFIED: %v", id, cli.Plain(err))
			all.Deployments = append(all.Deployments, verifiedDeployment{
				Deployment: id.String(),
				Error:      cli.Plain(err).Error(),
			})
			all.unasked = append(all.unasked, id.String())
		}
	}
	return errors.Join(all.out.Document(all), all.verdict(how.repair))
}

// which returns the deployments to verify: the named ones, or all that have run.
func (v *verified) which(ctx context.Context, c *client.Client, names []string) (of []schema.DeploymentID, err error) {
	if len(names) > 0 {
		return named(ctx, c, names)
	}
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, cli.Plain(err)
	}
	for _, d := range env.Deployments {
		if d.NeverRan() {
			v.out.Line("%s: has never run", d.DeploymentID)
			continue
		}
		of = append(of, d.DeploymentID)
	}
	return of, nil
}

// named parses names of deployments. It refuses names that the environment does not list before any
// deployment is compared.
func named(ctx context.Context, c *client.Client, names []string) (of []schema.DeploymentID, err error) {
	for _, name := range names {
		id, err := schema.ParseDeploymentID(name)
		if err != nil {
			return nil, cli.Usage("%w", err)
		}
		if err := checkListed(ctx, c, "with", name); err != nil {
			return nil, err
		}
		of = append(of, id)
	}
	return of, nil
}

// verdict returns an error when differences are left, or deployments were not compared.
func (v *verified) verdict(repair bool) error {
	var wrong []string
	code := cli.Failed
	if left := v.found - v.repaired; left > 0 {
		text := cli.Plural(left, "difference") + " left"
		if left > v.dangling && !repair {
			text += ": verify --repair makes the certain repairs"
		}
		wrong = append(wrong, text)
		if v.dangling > 0 {
			wrong = append(wrong, cli.Plural(v.dangling, "reference")+
				" without a target: a person decides about each, or about all (verify --repair --dangling=act)")
		}
	}
	if len(v.unasked) > 0 {
		if len(wrong) == 0 {
			code = cli.Unavailable
		}
		wrong = append(wrong, "the comparison is incomplete, these deployments did not answer: "+
			strings.Join(slices.Compact(slices.Sorted(slices.Values(v.unasked))), ", "))
	}
	if len(wrong) > 0 {
		return cli.WithCode(code, errors.New(strings.Join(wrong, "; ")))
	}
	if v.repaired > 0 {
		v.out.Line(
			"%s repaired. References that were established again are confirmed in the background; run verify again to see the result.", cli.Plural(v.repaired, "difference"))
		return nil
	}
	v.out.Line("No differences.")
	return nil
}

// confirmActing prints the numbers of dangling references by behaviour. Without yes it fails when there are
// any that act.
func (v *verified) confirmActing(cmd *cobra.Command, c *client.Client, of []schema.DeploymentID, yes bool) error {
	act := int64(0)
	for _, id := range of {
		counts := map[string]int64{}
		count := func(d *adminv1.VerifyResponse_Difference) {
			if d.GetDangling() {
				counts[d.GetBehaviour()]++
			}
		}
		if err := eachEvent(cmd.Context(), c, id, &adminv1.VerifyRequest{}, count,
			func(*adminv1.VerifyResponse_Progress) {}); err != nil {
			return fmt.Errorf("count the dangling references of %s: %w", id, cli.Plain(err))
		}
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			effect := "left for a person to decide"
			switch b, err := schema.ParseBehaviour(name); {
			case err == nil && b.Cascades():
				effect, act = "holders are deleted", act+counts[name]
			case err == nil && b.Unsets():
				effect, act = "values are unset", act+counts[name]
			}
			v.out.Line("%s: %s with %s: %s", id, cli.Plural(counts[name], "dangling reference"), name, effect)
		}
	}
	if act > 0 && !yes {
		return cli.Usage("%s would act, which cannot be undone: add --yes to continue (--help describes the effects)",
			cli.Plural(act, "dangling reference"))
	}
	return nil
}

func (v *verified) one(cmd *cobra.Command, c *client.Client, id schema.DeploymentID, how verification) error {
	return eachEvent(cmd.Context(), c, id, how.request(), func(d *adminv1.VerifyResponse_Difference) {
		v.Differences = append(v.Differences, cli.Message(d))
		if d.GetActedUpon() {
			v.out.Line("%s  %s (%s, %s) and %s: %s", d.GetKind(), d.GetHolder(), d.GetPath(), d.GetBehaviour(),
				d.GetTarget(), d.GetRemedy())
			return
		}
		if d.GetDangling() && !d.GetRepaired() {
			v.dangling++
		}
		v.out.Line("%s  %s (%s) and %s\n    cause:  %s\n    remedy: %s", d.GetKind(), d.GetHolder(), d.GetPath(),
			d.GetTarget(), d.GetCause(), d.GetRemedy())
	}, func(p *adminv1.VerifyResponse_Progress) {
		if !p.GetDone() {
			cmd.PrintErrf("%s: %s so far\n", id, comparedText(p))
			return
		}
		v.done(id, p)
	})
}

// eachEvent runs a verification at a deployment until its result.
func eachEvent(ctx context.Context, c *client.Client, id schema.DeploymentID, req *adminv1.VerifyRequest,
	difference func(*adminv1.VerifyResponse_Difference), progress func(*adminv1.VerifyResponse_Progress),
) error {
	admin, err := c.Admin(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := admin.Verify(ctx, req)
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the stream ended without a result")
		case err != nil:
			return err
		}
		if d := msg.GetDifference(); d != nil {
			difference(d)
		}
		if p := msg.GetProgress(); p != nil {
			if progress(p); p.GetDone() {
				return nil
			}
		}
	}
}

func (v *verified) done(id schema.DeploymentID, p *adminv1.VerifyResponse_Progress) {
	v.Deployments = append(v.Deployments, verifiedDeployment{Deployment: id.String(), Totals: cli.Message(p)})
	v.out.Line("%s: %s compared; %s, %d repaired", id, comparedText(p), cli.Plural(p.GetDifferences(), "difference"),
		p.GetRepaired())
	if n := p.GetActedUpon(); n > 0 {
		v.out.Line("  %s acted upon", cli.Plural(n, "dangling reference"))
	}
	v.found, v.repaired = v.found+p.GetDifferences(), v.repaired+p.GetRepaired()
	for _, u := range p.GetUnreachable() {
		v.out.Line("  not compared: %s does not answer", u)
	}
	v.unasked = append(v.unasked, p.GetUnreachable()...)
}

func comparedText(p *adminv1.VerifyResponse_Progress) string {
	return fmt.Sprintf("%s, %s, %s, %s", cli.Plural(p.GetReferences(), "reference"),
		cli.Plural(p.GetBlockades(), "blockade"),
		cli.Plural(p.GetOwners(), "owner"), bodies(p.GetBodies()))
}

func bodies(n int64) string {
	if n == 1 {
		return "1 body"
	}
	return fmt.Sprintf("%d bodies", n)
}
