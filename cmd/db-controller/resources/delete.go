package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	ignoreNotFound bool
	file           string
	progress       string // auto, plain or none
}

// deleted is the result of a delete for programs.
type deleted struct {
	Name string `json:"name"`
	// GONE, DELETING, or empty after an error.
	State      string            `json:"state,omitempty"`
	Conditions []json.RawMessage `json:"conditions,omitempty"`
	// Unasked are deployments that did not answer whether their resources block the cascade.
	Unasked []json.RawMessage `json:"unasked,omitempty"`
	// Counts are the numbers of removed and unset resources, after --wait and unless --progress is none.
	Counts *totals `json:"counts,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// NewDelete returns the command delete.
func NewDelete() *cobra.Command {
	var d deletion
	cmd := cli.NewDeploymentCommand("delete NAME... | delete -f FILE", "Delete resources with everything that cascades", `  db-controller delete //iam.example.com/us-west2/projects/acme --wait 10s
  db-controller delete //iam.example.com/us-west2/projects/acme --timeout 30s
  db-controller delete -f resources.yaml --ignore-not-found`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			names, err := d.names(cmd, args)
			if err != nil {
				return err
			}
			if d.dryRun {
				return d.plans(cmd, c, names)
			}
			return d.all(cmd, c, names)
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if file, _ := cmd.Flags().GetString("file"); file != "" {
			return cobra.NoArgs(cmd, args)
		}
		return ofResources(cobra.MinimumNArgs(1))(cmd, args)
	}
	cmd.Long = `Delete resources with everything that cascades.

Several resources are deleted one after the other, each by a request of its own, and a refused one does not stop the others. The
resources of a file are deleted in the reverse of its order, so that a file that was put can be deleted.`
	cmd.Flags().DurationVar(&d.timeout, "timeout", 0, "how long to wait for the answers of deployments and for undecided references (default: the limit of the deployment, 5s)")
	cmd.Flags().DurationVar(&d.wait, "wait", 0, "how long to wait until each resource is removed")
	progressFlag(cmd, &d.progress)
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only show the effect, as plan does")
	cmd.Flags().BoolVar(&d.ignoreNotFound, "ignore-not-found", false, "succeed for resources that do not exist")
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

func (d *deletion) plans(cmd *cobra.Command, c *client.Client, names []string) error {
	for _, name := range names {
		if err := printPlan(cmd, c, name); err != nil {
			return err
		}
	}
	return nil
}

func (d *deletion) all(cmd *cobra.Command, c *client.Client, names []string) error {
	out := cli.PrinterOf(cmd)
	var results []deleted
	var failed error
	for _, name := range names {
		result, err := d.one(cmd, c, name)
		if err != nil {
			result.Error = err.Error()
			if len(names) > 1 && !strings.HasPrefix(err.Error(), name) {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}
		results, failed = append(results, result), errors.Join(failed, err)
	}
	if len(names) == 1 && d.file == "" {
		if failed != nil && results[0].State == "" {
			return failed
		}
		return errors.Join(out.Document(results[0]), failed)
	}
	return errors.Join(out.Document(results), failed)
}

func (d *deletion) one(cmd *cobra.Command, c *client.Client, full string) (result deleted, err error) {
	out := cli.PrinterOf(cmd)
	result.Name = full
	name, resources, err := direct.Named(cmd.Context(), c, full)
	if err != nil {
		return result, err
	}
	answer, err := d.send(cmd.Context(), resources, name)
	if d.ignoreNotFound && status.Code(err) == codes.NotFound {
		result.State = "GONE"
		out.Line("%s does not exist", name)
		return result, nil
	}
	if err != nil {
		return result, d.unanswered(cmd.Context(), name, err)
	}
	for _, u := range answer.GetUnasked() {
		cmd.PrintErrf("note: %s did not answer whether its resources block the cascade: %s\n", u.GetDeployment(), u.GetMessage())
	}
	result.Unasked = cli.Messages(answer.GetUnasked())
	if answer.GetRemoved() {
		result.State = "GONE"
		out.Line("%s deleted", name)
		return result, nil
	}
	return result, d.follow(cmd, c, name, answer, &result)
}

// follow waits as long as --wait says until a resource in DELETING is removed.
func (d *deletion) follow(cmd *cobra.Command, c *client.Client, name schema.FullName, answer *resourcev1.DeleteResourceResponse, result *deleted) error {
	out := cli.PrinterOf(cmd)
	result.State = "DELETING"
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
		return cli.WithCode(cli.Unavailable, fmt.Errorf("%s still exists after %s; its deletion continues (%s so far); explain %s shows the reasons", name, d.wait, so, name))
	}
	return nil
}

func (d *deletion) send(ctx context.Context, resources resourcev1.ResourceServiceClient, name schema.FullName) (*resourcev1.DeleteResourceResponse, error) {
	if d.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	return resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: name.Name})
}

// unanswered explains a delete whose answer did not arrive.
func (d *deletion) unanswered(ctx context.Context, name schema.FullName, err error) error {
	switch {
	case ctx.Err() != nil:
		return cli.WithCode(cli.Unavailable, fmt.Errorf("interrupted: it is unknown whether the delete of %s was accepted; explain %s shows it", name, name))
	case d.timeout > 0 && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded):
		return cli.WithCode(cli.Unavailable, fmt.Errorf("no answer within %s (--timeout): it is unknown whether the delete of %s was accepted; explain %s shows it", d.timeout, name, name))
	}
	return cli.PlainOf(name, err)
}

// interrupted is the error of a command that was interrupted while a deletion continues.
func interrupted(name schema.FullName) error {
	return cli.WithCode(cli.Unavailable, fmt.Errorf("interrupted: the deletion of %s continues in the deployments; explain %s shows the reasons", name, name))
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
func (d *deletion) waitGone(cmd *cobra.Command, c *client.Client, name schema.FullName, answer *resourcev1.DeleteResourceResponse) (bool, error) {
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
