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
		Short: "Compare references, blockades and owners between deployments; say what differs, and repair what is certain",
		Long: `Compare what the resources of each deployment refer to, what blocks there, and their owners, with what the other
deployments have of it: of all deployments, or of those that are named. The references that stand in bodies are compared
with those that are stored.

In order, nothing differs. Differences come from databases that lost commits: a failover to a standby that lagged behind, a
backup that was restored. Each is looked at twice, so that what is under way is none.

With --repair, what is certain is done: a reference that its target's deployment has lost is established again, what nothing
refers by any more is removed, owners are asked again, references are derived anew from bodies. Where a target is gone, a person decides what becomes of its holder.

It fails when something differs that is not repaired, or when a deployment could not be asked.`,
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
	cmd.Flags().BoolVar(&repair, "repair", false, "do what is certain")
	return cmd
}

// verified is what came of all deployments.
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
		text := fmt.Sprintf("%d differences are left", left)
		if !repair {
			text += ": verify --repair does what is certain"
		}
		wrong = append(wrong, text)
	}
	if len(all.unasked) > 0 {
		wrong = append(wrong, "not everything could be compared, because of "+strings.Join(slices.Compact(slices.Sorted(slices.Values(all.unasked))), ", "))
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	if all.repaired > 0 {
		cmd.Printf("%d differences repaired. What is established again is confirmed in the background; verify again to see that nothing is left.\n", all.repaired)
		return nil
	}
	cmd.Println("Nothing differs.")
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
			return errors.New("it ended without saying what it compared")
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
			cmd.Printf("  not asked: %s, which does not answer\n", u)
		}
		all.unasked = append(all.unasked, p.GetUnreachable()...)
		return nil
	}
}
