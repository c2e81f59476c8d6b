package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// maxReleasable is about the most rows that the command lists.
const maxReleasable = 10_000

// forceRelease has the flags of the command.
type forceRelease struct {
	keys   []string
	reason string
	yes    bool

	comparisonOf  string
	unconfirmedOf string
	unanswered    bool
	two           twoOperators
}

// NewForceRelease returns the command force-release.
func NewForceRelease() *cobra.Command {
	var f forceRelease
	cmd := cli.NewDeploymentCommand("force-release RESOURCE|DEPLOYMENT [--key KEY ... | --unconfirmed-of OTHER | --comparison-of OTHER] [--reason TEXT --yes]", "Go on without a deployment that does not answer, or release wrong rows that keep a resource, for operators", `  db-controller force-release //iam.example.com/us-west2/projects/acme
  db-controller force-release //iam.example.com/us-west2/projects/acme --key 'OWNEE_ENTRY|0198…' --reason "ticket 4711" --yes
  db-controller force-release iam.example.com/us-west2 --unconfirmed-of devices.example.com/eastus2 --reason "its region burnt down" --yes
  db-controller force-release iam.example.com/us-west2 --comparison-of devices.example.com/eastus2 --reason "it is down for days, ticket 4711" --yes`, cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := f.two.check(cmd, "key", "reason", "unanswered"); err != nil {
				return err
			}
			if f.comparisonOf != "" || cmd.Flags().Changed("comparison-of") {
				return f.runComparison(cmd, c, args[0])
			}
			if f.unconfirmedOf != "" {
				return f.runUnconfirmed(cmd, c, args[0])
			}
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return cli.Usage("%w", err)
			}
			return f.run(cmd, c, name)
		})
	cmd.Long = `Release what keeps a resource, or the deletions of a deployment, and will not end by itself. First try retry, verify --repair, and decommission of a deployment that never comes back.

Without --key the command lists the rows that tie the resource to others, with a key for each that can be released: blockades of references in
other deployments; entries of deployments with other references to it, or with resources that it owns, which can be released while it is being
deleted and waits for them; otherwise its owners, and the rights of other deployments to refer to it without asking. With --key it prints the effects of the release, and
with --yes it releases. A repetition changes nothing, and a reference that exists, and that its deployment still reports, is established again.

With --unconfirmed-of it lists, and with --yes it releases, the references of a deployment that does not answer to resources of DEPLOYMENT that
it has never confirmed: their write may or may not have been committed, or they are rights to refer that nothing is known to use. Each refuses
the deletion of its target while that deployment is silent. Confirmed references stay.

With --comparison-of DEPLOYMENT deletes again without waiting for the comparison of another one. After a failover or a restore of either database,
it deletes nothing until the other one has compared its references, without a limit of time. The wait is ended once: targets of references that
DEPLOYMENT has lost can be deleted, and the references are marked as dangling when the other one compares later.

The deployment of a holder entry is asked first to end its rights to refer to the resource without asking; if it does not answer, nothing is
released. With --unanswered the entry is released all the same: if that deployment has a right, it goes on writing references to the resource,
also when that is gone, until it answers (end_rights in status). They dangle, and only verify there reports them.

Rights are taken back without waiting: the list and status show them until their deployment says that they have ended. Processes of this
deployment that run with --delegations give them again.`
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	cmd.Flags().StringArrayVar(&f.keys, "key", nil, "key of a row to release, from the list; can be repeated")
	cmd.Flags().StringVar(&f.reason, "reason", "", "the reason, which the deployment stores")
	cmd.Flags().StringVar(&f.comparisonOf, "comparison-of", "",
		"service/region of a deployment that has not compared after a failover or a restore: delete without its comparison")
	cmd.Flags().StringVar(&f.unconfirmedOf, "unconfirmed-of", "",
		"service/region of a deployment that does not answer: all references that it has never confirmed")
	cmd.Flags().BoolVar(&f.unanswered, "unanswered", false,
		"release the entry of holders also when their deployment does not end its right to refer")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "confirm: this cannot be undone")
	f.two.flags(cmd)
	return cmd
}

func (f *forceRelease) run(cmd *cobra.Command, c *client.Client, name schema.FullName) error {
	ctx, out := cmd.Context(), cli.PrinterOf(cmd)
	requests, err := f.signed(cmd, name.Deployment)
	if err != nil {
		return err
	}
	admin, err := c.Admin(ctx, name.Deployment)
	if err != nil {
		return err
	}
	listed, err := listReleasable(ctx, admin, &adminv1.ListReleasableRequest{Name: name.Name})
	if err != nil {
		return cli.PlainOf(name, err)
	}
	if len(f.keys) == 0 {
		printReleasable(out, listed)
		return out.Document(cli.Messages(listed))
	}
	chosen := slices.DeleteFunc(listed, func(r *adminv1.Releasable) bool {
		return !slices.Contains(f.keys, r.GetKey())
	})
	if requests != nil && len(chosen) < len(f.keys) {
		out.Line("%d of the %d signed keys are of rows that %s does not have now", len(f.keys)-len(chosen),
			len(f.keys), name)
	}
	if err := f.confirmed(chosen); err != nil {
		return err
	}
	for _, r := range chosen {
		out.Line("%s: %s", r.GetKey(), r.GetBreaks())
	}
	if len(chosen) == 0 && !slices.ContainsFunc(f.keys, func(k string) bool { return strings.Contains(k, "|") }) {
		return cli.Usage("--key %s is no key: force-release %s without --key lists them", f.keys[0], name)
	}
	if requests == nil {
		requests = f.requests(f.keys)
	}
	if f.two.propose != "" {
		return f.two.write(cmd, ordersOf(name.Deployment, requests)...)
	}
	released, err := f.release(ctx, admin, requests)
	if err != nil {
		return err
	}
	for _, key := range f.keys {
		if slices.Contains(released, key) {
			out.Line("released %s", key)
		} else {
			out.Line("nothing to release by %s: it is gone, or was replaced since", key)
		}
	}
	return out.Document(map[string][]string{"released": released})
}

// signed returns the requests to a deployment that another operator has signed, and takes their keys and
// reason; nil without --approve.
func (f *forceRelease) signed(cmd *cobra.Command, at schema.DeploymentID) ([]*adminv1.ForceReleaseRequest, error) {
	if f.two.approve == "" {
		return nil, nil
	}
	orders, err := f.two.read(cmd)
	if err != nil {
		return nil, err
	}
	requests, err := approved[*adminv1.ForceReleaseRequest](&f.two, orders)
	if err != nil {
		return nil, err
	}
	if orders[0].server != at.String() {
		return nil, cli.Usage("--approve %s: it is for %s, not %s", f.two.approve, orders[0].server, at)
	}
	for _, r := range requests {
		f.keys, f.reason = append(f.keys, r.GetKeys()...), r.GetReason()
	}
	return requests, nil
}

// requests returns the requests to release the rows of keys.
func (f *forceRelease) requests(keys []string) (all []*adminv1.ForceReleaseRequest) {
	for part := range slices.Chunk(keys, keysOfCall) {
		all = append(all, &adminv1.ForceReleaseRequest{Keys: part, Reason: f.reason, Unanswered: f.unanswered})
	}
	return all
}

func ordersOf(at schema.DeploymentID, requests []*adminv1.ForceReleaseRequest) []order {
	orders := make([]order, len(requests))
	for i, r := range requests {
		orders[i] = order{at.String(), r}
	}
	return orders
}

// release sends the requests, and returns the keys whose rows were removed.
func (f *forceRelease) release(ctx context.Context, admin adminv1.AdminServiceClient,
	requests []*adminv1.ForceReleaseRequest,
) (released []string, err error) {
	released = []string{}
	for i, r := range requests {
		answer, err := admin.ForceRelease(ctx, r)
		switch {
		case err != nil && i > 0:
			return nil, cli.Plain(fmt.Errorf("%d of %d rows are released: %w", len(released), len(f.keys), err))
		case err != nil:
			return nil, cli.Plain(err)
		}
		released = append(released, answer.GetReleased()...)
	}
	return released, nil
}

// listReleasable reads page after page, up to maxReleasable rows.
func listReleasable(ctx context.Context, admin adminv1.AdminServiceClient,
	req *adminv1.ListReleasableRequest,
) (all []*adminv1.Releasable, err error) {
	for req.PageSize = 1000; ; {
		page, err := admin.ListReleasable(ctx, req)
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetReleasable()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" || len(all) >= maxReleasable {
			return all, nil
		}
	}
}

// keysOfCall is the most keys of one call.
const keysOfCall = 100

// runUnconfirmed lists the references to a deployment that another one has never confirmed, and releases
// them.
func (f *forceRelease) runUnconfirmed(cmd *cobra.Command, c *client.Client, at string) error {
	ctx, out := cmd.Context(), cli.PrinterOf(cmd)
	here, err := schema.ParseDeploymentID(at)
	switch {
	case err != nil:
		return cli.Usage("%w", err)
	case len(f.keys) > 0 || f.unanswered:
		return cli.Usage("--unconfirmed-of stands alone: it takes no --key, and no --unanswered")
	}
	if err := checkListed(ctx, c, "unconfirmed-of", f.unconfirmedOf); err != nil {
		return err
	}
	admin, err := c.Admin(ctx, here)
	if err != nil {
		return err
	}
	requests, err := f.signed(cmd, here)
	if err != nil {
		return err
	}
	listed, err := listReleasable(ctx, admin, &adminv1.ListReleasableRequest{UnconfirmedOf: f.unconfirmedOf})
	if err != nil {
		return cli.Plain(err)
	}
	if f.reason == "" && !f.yes {
		if len(listed) == 0 {
			out.Line("%s has confirmed each of its references to %s.", f.unconfirmedOf, here)
		}
		for _, r := range listed {
			out.Line("%s, since %s", r.GetResource(), cli.Ago(r.GetSince().AsTime()))
		}
		if len(listed) > 0 {
			out.Line(
				"%s has never confirmed these %d references. Add --reason and --yes to release them. A reference that exists there all the same dangles once its target is deleted, and is reported there.", f.unconfirmedOf, len(listed))
		}
		return out.Document(cli.Messages(listed))
	}
	if err := f.confirmed(nil); err != nil {
		return err
	}
	if requests == nil {
		for _, r := range listed {
			f.keys = append(f.keys, r.GetKey())
		}
		requests = f.requests(f.keys)
	}
	if f.two.propose != "" {
		return f.two.write(cmd, ordersOf(here, requests)...)
	}
	released, err := f.release(ctx, admin, requests)
	if err != nil {
		return err
	}
	out.Line("released %d references of %s that it had never confirmed", len(released), f.unconfirmedOf)
	return out.Document(map[string][]string{"released": released})
}

// confirmed fails with the effects while the operator has not confirmed them.
func (f *forceRelease) confirmed(chosen []*adminv1.Releasable) error {
	var effects strings.Builder
	for _, r := range chosen {
		fmt.Fprintf(&effects, "%s: %s\n", r.GetKey(), r.GetBreaks())
	}
	switch {
	case f.reason == "":
		return cli.Usage("%s--reason is missing: the reason is stored with the decision", effects.String())
	case !f.yes && f.two.propose == "":
		return cli.Usage("%sthis cannot be undone: add --yes to continue", effects.String())
	}
	return nil
}

func printReleasable(out cli.Printer, all []*adminv1.Releasable) {
	if len(all) == 0 {
		out.Line("Nothing ties it to other resources or deployments.")
	}
	for _, r := range all {
		what := strings.ToLower(strings.ReplaceAll(r.GetWhat(), "_", " ")) + " of " + r.GetOther()
		if r.GetPath() != "" {
			what += " (" + r.GetPath() + ")"
		}
		if r.GetSince() != nil {
			what += ", since " + cli.Ago(r.GetSince().AsTime())
		}
		out.Line("%s", what)
		if r.GetRefused() != "" {
			out.Line("  cannot be released: %s", r.GetRefused())
			continue
		}
		out.Line("  key:     '%s'", r.GetKey())
		out.Line("  release: %s", r.GetBreaks())
	}
	if len(all) >= maxReleasable {
		out.Line("These are the first %d. There can be more: release some of them, and list again.", len(all))
	}
}
