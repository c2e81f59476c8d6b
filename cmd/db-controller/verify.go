package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func newVerify() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "verify [DEPLOYMENT...]",
		Short: "Compare references, blockades and owners between deployments; list differences, and repair those that are certain",
		Long: `Compare the references, blockades and owners of deployments with the records of the other deployments, and the references in
bodies with the stored references. Without arguments it compares all deployments.

There are no differences as long as no database loses commits. A failover to a standby that lagged behind, or a restored
backup, can cause some. Each difference is read twice, so that messages in flight are not reported.

With --repair, it repairs the differences whose repair is certain: a reference that the deployment of its target has lost is
established again, blockades without a reference are removed, owners are checked again, references are derived from bodies
again. When the target of a reference does not exist any more, a person decides about its holder.

The command fails when differences remain, or when a deployment did not answer.`,
		Example: `  db-controller verify
  db-controller verify iam.example.com/us-west2 --repair`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := openClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return verify(cmd, c, args, repair)
		},
	}
	contextFlag(cmd)
	outputFlag(cmd)
	cmd.ValidArgsFunction = completeDeployments(many)
	cmd.Flags().BoolVar(&repair, "repair", false, "repair the differences whose repair is certain")
	return cmd
}

// verified sums up the results of all deployments.
type verified struct {
	out printer

	Deployments []verifiedDeployment `json:"deployments"`
	Differences []json.RawMessage    `json:"differences"`

	found, repaired int64
	unasked         []string
}

// verifiedDeployment has the totals of a deployment, or the reason why there are none.
type verifiedDeployment struct {
	Deployment string          `json:"deployment"`
	Totals     json.RawMessage `json:"totals,omitempty"`
	Error      string          `json:"error,omitempty"`
}

func verify(cmd *cobra.Command, c *client.Client, names []string, repair bool) error {
	all := verified{out: printerOf(cmd), Deployments: []verifiedDeployment{}, Differences: []json.RawMessage{}}
	of, err := all.which(cmd.Context(), c, names)
	if err != nil {
		return err
	}
	for _, id := range of {
		if err := all.one(cmd, c, id, repair); err != nil {
			all.out.line("%s: NOT VERIFIED: %v", id, plain(err))
			all.Deployments = append(all.Deployments, verifiedDeployment{Deployment: id.String(), Error: plain(err).Error()})
			all.unasked = append(all.unasked, id.String())
		}
	}
	return errors.Join(all.out.document(all), all.verdict(repair))
}

// which returns the deployments to verify: the named ones, or all that have run.
func (v *verified) which(ctx context.Context, c *client.Client, names []string) (of []schema.DeploymentID, err error) {
	for _, name := range names {
		id, err := schema.ParseDeploymentID(name)
		if err != nil {
			return nil, err
		}
		of = append(of, id)
	}
	if len(of) > 0 {
		return of, nil
	}
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range env.Deployments {
		if d.NeverRan() {
			v.out.line("%s: has never run", d.DeploymentID)
			continue
		}
		of = append(of, d.DeploymentID)
	}
	return of, nil
}

// verdict returns an error when differences are left, or deployments were not compared.
func (v *verified) verdict(repair bool) error {
	var wrong []string
	code := exitFailed
	if left := v.found - v.repaired; left > 0 {
		text := plural(left, "difference") + " left"
		if !repair {
			text += ": verify --repair repairs those that are certain"
		}
		wrong = append(wrong, text)
	}
	if len(v.unasked) > 0 {
		if len(wrong) == 0 {
			code = exitUnavailable
		}
		wrong = append(wrong, "the comparison is incomplete, these deployments did not answer: "+strings.Join(slices.Compact(slices.Sorted(slices.Values(v.unasked))), ", "))
	}
	if len(wrong) > 0 {
		return &exitError{code, errors.New(strings.Join(wrong, "; "))}
	}
	if v.repaired > 0 {
		v.out.line("%s repaired. References that were established again are confirmed in the background; run verify again to see the result.", plural(v.repaired, "difference"))
		return nil
	}
	v.out.line("No differences.")
	return nil
}

func (v *verified) one(cmd *cobra.Command, c *client.Client, id schema.DeploymentID, repair bool) error {
	admin, err := c.Admin(cmd.Context(), id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	stream, err := admin.Verify(ctx, &adminv1.VerifyRequest{Repair: repair})
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
			v.Differences = append(v.Differences, message(d))
			v.out.line("%s  %s (%s) and %s\n    cause:  %s\n    remedy: %s", d.GetKind(), d.GetHolder(), d.GetPath(), d.GetTarget(), d.GetCause(), d.GetRemedy())
		}
		p := msg.GetProgress()
		if p == nil {
			continue
		}
		if !p.GetDone() {
			cmd.PrintErrf("%s: %s so far\n", id, comparedText(p))
			continue
		}
		v.done(id, p)
		return nil
	}
}

func (v *verified) done(id schema.DeploymentID, p *adminv1.VerifyResponse_Progress) {
	v.Deployments = append(v.Deployments, verifiedDeployment{Deployment: id.String(), Totals: message(p)})
	v.out.line("%s: %s compared; %s, %d repaired", id, comparedText(p), plural(p.GetDifferences(), "difference"), p.GetRepaired())
	v.found, v.repaired = v.found+p.GetDifferences(), v.repaired+p.GetRepaired()
	for _, u := range p.GetUnreachable() {
		v.out.line("  not compared: %s does not answer", u)
	}
	v.unasked = append(v.unasked, p.GetUnreachable()...)
}

func comparedText(p *adminv1.VerifyResponse_Progress) string {
	return fmt.Sprintf("%s, %s, %s, %s", plural(p.GetReferences(), "reference"), plural(p.GetBlockades(), "blockade"),
		plural(p.GetOwners(), "owner"), bodies(p.GetBodies()))
}

func bodies(n int64) string {
	if n == 1 {
		return "1 body"
	}
	return fmt.Sprintf("%d bodies", n)
}
