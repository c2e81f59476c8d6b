package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// deletion is a delete as its flags describe it.
type deletion struct {
	timeout, wait  time.Duration
	dryRun         bool
	maxRemovals    int64
	ignoreNotFound bool
	atomic         bool
	now            bool
	retention      string
	file           string
	export         string
	progress       string // auto, plain or none
	selected       filtered
	releasing      releasing
}

// deleted is the result of a delete for programs.
type deleted struct {
	Name string `json:"name"`
	// GONE, DELETING, HIDDEN until the purge time, or empty after an error.
	State      string            `json:"state,omitempty"`
	PurgeTime  string            `json:"purgeTime,omitempty"`
	Conditions []json.RawMessage `json:"conditions,omitempty" message:"dbcontroller.resource.v1.Condition"`
	// Unasked are deployments that did not answer whether their resources block the cascade.
	Unasked []json.RawMessage `json:"unasked,omitempty" message:"dbcontroller.resource.v1.UnaskedDeployment"`
	// Counts are the numbers of removed and unset resources, after --wait and unless --progress is none.
	Counts *totals `json:"counts,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// NewDelete returns the command delete.
func NewDelete() *cobra.Command {
	var d deletion
	cmd := cli.NewDeploymentCommand("delete NAME... | delete -f FILE | delete DEPLOYMENT --filter FILTER", "Delete resources with everything that cascades", `  db-controller delete //iam.example.com/us-west2/projects/acme --wait 10s
  db-controller delete //iam.example.com/us-west2/projects/acme --atomic
  db-controller delete //iam.example.com/us-west2/projects/acme --export acme.yaml --wait 1m
  db-controller delete //iam.example.com/us-west2/projects/acme --retention 7d
  db-controller delete -f resources.yaml --ignore-not-found
  db-controller delete devices.example.com/eastus2 --kind Device --filter 'labels.env = "test"' --dry-run
  db-controller delete //iam.example.com/us-west2/serviceAccounts/old --detach --dry-run`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			names, err := d.names(cmd, args)
			if err == nil && d.selected.given() {
				names, err = d.selected.names(cmd.Context(), c, args[0])
			}
			if err != nil {
				return err
			}
			if len(names) == 0 {
				cmd.PrintErrln("no resource is selected: nothing is deleted")
			}
			if err := d.inOneRequest(names); err != nil {
				return err
			}
			if d.releasing.given() {
				if err := d.releasing.release(cmd, c, names, d.dryRun); err != nil {
					return err
				}
			}
			if d.dryRun {
				return printPlans(cmd, c, names, d.maxRemovals)
			}
			if d.export != "" && len(names) > 0 {
				if err := d.exportTo(cmd, c, names); err != nil {
					return err
				}
			}
			return d.all(cmd, c, names)
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if file, _ := cmd.Flags().GetString("file"); file != "" {
			return cobra.NoArgs(cmd, args)
		}
		if d.selected.given() {
			return cobra.MatchAll(cobra.ExactArgs(1), cli.OfDeployment)(cmd, args)
		}
		return ofResources(cobra.MinimumNArgs(1))(cmd, args)
	}
	cmd.Long = `Delete resources with everything that cascades.

Several resources of one deployment, at most 1,000, are deleted together, in one transaction, or none is. What refers to one of them and is
deleted with another one does not block. Each deployment has a request of its own: a refused one does not stop the others, and is sent again when
another one was accepted.

--atomic deletes in all deployments or in none: all resources that the delete reaches are kept from changing before it is decided, so that no new reference can block a part of it. It is
refused while a deployment that it reaches does not answer. Without it a reference that is written between the answer of the delete and the cascade can keep a part.

--retention hides all resources that the delete reaches for this time, and removes them then, in all deployments or in none as with --atomic. undelete NAME brings them back until
then. A kind can have a retention, which is the shortest for its resources; --now removes what is hidden already, if it names all that the delete has named, and does without a retention with
--yes. It needs the right to operate.

--export keeps what the delete removes, in all deployments: put -f FILE --create makes it anew, with new uids; references and owners are bound by their names. Values that other
resources lose are named in the file, and not put back.

--detach and --orphan act in all deployments with your rights, one holder after the other: what is changed stays so if the delete is refused
after all, and undelete does not take it back. Without --yes they list what they would change.`
	d.selected.flags(cmd)
	d.releasing.flags(cmd)
	cli.NamesToo(cmd)
	cmd.Flags().DurationVar(&d.timeout, "timeout", 0,
		"how long to wait for the answers of deployments and for undecided references (default: the limit of the deployment, 5s)")
	cmd.Flags().DurationVar(&d.wait, "wait", 0,
		"how long to wait until each resource is removed (a row of a table is removed at once; explain NAME shows which resources still follow it)")
	progressFlag(cmd, &d.progress)
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only show the effect, as plan does")
	cmd.Flags().Int64Var(&d.maxRemovals, "max-removals", 0,
		"refuse a delete that removes more resources, at most 9,999, for each request of at most 1,000 NAMEs of one deployment; -1 for any number (default: the number in the rights)")
	cmd.Flags().BoolVar(&d.atomic, "atomic", false, "delete in all deployments or in none (NAMEs of one deployment)")
	cmd.Flags().StringVar(&d.retention, "retention", "",
		"hide the resources (NAMEs of one deployment) for this time, such as 7d, in which undelete brings them back; at least for the retention of their kinds")
	cmd.Flags().BoolVar(&d.now, "now", false,
		"remove a hidden resource before its purge time; with --yes also one that is not hidden, without a retention")
	cmd.Flags().BoolVar(&d.ignoreNotFound, "ignore-not-found", false, "succeed for resources that do not exist")
	cmd.Flags().StringVar(&d.export, "export", "",
		"first write all resources that the delete removes to this new file, for put -f FILE --create; nothing is deleted if the delete would remove more of them (NAMEs of one deployment)")
	cmd.Flags().StringVarP(&d.file, "file", "f", "", "file with resources, as for put; - for standard input")
	cmd.ValidArgsFunction = cli.CompleteNames(cli.Many)
	return cmd
}

// names returns the full names to delete, in order.
func (d *deletion) names(cmd *cobra.Command, args []string) ([]string, error) {
	if d.timeout < 0 {
		return nil, cli.Usage("--timeout %s: want more than 0s", d.timeout)
	}
	if d.wait < 0 {
		return nil, cli.Usage("--wait %s: want more than 0s", d.wait)
	}
	if d.maxRemovals < -1 {
		return nil, cli.Usage(
			"--max-removals %d: want a number of resources, 0 for the number in the rights, or -1 for any number",
			d.maxRemovals)
	}
	// also an empty one, of a variable that is not set: the delete would be for good
	if cmd.Flags().Changed("retention") {
		if _, err := schema.ParseRetention(d.retention); err != nil {
			return nil, cli.Usage("--retention: %w", err)
		}
		if d.now {
			return nil, cli.Usage("--retention and --now: want one of them")
		}
	}
	if cmd.Flags().Changed("export") && d.export == "" {
		return nil, cli.Usage("--export: want the name of a new file")
	}
	if err := d.releasing.check(); err != nil {
		return nil, err
	}
	if d.releasing.yes && !d.releasing.given() && !d.now {
		return nil, cli.Usage("--yes is for --detach, --orphan and --now: a delete without them asks nothing")
	}
	if !slices.Contains(progressModes, d.progress) {
		return nil, cli.Usage("--progress %s: want auto, plain or none", d.progress)
	}
	if d.file == "" {
		return args, nil
	}
	raw, err := readInput(cmd, d.file)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	given, err := parseResources(d.file, raw)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	names := make([]string, len(given))
	for i, g := range given {
		names[len(given)-1-i] = "//" + g.id.String() + "/" + g.Name
	}
	return names, nil
}

// filtered selects the resources of a deployment by kind and filter.
type filtered struct{ kind, filter string }

func (f *filtered) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kind, "kind", "", "the resources of DEPLOYMENT of this kind")
	cmd.Flags().StringVar(&f.filter, "filter", "", "the resources of DEPLOYMENT that match a filter (AIP-160)")
}

func (f *filtered) given() bool { return f.kind != "" || f.filter != "" }

// names returns the full names of the selected resources that are not in DELETING.
func (f *filtered) names(ctx context.Context, c *client.Client, deployment string) (names []string, err error) {
	id, err := schema.ParseDeploymentID(deployment)
	if err != nil {
		return nil, err
	}
	err = direct.Each(ctx, c, id, client.Query{Kind: f.kind, Filter: f.filter}, func(r *resourcev1.Resource) error {
		if r.GetState() == resourcev1.Resource_STATE_DELETING {
			return nil
		}
		if len(names) == most {
			return cli.WithCode(cli.Refused,
				fmt.Errorf("more than %d resources are selected, and nothing is deleted: use a narrower --filter",
					most))
		}
		names = append(names, "//"+deployment+"/"+r.GetName())
		return nil
	})
	if err != nil {
		return nil, cli.Plain(err)
	}
	return names, nil
}

// selection are resources of one deployment, which are deleted together.
type selection struct {
	names []schema.FullName
	// existed is true when all of them existed before the command deleted anything: one that is missing
	// afterwards has gone along.
	existed bool
	// refused is the error of the last try that may be accepted later.
	refused error
}

// exist reports whether all resources of a deployment are known to exist.
func exist(ctx context.Context, c *client.Client, names []schema.FullName) bool {
	resources, err := c.Resources(ctx, names[0].Deployment)
	if err != nil {
		return false
	}
	request := &resourcev1.BatchGetResourcesRequest{
		Latest:   true,
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"name"}},
	}
	for _, name := range names {
		request.Names = append(request.Names, name.Name)
	}
	_, err = resources.BatchGetResources(ctx, request)
	return err == nil
}

// most is the number of resources that one request deletes.
const most = 1000

// selections divides names by their deployments, in the order of the first name of each.
func selections(names []string) (out []*selection, err error) {
	of, seen := map[schema.DeploymentID]*selection{}, map[schema.FullName]bool{}
	for _, text := range names {
		name, err := schema.ParseFullName(text)
		if err != nil {
			return nil, cli.Usage("%w", err)
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		s := of[name.Deployment]
		if s == nil || len(s.names) == most {
			s = &selection{}
			of[name.Deployment], out = s, append(out, s)
		}
		s.names = append(s.names, name)
	}
	return out, nil
}

// inOneRequest refuses names of several requests where one has to be enough.
func (d *deletion) inOneRequest(names []string) error {
	open, err := selections(names)
	if err != nil {
		return err
	}
	for flag, given := range map[string]bool{"--atomic": d.atomic, "--retention": d.retention != ""} {
		if given && len(open) > 1 {
			return cli.Usage("%s: want at most %d names of one deployment", flag, most)
		}
	}
	return nil
}

// deletions are the results by name.
type deletions map[string]*deleted

func (d *deletion) all(cmd *cobra.Command, c *client.Client, names []string) error {
	open, err := selections(names)
	if err != nil {
		return err
	}
	results := deletions{}
	for _, name := range names {
		results[name] = &deleted{Name: name}
	}
	for i, s := range open {
		s.existed = i > 0 && exist(cmd.Context(), c, s.names) // the first one is deleted before the others
	}
	var failed error
	for accepted := true; accepted && len(open) > 0; {
		accepted = false
		var refused []*selection
		for _, s := range open {
			answered, err := d.together(cmd, c, s, results)
			if accepted = accepted || answered; s.refused != nil {
				refused = append(refused, s)
			} else {
				failed = errors.Join(failed, err)
			}
		}
		open = refused
	}
	for _, s := range open {
		failed = errors.Join(failed, s.refused)
	}
	return d.report(cmd, names, results, failed)
}

func (d *deletion) report(cmd *cobra.Command, names []string, results deletions, failed error) error {
	out := cli.PrinterOf(cmd)
	if len(names) == 1 && d.file == "" {
		only := results[names[0]]
		if failed != nil && only.State == "" {
			return failed
		}
		return errors.Join(out.Names(only.Name), out.Document(only), failed)
	}
	all, accepted := make([]*deleted, len(names)), []string{}
	for i, name := range names {
		if all[i] = results[name]; all[i].State != "" {
			accepted = append(accepted, name)
		}
	}
	return errors.Join(out.Names(accepted...), out.Document(all), failed)
}

// together deletes the resources of one deployment, and reports whether the delete was accepted. A refused
// selection is sent again after another one was accepted, which may have deleted its blockers, and also
// resources of the selection itself.
func (d *deletion) together(cmd *cobra.Command, c *client.Client, s *selection,
	results deletions,
) (accepted bool, err error) {
	fail := func(err error) error {
		for _, name := range s.names {
			results[name.String()].Error = err.Error()
		}
		return err
	}
	missing := d.ignoreNotFound || s.refused != nil || s.existed
	s.refused = nil
	resources, err := c.Resources(cmd.Context(), s.names[0].Deployment)
	if err != nil {
		return false, fail(cli.Plain(err))
	}
	var known map[schema.FullName]incarnation
	if d.now {
		if known, err = d.hidden(cmd.Context(), resources, s.names); err != nil {
			return false, fail(err)
		}
	}
	answers, unasked, err := d.send(cmd.Context(), resources, s.names, known, missing)
	if err != nil {
		told := fail(d.unanswered(cmd.Context(), s.names, err))
		if status.Code(err) == codes.FailedPrecondition {
			s.refused = told
		}
		return false, told
	}
	for _, u := range unasked {
		cmd.PrintErrf("note: %s did not answer whether its resources block the cascade: %s\n", u.GetDeployment(),
			u.GetMessage())
	}
	var failed error
	for i, name := range s.names {
		result := results[name.String()]
		result.Unasked, result.Error = cli.Messages(unasked), ""
		switch answer := answers[i]; {
		case missing && answer.GetRemoved() && answer.GetDeletion() == "":
			result.State = "GONE"
			if s.existed {
				cli.PrinterOf(cmd).Line("%s deleted with another one", name)
			} else {
				cli.PrinterOf(cmd).Line("%s does not exist", name)
			}
		case answer.GetRemoved():
			result.State = "GONE"
			cli.PrinterOf(cmd).Line("%s deleted", name)
		case answer.GetResource().GetPurgeTime() != nil:
			at := answer.GetResource().GetPurgeTime().AsTime()
			result.State, result.PurgeTime = "HIDDEN", at.Format(time.RFC3339)
			cli.PrinterOf(cmd).Line("%s is hidden, and is removed at %s; undelete %s brings it back until then", name,
				at.Local().Format("2006-01-02 15:04:05 MST"), name)
		default:
			if err := d.follow(cmd, c, name, answer, result); err != nil {
				result.Error = err.Error()
				failed = errors.Join(failed, err)
			}
		}
	}
	return true, failed
}

// follow waits as long as --wait says until a resource in DELETING is removed.
func (d *deletion) follow(cmd *cobra.Command, c *client.Client, name schema.FullName,
	answer *resourcev1.DeleteResourceResponse, result *deleted,
) error {
	out := cli.PrinterOf(cmd)
	result.State = "DELETING"
	if d.retention != "" {
		cmd.PrintErrf("note: %s was being deleted before, for good: the retention has no effect\n", name)
	}
	if d.wait > 0 {
		began := time.Now()
		gone, err := d.waitGone(cmd, c, name, answer)
		if cmd.Context().Err() != nil {
			return interrupted(name)
		}
		if err != nil {
			return cli.PlainOf(name, err)
		}
		if gone {
			result.State = "GONE"
			took := time.Since(began).Round(time.Millisecond)
			out.Line("%s deleted, after %s%s", name, took, d.count(cmd.Context(), c, answer.GetDeletion(), result))
			return nil
		}
	}
	out.Line("%s is being deleted", name)
	for _, condition := range conditions(cmd.Context(), c, name) {
		result.Conditions = append(result.Conditions, cli.Message(condition))
		out.Line("  %s %s", condition.GetType(), condition.GetMessage())
	}
	if d.wait > 0 {
		so := newCounter(c, answer.GetDeletion()).read(cmd.Context())
		result.Counts = &so
		return cli.WithCode(cli.Unavailable,
			fmt.Errorf("%s still exists after %s; its deletion continues (%s so far); explain %s shows the reasons",
				name, d.wait, so, name))
	}
	return nil
}

func (d *deletion) send(ctx context.Context, resources resourcev1.ResourceServiceClient, names []schema.FullName,
	known map[schema.FullName]incarnation, missing bool) (answers []*resourcev1.DeleteResourceResponse,
	unasked []*resourcev1.UnaskedDeployment, err error,
) {
	if d.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	var retention *durationpb.Duration
	if d.retention != "" {
		of, err := schema.ParseRetention(d.retention)
		if err != nil {
			return nil, nil, err
		}
		retention = durationpb.New(of)
	}
	if len(names) == 1 {
		answer, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{
			Name: names[0].Name, Uid: known[names[0]].uid, Revision: known[names[0]].revision, AllowMissing: missing,
			MaxRemovals: d.maxRemovals, Atomic: d.atomic, Retention: retention, Now: d.now,
		})
		return []*resourcev1.DeleteResourceResponse{answer}, answer.GetUnasked(), err
	}
	req := &resourcev1.BatchDeleteResourcesRequest{
		MaxRemovals: d.maxRemovals, Atomic: d.atomic, Retention: retention,
		Now: d.now,
	}
	for _, name := range names {
		req.Requests = append(req.Requests, &resourcev1.DeleteResourceRequest{
			Name: name.Name, Uid: known[name].uid,
			Revision: known[name].revision, AllowMissing: missing,
		})
	}
	answer, err := resources.BatchDeleteResources(ctx, req)
	return answer.GetResponses(), answer.GetUnasked(), err
}

// unanswered explains a delete whose answer did not arrive.
func (d *deletion) unanswered(ctx context.Context, names []schema.FullName, err error) error {
	name := names[0]
	switch {
	case ctx.Err() != nil:
		return cli.WithCode(cli.Unavailable,
			fmt.Errorf("interrupted: it is unknown whether the delete of %s was accepted; explain %s shows it",
				name, name))
	case d.timeout > 0 && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded):
		return cli.WithCode(cli.Unavailable,
			fmt.Errorf(
				"no answer within %s (--timeout): it is unknown whether the delete of %s was accepted; explain %s shows it", d.timeout, name, name))
	}
	if len(names) == 1 {
		return cli.PlainOf(name, err)
	}
	plain := cli.Plain(err)
	if cli.ExitCode(plain) == cli.Refused {
		return fmt.Errorf("%s: none of %s is deleted: %w", name.Deployment, cli.Plural(len(names), "resource"), plain)
	}
	return fmt.Errorf("%s: it is unknown whether %s are deleted; explain %s shows it: %w", name.Deployment,
		cli.Plural(len(names), "resource"), name, plain)
}

// interrupted is the error of a command that was interrupted while a deletion continues.
func interrupted(name schema.FullName) error {
	return cli.WithCode(cli.Unavailable,
		fmt.Errorf("interrupted: the deletion of %s continues in the deployments; explain %s shows the reasons",
			name, name))
}

// count returns the counts at the end of a deletion as a text.
func (d *deletion) count(ctx context.Context, c *client.Client, id string, result *deleted) string {
	if id == "" || d.progress == "none" {
		return ""
	}
	sum := settledTotals(ctx, c, id)
	if sum.Deployments == 0 {
		return ""
	}
	result.Counts = &sum
	return ": " + sum.String()
}

// waitGone shows the progress, and reports whether the resource was removed before the wait ended.
func (d *deletion) waitGone(cmd *cobra.Command, c *client.Client, name schema.FullName,
	answer *resourcev1.DeleteResourceResponse,
) (bool, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), d.wait)
	lines := newProgressLines(cmd, d.progress)
	var showing sync.WaitGroup
	showing.Go(func() { lines.watch(ctx, c, answer.GetDeletion()) })
	defer func() {
		cancel()
		showing.Wait()
		lines.end()
	}()
	err := c.WaitGone(ctx, name.String(), answer.GetResource().GetUid(), nil)
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return false, nil
	}
	return err == nil, err
}

// conditions are the reasons why a resource is in DELETING; none if they cannot be read.
func conditions(ctx context.Context, c *client.Client, name schema.FullName) []*resourcev1.Condition {
	resources, err := c.Resources(ctx, name.Deployment)
	if err != nil {
		return nil
	}
	r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name})
	if err != nil {
		return nil
	}
	return r.GetConditions()
}
