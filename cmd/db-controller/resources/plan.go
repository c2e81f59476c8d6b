package resources

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// NewPlan returns the command plan.
func NewPlan() *cobra.Command {
	var selected filtered
	cmd := cli.NewDeploymentCommand("plan NAME... | plan DEPLOYMENT --filter FILTER", "Show the effect of a delete in all deployments, and change nothing", `  db-controller plan //iam.example.com/us-west2/projects/acme
  db-controller plan //iam.example.com/us-west2/projects/acme //iam.example.com/us-west2/projects/old
  db-controller plan devices.example.com/eastus2 --kind Device --filter 'labels.env = "test"'`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) (err error) {
			if selected.given() {
				if args, err = selected.names(cmd.Context(), c, args[0]); err != nil {
					return err
				}
				if len(args) == 0 {
					cmd.PrintErrln("no resource is selected")
				}
			}
			return printPlans(cmd, c, args, 0)
		})
	selected.flags(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if selected.given() {
			return cobra.MatchAll(cobra.ExactArgs(1), cli.OfDeployment)(cmd, args)
		}
		return ofResources(cobra.MinimumNArgs(1))(cmd, args)
	}
	cmd.Long = `Show the effect of a delete in all deployments, and change nothing.

Several resources of one deployment have one plan, as they are deleted together (delete --help); --kind and --filter select them.`
	cmd.ValidArgsFunction = cli.CompleteNames(cli.Many)
	return cmd
}

// keptPlan is a plan, with what keeps the names of the resources that were asked for after the delete.
type keptPlan struct {
	plan *resourcev1.PlanDeletionResponse
	keptNames
}

type keptNames struct {
	Keepers []keeper `json:"keepers"`
	// Incomplete says why there may be more keepers.
	Incomplete string `json:"keepersIncomplete,omitempty"`
}

// MarshalJSON adds the keepers to the fields of the plan.
func (p *keptPlan) MarshalJSON() ([]byte, error) {
	more, err := json.Marshal(p.keptNames)
	if err != nil {
		return nil, err
	}
	plan := bytes.TrimSuffix(cli.Message(p.plan), []byte("}"))
	if len(plan) > 1 {
		plan = append(plan, ',')
	}
	return append(plan, more[1:]...), nil
}

// printPlans shows a plan for each deployment.
func printPlans(cmd *cobra.Command, c *client.Client, names []string, maxRemovals int64) error {
	all, err := selections(names)
	if err != nil {
		return err
	}
	var plans []*keptPlan
	for _, s := range all {
		plan, err := planWith(cmd.Context(), c, s.names, 0, maxRemovals)
		if err != nil {
			return err
		}
		k := &keptPlan{plan, keptNames{Keepers: []keeper{}}}
		if len(s.names) > keepersOf {
			k.Incomplete = fmt.Sprintf(
				"what keeps the names is listed for %d resources of this plan: plan the others by themselves",
				keepersOf)
		}
		for _, name := range s.names[:min(len(s.names), keepersOf)] {
			found, err := keepersBefore(cmd.Context(), c, name)
			k.Keepers = append(k.Keepers, found...)
			if err != nil {
				k.Incomplete = err.Error()
			}
		}
		plans = append(plans, k)
	}
	if out := cli.PrinterOf(cmd); !out.People() {
		if len(plans) == 1 {
			return out.Document(plans[0])
		}
		return out.Document(plans)
	}
	for i, kept := range plans {
		plan := kept.plan
		if i > 0 {
			_, _ = fmt.Fprintln(cmd.OutOrStdout())
		}
		WritePlan(cmd.OutOrStdout(), plan)
		printKeepers(cli.PrinterOf(cmd), kept.Keepers)
		if kept.Incomplete != "" {
			cli.PrinterOf(cmd).Line("not asked  %s", kept.Incomplete)
		}
		if selected(plan, names) {
			_, _ = fmt.Fprintln(cmd.OutOrStdout(),
				"What refuses it is deleted with the other resources of this command, which sends the delete again after them.")
		}
	}
	return nil
}

func planOf(ctx context.Context, c *client.Client, names []schema.FullName) (*resourcev1.PlanDeletionResponse, error) {
	return planWith(ctx, c, names, 0, 0)
}

// planWith is planOf with a number of names for each group, 0 for a few, and the greatest number of removals
// that the delete may have.
func planWith(ctx context.Context, c *client.Client, names []schema.FullName, samples int32,
	maxRemovals int64,
) (*resourcev1.PlanDeletionResponse, error) {
	resources, err := c.Resources(ctx, names[0].Deployment)
	if err != nil {
		return nil, cli.Plain(err)
	}
	req := &resourcev1.PlanDeletionRequest{Name: names[0].Name, MaxSamples: samples, MaxRemovals: maxRemovals}
	for _, name := range names[1:] {
		req.More = append(req.More, name.Name)
	}
	plan, err := resources.PlanDeletion(ctx, req)
	if err != nil && len(names) > 1 {
		return nil, cli.Plain(err)
	}
	if err != nil {
		return nil, cli.PlainOf(names[0], err)
	}
	return plan, nil
}

// selected reports whether all that refuses a plan is among some names.
func selected(plan *resourcev1.PlanDeletionResponse, names []string) bool {
	return plan.GetRefusal() != "" && plan.GetTotalBlockers() == int64(len(plan.GetBlockers())) &&
		len(plan.GetBlockers()) > 0 &&
		!slices.ContainsFunc(plan.GetBlockers(), func(b *resourcev1.PlanDeletionResponse_Blocker) bool {
			return b.GetRefuses() && !slices.Contains(names, b.GetHolder())
		})
}

// planText writes the text of a plan, line by line.
type planText struct {
	out  io.Writer
	plan *resourcev1.PlanDeletionResponse
}

func (p planText) line(format string, args ...any) {
	_, _ = fmt.Fprintln(p.out, cli.Legible(fmt.Sprintf(format, args...)))
}

// WritePlan draws the resources that would be deleted or changed as a tree, and lists blockers.
func WritePlan(out io.Writer, plan *resourcev1.PlanDeletionResponse) {
	p := planText{out, plan}
	if why := p.incomplete(); why != "" {
		p.line("INCOMPLETE: %s", why)
	}
	below := map[int32][]int{}
	for i, g := range plan.GetGroups() {
		below[g.GetParent()] = append(below[g.GetParent()], i)
	}
	for _, root := range below[-1] {
		g := plan.GetGroups()[root]
		names := strings.Join(g.GetSamples(), ", ")
		if more := g.GetCount() - int64(len(g.GetSamples())); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		p.line("%s  %s%s", names, g.GetKind(), waits(g))
		p.tree(below, root, "")
	}
	p.line("")
	p.blockers()
	p.unasked()
	p.verdict()
}

// tree draws the groups below another one.
func (p planText) tree(below map[int32][]int, i int, indent string) {
	children := below[int32(i)]
	for n, child := range children {
		branch, next := "├─ ", "│  "
		if n == len(children)-1 {
			branch, next = "└─ ", "   "
		}
		p.line("%s%s%s", indent, branch, groupText(p.plan.GetGroups()[child]))
		p.tree(below, child, indent+next)
	}
}

func (p planText) blockers() {
	for _, b := range p.plan.GetBlockers() {
		if name, err := schema.ParseFullName(b.GetHolder()); b.GetPath() == rightPath && err == nil {
			p.line(strings.Replace(blockerFormat(b), " (%s)", "", 1), "a reference of "+name.Deployment.String()+
				", under its right,", b.GetTarget())
			continue
		}
		p.line(blockerFormat(b), b.GetHolder(), b.GetPath(), b.GetTarget())
	}
	if more := p.plan.GetTotalBlockers() - int64(len(p.plan.GetBlockers())); more > 0 {
		p.line("and %d more that block, or may", more)
	}
}

// rightPath takes the place of a field in a blocker that stands for all references under a right.
const rightPath = "@delegation"

// blockerFormat returns the format of a blocker's line, for its holder, path and target.
func blockerFormat(b *resourcev1.PlanDeletionResponse_Blocker) string {
	switch {
	case b.GetUnknown():
		return "unknown    %s (%s) blocks %s, unless it is deleted as well, which is unknown: a deployment does not answer"
	case b.GetUndecided() && b.GetUnanswered():
		return "undecided  %s (%s) refers to %s or is about to: its deployment does not answer"
	case b.GetUndecided():
		return "undecided  %s (%s) may be about to refer to %s"
	case b.GetRefuses() && b.GetUnanswered():
		return "refused    %s (%s) blocks %s; its deployment does not answer whether it still does"
	case b.GetRefuses():
		return "refused    %s (%s) blocks %s"
	default:
		return "waits      %s (%s) blocks %s, which waits for it"
	}
}

func (p planText) unasked() {
	for _, u := range p.plan.GetUnasked() {
		if u.GetReason() == resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED {
			p.line("not asked  %s", u.GetMessage())
		} else {
			p.line("not asked  %s does not answer; its resources are not in this plan (%s)", u.GetDeployment(),
				u.GetMessage())
		}
	}
}

// incomplete says why a plan is incomplete; "" for a complete one.
func (p planText) incomplete() string {
	var why []string
	if silent := p.silent(); silent > 0 {
		why = append(why, cli.Plural(silent, "deployment")+" did not answer")
	}
	if limited := len(p.plan.GetUnasked()) - p.silent(); limited > 0 {
		why = append(why, cli.Plural(limited, "deployment")+" behind the limit of the plan was not asked")
	}
	if p.plan.GetUncounted() {
		why = append(why, "what is behind the limit of the plan could not be counted in time")
	}
	return strings.Join(why, ", and ")
}

// silent is the number of deployments that did not answer.
func (p planText) silent() (n int) {
	for _, u := range p.plan.GetUnasked() {
		if u.GetReason() != resourcev1.UnaskedDeployment_REASON_LIMIT_REACHED {
			n++
		}
	}
	return n
}

func (p planText) verdict() {
	if p.plan.GetRefusal() != "" {
		p.line("A delete would %s: %s", p.failure(), p.refusal())
		return
	}
	var deleted, unset tally
	deleted.atLeast = p.plan.GetTruncated()
	for _, g := range p.plan.GetGroups() {
		if g.GetUnset() {
			unset.add(g)
		} else {
			deleted.add(g)
		}
	}
	if p.incomplete() != "" {
		deleted.atLeast, unset.atLeast = true, true
	}
	if why := p.incomplete(); why != "" {
		p.line("Nothing known refuses a delete: %s deleted, %s unset, where ≥ is \"at least\": %s.", deleted,
			unset, why)
		return
	}
	p.line("A delete would be accepted: %s deleted, %s unset.", deleted, unset)
	if retention := p.plan.GetRetention(); retention != nil {
		p.line(
			"The retention of the kind is %s: until then they are hidden, nothing is unset, and undelete brings them back.", schema.FormatRetention(retention.AsDuration()))
	}
	if deleted.atLeast || unset.atLeast {
		p.line(
			"≥ is \"at least\": the plan stopped at its limit. Referrers of the visited resources are counted beyond it, resources below the others are not.")
	}
}

// failure is "be refused" only if a listed blocker refuses, or nothing is unknown: otherwise the delete may
// be accepted later.
func (p planText) failure() string {
	of := p.plan.GetBlockers()
	definite := func(b *resourcev1.PlanDeletionResponse_Blocker) bool {
		return b.GetRefuses() && !b.GetUnknown() && !b.GetUndecided()
	}
	open := func(b *resourcev1.PlanDeletionResponse_Blocker) bool { return b.GetUnknown() || b.GetUndecided() }
	if slices.ContainsFunc(of, definite) || !slices.ContainsFunc(of, open) {
		return "be refused"
	}
	return "fail now"
}

// refusal is the error of the delete with the full name of the resource: its deployment calls it by the
// relative name.
func (p planText) refusal() string {
	text := p.plan.GetRefusal()
	if groups := p.plan.GetGroups(); len(groups) > 0 && len(groups[0].GetSamples()) > 0 {
		full, of := groups[0].GetSamples()[0], "//"+groups[0].GetDeployment()+"/"
		if strings.HasPrefix(full, of) && strings.HasPrefix(text, strings.TrimPrefix(full, of)+" ") {
			return of + text
		}
	}
	return text
}

// tally is a number of resources, or the least that it can be.
type tally struct {
	count   int64
	atLeast bool
}

func (t *tally) add(g *resourcev1.PlanDeletionResponse_Group) {
	t.count += g.GetCount()
	t.atLeast = t.atLeast || g.GetAtLeast()
}

func (t tally) String() string {
	if t.atLeast {
		return fmt.Sprintf("≥ %d", t.count)
	}
	return fmt.Sprint(t.count)
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
	switch more := g.GetCount() - int64(len(g.GetSamples())); {
	case more > 0 && names == "":
		names = fmt.Sprintf("%d, whose names you may not read", more)
	case more > 0:
		names += fmt.Sprintf(", and %d more", more)
	}
	return fmt.Sprintf("%s %s %s in %s (%s): %s%s", tally{g.GetCount(), g.GetAtLeast()}, g.GetKind(), what,
		g.GetDeployment(), why, names, waits(g)+denied(g))
}

// denied says how many of a group the caller has no right to delete.
func denied(g *resourcev1.PlanDeletionResponse_Group) string {
	if g.GetDenied() == 0 {
		return ""
	}
	return fmt.Sprintf("; you have no right to delete %s of them", tally{g.GetDenied(), false})
}

// waits names the finalizers of a group, which are removed before its resources are.
func waits(g *resourcev1.PlanDeletionResponse_Group) string {
	if len(g.GetFinalizers()) == 0 {
		return ""
	}
	return ", after the clean-up by " + strings.Join(g.GetFinalizers(), " and ")
}
