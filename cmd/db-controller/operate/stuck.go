package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/diagnose"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// stuckAt has the resources and the work of a deployment that wait, or the reason why they are unknown.
type stuckAt struct {
	Deployment string          `json:"deployment"`
	Stuck      json.RawMessage `json:"stuck,omitempty" message:"dbcontroller.admin.v1.ListStuckResponse"`
	Error      string          `json:"error,omitempty"`

	answer *adminv1.ListStuckResponse
}

// stuckListed is how many resources of a deployment are listed, unless --limit says otherwise.
const stuckListed = 1000

// NewStuck returns the command stuck.
func NewStuck() *cobra.Command {
	var longer time.Duration
	var limit int
	cmd := cli.NewDeploymentCommand("stuck [SERVICE | DEPLOYMENT]", "List resources and work that wait for long, with the reasons, in all deployments", `  db-controller stuck
  db-controller stuck iam.example.com --longer 10m
  db-controller stuck iam.example.com/us-west2 -o json`, cobra.MaximumNArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if longer <= 0 {
				return cli.Usage("--longer %s: want more than 0s", longer)
			}
			if limit < 1 {
				return cli.Usage("--limit %d: want at least 1", limit)
			}
			env, err := c.Environment(cmd.Context())
			if err != nil {
				return cli.Plain(err)
			}
			at := deploymentsOf(env, args)
			if len(at) == 0 && len(args) > 0 {
				return cli.WithCode(cli.Refused,
					fmt.Errorf("%s is no service and no deployment of the environment: known deployments are %s",
						args[0], strings.Join(deploymentNames(env), ", ")))
			}
			return printStuck(cli.PrinterOf(cmd), stuckIn(cmd.Context(), c, at, longer, limit), longer)
		})
	cli.NamesToo(cmd)
	cmd.Flags().DurationVar(&longer, "longer", time.Minute,
		"list resources and work that have waited for longer than this")
	cmd.Flags().IntVar(&limit, "limit", stuckListed,
		"list at most this number of resources of each deployment; their total is shown in any case")
	return cmd
}

// deploymentsOf returns the deployments of a service, one deployment, or all.
func deploymentsOf(env *schema.Environment, args []string) (out []schema.Deployment) {
	for _, d := range env.Deployments {
		if len(args) == 0 || d.Service == args[0] || d.String() == args[0] {
			out = append(out, d)
		}
	}
	return out
}

func stuckIn(ctx context.Context, c *client.Client, at []schema.Deployment, longer time.Duration, limit int) []stuckAt {
	found := make([]stuckAt, len(at))
	var g errgroup.Group
	g.SetLimit(statusesAtOnce)
	for i, d := range at {
		if found[i].Deployment = d.String(); d.NeverRan() {
			found[i].answer = &adminv1.ListStuckResponse{} // it has nothing
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			admin, err := c.Admin(ctx, d.DeploymentID)
			if err == nil {
				found[i].answer, err = listStuck(ctx, admin, longer, limit)
			}
			if err != nil {
				found[i].Error = cli.Plain(err).Error()
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in found
	answers := map[string]*adminv1.ListStuckResponse{}
	for _, f := range found {
		answers[f.Deployment] = f.answer
	}
	diagnose.Deployments{Admin: c.Admin}.Stuck(ctx, answers)
	for i, f := range found {
		if f.answer != nil {
			found[i].Stuck = cli.Message(f.answer)
		}
	}
	return found
}

// listStuck reads pages until there are as many resources as the limit. The answer keeps the token of the
// page after the last page read.
func listStuck(ctx context.Context, admin adminv1.AdminServiceClient, longer time.Duration,
	limit int,
) (all *adminv1.ListStuckResponse, err error) {
	for all = (*adminv1.ListStuckResponse)(nil); all == nil || all.GetNextPageToken() != "" &&
		len(all.GetResources()) < limit; {
		page, err := admin.ListStuck(ctx, &adminv1.ListStuckRequest{
			Longer: durationpb.New(longer), PageToken: all.GetNextPageToken(),
			PageSize: int32(min(limit-len(all.GetResources()), 1000)), //nolint:gosec // at most 1,000
		})
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = page
			continue
		}
		all.Resources, all.NextPageToken, all.TotalSize = append(all.GetResources(), page.GetResources()...),
			page.GetNextPageToken(), page.GetTotalSize()
	}
	return all, nil
}

func printStuck(out cli.Printer, found []stuckAt, longer time.Duration) error {
	var rows [][]any
	silent := 0
	for _, f := range found {
		if f.answer == nil {
			silent++
			rows = append(rows, []any{f.Deployment, "", "", "", "no answer: " + f.Error})
			continue
		}
		for _, p := range f.answer.GetPauses() {
			rows = append(rows, []any{
				f.Deployment, "PAUSED", pauseText(f.Deployment, p), cli.Ago(p.GetTime().AsTime()),
				p.GetReason() + " (" + p.GetActor() + ")",
			})
		}
		for _, r := range f.answer.GetResources() {
			rows = append(rows, []any{
				f.Deployment, "DELETING", r.GetName(), cli.Ago(r.GetSince().AsTime()),
				strings.Join(r.GetReasons(), "; "),
			})
		}
		if listed := len(f.answer.GetResources()); f.answer.GetNextPageToken() != "" {
			count := strconv.Itoa(listed)
			if total := f.answer.GetTotalSize(); total > 0 { // 0: not for this caller
				count += fmt.Sprintf(" of %d", total)
			}
			rows = append(rows, []any{f.Deployment, "DELETING", count + " are listed, the oldest (--limit)", "", ""})
		}
		for _, w := range f.answer.GetWork() {
			what := cli.Plural(w.GetCount(), "piece") + " for " + w.GetDeployment()
			if w.GetDeployment() == "" {
				what = cli.Plural(w.GetCount(), "resource")
			}
			rows = append(rows, []any{
				f.Deployment, w.GetGroup(), what, cli.Ago(w.GetSince().AsTime()),
				cmp.Or(w.GetLastError(), w.GetReason()) + cli.NextTry(w.GetNextTime()),
			})
		}
	}
	switch {
	case len(found) == 0:
		out.Line("%s", noDeployments)
	case len(rows) == 0:
		out.Line("Nothing waits for longer than %s (--longer).", longer)
	default:
		out.Table("DEPLOYMENT KIND OF SINCE REASON", rows)
	}
	var names []string
	for _, f := range found {
		for _, r := range f.answer.GetResources() {
			names = append(names, r.GetName())
		}
	}
	err := errors.Join(out.Names(names...), out.Document(found))
	if err == nil && silent > 0 {
		err = cli.WithCode(cli.Unavailable, fmt.Errorf("%d of %s did not answer", silent,
			cli.Plural(len(found), "deployment")))
	}
	return err
}
