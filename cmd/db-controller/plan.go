package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func newPlan() *cobra.Command {
	return resourceCommand("plan NAME", "Show the effect of a delete in all deployments, and change nothing", "  db-controller plan //iam.example.com/us-west2/projects/acme", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error { return printPlan(cmd, c, args[0]) })
}

func printPlan(cmd *cobra.Command, c *client.Client, full string) error {
	name, resources, err := c.Named(cmd.Context(), full)
	if err != nil {
		return err
	}
	plan, err := resources.PlanDeletion(cmd.Context(), &resourcev1.PlanDeletionRequest{Name: name.Name})
	if err != nil {
		return plain(err)
	}
	writePlan(cmd.OutOrStdout(), plan)
	return nil
}

// writePlan draws the resources that would be deleted or changed as a tree, and lists blockers.
func writePlan(out io.Writer, plan *resourcev1.PlanDeletionResponse) {
	print := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	groups := plan.GetGroups()
	below := map[int32][]int{}
	deleted, unset := int64(0), int64(0)
	for i, g := range groups {
		if below[g.GetParent()] = append(below[g.GetParent()], i); g.GetUnset() {
			unset += g.GetCount()
		} else {
			deleted += g.GetCount()
		}
	}
	var draw func(i int, indent string)
	draw = func(i int, indent string) {
		children := below[int32(i)]
		for n, child := range children {
			branch, next := "├─ ", "│  "
			if n == len(children)-1 {
				branch, next = "└─ ", "   "
			}
			print("%s%s%s", indent, branch, groupText(groups[child]))
			draw(child, indent+next)
		}
	}
	if len(groups) > 0 {
		print("%s  %s", groups[0].GetSamples()[0], groups[0].GetKind())
		draw(0, "")
	}
	print("")
	for _, b := range plan.GetBlockers() {
		switch {
		case b.GetUnknown():
			print("unknown    %s (%s) blocks %s, unless it is deleted as well, which is unknown: a deployment does not answer", b.GetHolder(), b.GetPath(), b.GetTarget())
		case b.GetUndecided() && b.GetUnanswered():
			print("undecided  %s (%s) refers to %s or is about to: its deployment does not answer", b.GetHolder(), b.GetPath(), b.GetTarget())
		case b.GetUndecided():
			print("undecided  %s (%s) may be about to refer to %s", b.GetHolder(), b.GetPath(), b.GetTarget())
		case b.GetRefuses() && b.GetUnanswered():
			print("refused    %s (%s) blocks %s; its deployment does not answer whether it still does", b.GetHolder(), b.GetPath(), b.GetTarget())
		case b.GetRefuses():
			print("refused    %s (%s) blocks %s", b.GetHolder(), b.GetPath(), b.GetTarget())
		default:
			print("waits      %s (%s) blocks %s, which waits for it", b.GetHolder(), b.GetPath(), b.GetTarget())
		}
	}
	if more := plan.GetTotalBlockers() - int64(len(plan.GetBlockers())); more > 0 {
		print("and %d more that block, or may", more)
	}
	for _, u := range plan.GetUnasked() {
		if u.GetReason() == resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED {
			print("not asked  %s", u.GetMessage())
		} else {
			print("not asked  %s does not answer; its resources are not in this plan (%s)", u.GetDeployment(), u.GetMessage())
		}
	}
	more := ""
	if plan.GetTruncated() {
		more = " or more"
	}
	if plan.GetAccepted() {
		print("A delete would be accepted: %d%s deleted, %d unset.", deleted, more, unset)
	} else {
		print("A delete would be refused: %s", plan.GetRefusal())
	}
}

func groupText(g *resourcev1.PlanDeletionResponse_Group) string {
	why := g.GetPath()
	switch why {
	case "@parent":
		why = "parent"
	case "@owner":
		why = "owner"
	}
	what := "deleted"
	if g.GetUnset() {
		what = "unset"
	}
	samples := make([]string, len(g.GetSamples()))
	for i, full := range g.GetSamples() {
		samples[i] = strings.TrimPrefix(full, "//"+g.GetDeployment()+"/")
	}
	names := strings.Join(samples, ", ")
	if more := g.GetCount() - int64(len(g.GetSamples())); more > 0 {
		names += fmt.Sprintf(", and %d more", more)
	}
	return fmt.Sprintf("%d %s %s in %s (%s): %s", g.GetCount(), g.GetKind(), what, g.GetDeployment(), why, names)
}
