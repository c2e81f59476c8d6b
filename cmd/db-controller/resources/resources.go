// Package resources has the commands of users: they read, write and delete resources, and explain deletions.
package resources

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// ofResources requires arguments of which each is the full name of a resource, before a context is read.
func ofResources(count cobra.PositionalArgs) cobra.PositionalArgs {
	return cobra.MatchAll(count, func(_ *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, err := schema.ParseFullName(arg); err != nil {
				return err
			}
		}
		return nil
	})
}

// NewGet returns the command get.
func NewGet() *cobra.Command {
	var latest bool
	cmd := cli.NewDeploymentCommand("get NAME...", "Show resources by their full names",
		"  db-controller get //iam.example.com/us-west2/projects/acme -o yaml", ofResources(cobra.MinimumNArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			var found []*resourcev1.Resource
			var missing error
			for _, arg := range args {
				name, resources, err := direct.Named(cmd.Context(), c, arg)
				if err != nil {
					return err
				}
				r, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{
					Name:   name.Name,
					Latest: latest,
				})
				if err != nil {
					missing = errors.Join(missing, cli.PlainOf(name, err))
					continue
				}
				found = append(found, r)
			}
			if len(found) == 0 && (len(args) == 1 || cli.PrinterOf(cmd).People()) {
				return missing
			}
			return errors.Join(show(cmd, found, len(args) > 1), missing)
		})
	latestFlag(cmd, &latest)
	cli.NamesToo(cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(cli.Many)
	return cmd
}

// latestFlag is of reads that a standby may answer.
func latestFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "latest", false,
		"the latest state, also where a deployment answers reads by a standby, whose state may be a second old")
}

// NewList returns the command list.
func NewList() *cobra.Command {
	l := &listing{}
	cmd := cli.NewDeploymentCommand("list DEPLOYMENT", "List the resources of a deployment", `  db-controller list devices.example.com/eastus2 --kind Device
  db-controller list devices.example.com/eastus2 --filter 'labels.team = "a" AND body.size > 5' --order 'body.size desc'
  db-controller list devices.example.com/eastus2 --kind Device --total
  db-controller list devices.example.com/eastus2 --kind Device -o name | xargs -n 1 db-controller explain`, nil, l.run)
	cmd.Flags().StringVar(&l.query.Kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&l.query.Filter, "filter", "", "only resources that match a filter (AIP-160)")
	cmd.Flags().StringVar(&l.query.OrderBy, "order", "", "fields to sort by, such as 'create_time desc, body.size'")
	cmd.Flags().BoolVar(&l.showDeleted, "show-deleted", false,
		"also resources that a delete with a retention has hidden")
	cmd.Flags().IntVar(&l.limit, "limit", 100, "maximum number of resources")
	cmd.Flags().StringVar(&l.page, "page-token", "",
		"list what follows an earlier list with the same kind, filter and order, which has printed this token at its end")
	cmd.Flags().BoolVar(&l.total, "total", false,
		"print the number of resources, and not the resources: they are read page by page")
	latestFlag(cmd, &l.latest)
	cmd.Args = cobra.MatchAll(cli.OfDeployment, cli.AtMostOne("total", "limit"), cli.AtMostOne("total", "page-token"))
	cli.NamesToo(cmd)
	cli.CompleteDeploymentAndKind(cmd)
	return cmd
}

// listing is one call of list.
type listing struct {
	query client.Query
	limit int
	page  string
	total bool
	// showDeleted: also hidden resources.
	showDeleted bool
	latest      bool
}

func (l *listing) run(cmd *cobra.Command, c *client.Client, args []string) error {
	id, err := schema.ParseDeploymentID(args[0])
	if err != nil {
		return err
	}
	if l.limit <= 0 {
		return cli.Usage("--limit %d: want at least 1", l.limit)
	}
	if l.total {
		return l.count(cmd, c, id)
	}
	resources, err := c.Resources(cmd.Context(), id)
	if err != nil {
		return err
	}
	found, next := []*resourcev1.Resource(nil), l.page
	for again := true; again && len(found) < l.limit; again = next != "" {
		page, err := resources.ListResources(cmd.Context(), &resourcev1.ListResourcesRequest{
			Kind: l.query.Kind, Filter: l.query.Filter, OrderBy: l.query.OrderBy, PageToken: next,
			ShowDeleted: l.showDeleted, Latest: l.latest,
			PageSize: int32(min(l.limit-len(found), 1000)), //nolint:gosec // at most 1,000
		})
		if err != nil {
			return cli.Plain(err)
		}
		found, next = append(found, page.GetResources()...), page.GetNextPageToken()
	}
	if next != "" && l.follows(cmd.Context(), resources, next) {
		defer cmd.PrintErrf("there are more resources: use --limit %d, or --page-token %s\n", 10*l.limit, next)
	}
	return show(cmd, found, true)
}

// follows reports whether a token has a resource behind it: a full page has a token, also when it is the last
// one.
func (l *listing) follows(ctx context.Context, resources resourcev1.ResourceServiceClient, token string) bool {
	page, err := resources.ListResources(ctx, &resourcev1.ListResourcesRequest{
		Kind: l.query.Kind, Filter: l.query.Filter, OrderBy: l.query.OrderBy, PageToken: token, PageSize: 1,
		ShowDeleted: l.showDeleted, Latest: l.latest, ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"name"}},
	})
	return err != nil || len(page.GetResources()) > 0 // unknown is not none
}

// total is the number of resources that a list would have.
type total struct {
	Total int64 `json:"total"`
}

func (l *listing) count(cmd *cobra.Command, c *client.Client, id schema.DeploymentID) error {
	resources, err := c.Resources(cmd.Context(), id)
	if err != nil {
		return err
	}
	var all total
	for token, again := "", true; again; again = token != "" {
		page, err := resources.ListResources(cmd.Context(), &resourcev1.ListResourcesRequest{
			Kind: l.query.Kind, Filter: l.query.Filter, PageToken: token, PageSize: 1000, ShowDeleted: l.showDeleted,
			Latest: l.latest, ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"name"}},
		})
		if err != nil {
			return cli.Plain(err)
		}
		all.Total, token = all.Total+int64(len(page.GetResources())), page.GetNextPageToken()
	}
	out := cli.PrinterOf(cmd)
	out.Line("%d", all.Total)
	return errors.Join(out.Names(strconv.FormatInt(all.Total, 10)), out.Document(all))
}

// NewWatch returns the command watch.
func NewWatch() *cobra.Command {
	var kind, filter, from string
	cmd := cli.NewDeploymentCommand("watch DEPLOYMENT", "Show the resources of a deployment and every change after that", `  db-controller watch devices.example.com/eastus2
  db-controller watch devices.example.com/eastus2 -o json --from "$TOKEN"     # resumeToken of an earlier event`, cli.OfDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			resources, err := c.Resources(cmd.Context(), id)
			if err != nil {
				return err
			}
			stream, err := resources.WatchResources(cmd.Context(), &resourcev1.WatchResourcesRequest{
				Kind:   kind,
				Filter: filter, ResumeToken: from,
			})
			if err != nil {
				return cli.Plain(err)
			}
			for {
				msg, err := stream.Recv()
				if cmd.Context().Err() != nil {
					return nil // Ctrl-C
				}
				if from != "" && status.Code(err) == codes.OutOfRange {
					return fmt.Errorf(
						"%w: --from takes a token of a watch with the same --kind and --filter, up to --changes-kept of the deployment old (24 hours by default); without --from a watch begins with all resources", cli.Plain(err))
				}
				if err != nil {
					return cli.Plain(err)
				}
				if err := printEvent(cli.PrinterOf(cmd), msg); err != nil {
					return err
				}
			}
		})
	cmd.Flags().StringVar(&kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&filter, "filter", "", "only resources that match a filter (AIP-160)")
	cmd.Flags().StringVar(&from, "from", "", "go on after the event with this resumeToken, without a snapshot")
	cli.CompleteDeploymentAndKind(cmd)
	return cmd
}

// printEvent prints a line for people, or a document of one line for programs.
func printEvent(r cli.Printer, msg *resourcev1.WatchResourcesResponse) error {
	if !r.People() {
		return r.Write(msg, "")
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00")
	switch e := msg.GetEvent().(type) {
	case *resourcev1.WatchResourcesResponse_Upsert:
		body, _ := protojson.Marshal(e.Upsert.GetBody())
		r.Line("%s  %-8s  %s %s", now, stateWord(e.Upsert), cli.FullName(e.Upsert), body)
	case *resourcev1.WatchResourcesResponse_Delete:
		r.Line("%s  %-8s  %s", now, "GONE", cli.FullName(e.Delete))
	case *resourcev1.WatchResourcesResponse_EndOfSnapshot_:
		r.Line("%s  -- end of the snapshot, changes follow --", now)
	}
	return nil
}

func stateWord(r *resourcev1.Resource) string {
	return strings.TrimPrefix(r.GetState().String(), "STATE_")
}

// show prints resources: one as an object, several, or possibly several, as an array.
func show(cmd *cobra.Command, found []*resourcev1.Resource, several bool) error {
	r := cli.PrinterOf(cmd)
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = cli.FullName(f)
	}
	if err := r.Names(names...); err != nil {
		return err
	}
	if !r.People() {
		if !several && len(found) == 1 {
			return r.Document(found[0])
		}
		return r.Document(cli.Messages(found))
	}
	if len(found) == 0 {
		cmd.PrintErrln("no resources")
		return nil
	}
	var rows [][]any
	for _, f := range found {
		revision, age := any("-"), "-" // of a row of an attached table, of which nothing is stored
		if f.GetUid() != "" {
			revision, age = f.GetRevision(), cli.Ago(f.GetCreateTime().AsTime())
		}
		rows = append(rows, []any{cli.FullName(f), f.GetKind(), stateWord(f), revision, age})
		if purge := f.GetPurgeTime(); purge != nil {
			rows = append(rows, []any{
				"  HIDDEN until " + purge.AsTime().Local().Format("2006-01-02 15:04 MST"), "",
				"", "", "",
			})
		}
		for _, condition := range f.GetConditions() {
			rows = append(rows, []any{"  " + condition.GetType() + " " + condition.GetMessage(), "", "", "", ""})
		}
	}
	r.Table("NAME KIND STATE REVISION AGE", rows)
	return nil
}
