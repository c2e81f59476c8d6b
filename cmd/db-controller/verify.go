package main

import (
	"context"
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
	cmd.Flags().BoolVar(&repair, "repair", false, "repair the differences whose repair is certain")
	return cmd
}

// verified sums up the results of all deployments.
type verified struct {
	differences, repaired int64
	unasked               []string
}

func verify(cmd *cobra.Command, c *client.Client, names []string, repair bool) error {
	var of []schema.DeploymentID
	for _, name := range names {
		id, err := schema.ParseDeploymentID(name)
		if err != nil {
			return err
		}
		of = append(of, id)
	}
	if len(of) == 0 {
		env, err := c.Environment(cmd.Context())
		if err != nil {
			return err
		}
		for _, d := range env.Deployments {
			if d.NeverRan() {
				cmd.Printf("%s: has never run\n", d.DeploymentID)
				continue
			}
			of = append(of, d.DeploymentID)
		}
	}
	var all verified
	for _, id := range of {
		if err := verifyOne(cmd, c, id, repair, &all); err != nil {
			cmd.Printf("%s: NOT VERIFIED: %v\n", id, plain(err))
			all.unasked = append(all.unasked, id.String())
		}
	}
	var wrong []string
	if left := all.differences - all.repaired; left > 0 {
		text := fmt.Sprintf("%d differences remain", left)
		if !repair {
			text += ": verify --repair repairs those that are certain"
		}
		wrong = append(wrong, text)
	}
	if len(all.unasked) > 0 {
		wrong = append(wrong, "the comparison is incomplete, these deployments did not answer: "+strings.Join(slices.Compact(slices.Sorted(slices.Values(all.unasked))), ", "))
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	if all.repaired > 0 {
		cmd.Printf("%d differences repaired. References that were established again are confirmed in the background; run verify again to see the result.\n", all.repaired)
		return nil
	}
	cmd.Println("No differences.")
	return nil
}

func verifyOne(cmd *cobra.Command, c *client.Client, id schema.DeploymentID, repair bool, all *verified) error {
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
			cmd.Printf("%s  %s (%s) and %s\n    cause:  %s\n    remedy: %s\n", d.GetKind(), d.GetHolder(), d.GetPath(), d.GetTarget(), d.GetCause(), d.GetRemedy())
		}
		p := msg.GetProgress()
		if p == nil {
			continue
		}
		if !p.GetDone() {
			cmd.PrintErrf("%s: %d references, %d blockades, %d owners, %d bodies so far\n", id, p.GetReferences(), p.GetBlockades(), p.GetOwners(), p.GetBodies())
			continue
		}
		cmd.Printf("%s: %d references, %d blockades, %d owners, %d bodies compared; %d differences, %d repaired\n",
			id, p.GetReferences(), p.GetBlockades(), p.GetOwners(), p.GetBodies(), p.GetDifferences(), p.GetRepaired())
		all.differences, all.repaired = all.differences+p.GetDifferences(), all.repaired+p.GetRepaired()
		for _, u := range p.GetUnreachable() {
			cmd.Printf("  not compared: %s does not answer\n", u)
		}
		all.unasked = append(all.unasked, p.GetUnreachable()...)
		return nil
	}
}
