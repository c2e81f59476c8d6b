package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// resourceCommand returns a command that calls deployments.
func resourceCommand(use, short, example string, args cobra.PositionalArgs, run func(cmd *cobra.Command, c *client.Client, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		c, err := openClient(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd, c, args)
	}}
	contextFlag(cmd)
	outputFlag(cmd)
	return cmd
}

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

// ofDeployment requires one argument, the name of a deployment, before a context is read.
func ofDeployment(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	_, err := schema.ParseDeploymentID(args[0])
	return err
}

func newGet() *cobra.Command {
	cmd := resourceCommand("get NAME...", "Show resources by their full names", "  db-controller get //iam.example.com/us-west2/projects/acme -o yaml", ofResources(cobra.MinimumNArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			var found []*resourcev1.Resource
			var missing error
			for _, arg := range args {
				name, resources, err := c.Named(cmd.Context(), arg)
				if err != nil {
					return err
				}
				r, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{Name: name.Name})
				if err != nil {
					missing = errors.Join(missing, plain(err))
					continue
				}
				found = append(found, r)
			}
			if len(found) == 0 && len(args) == 1 {
				return missing
			}
			return errors.Join(show(cmd, found, len(args) > 1), missing)
		})
	cmd.ValidArgsFunction = completeNames(many)
	return cmd
}

func newList() *cobra.Command {
	var query client.Query
	var limit int
	cmd := resourceCommand("list DEPLOYMENT", "List the resources of a deployment", `  db-controller list devices.example.com/eastus2 --kind Device
  db-controller list devices.example.com/eastus2 --filter 'labels.team = "a" AND body.size > 5' --order 'body.size desc'`, ofDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if limit <= 0 {
				return usage("--limit %d: want at least 1", limit)
			}
			var found []*resourcev1.Resource
			errEnough := errors.New("enough")
			err = c.Each(cmd.Context(), id, query, func(r *resourcev1.Resource) error {
				if len(found) == limit {
					return errEnough
				}
				found = append(found, r)
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				return plain(err)
			}
			if errors.Is(err, errEnough) {
				defer cmd.PrintErrf("there are more resources: use --limit %d\n", 10*limit)
			}
			return show(cmd, found, true)
		})
	cmd.Flags().StringVar(&query.Kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&query.Filter, "filter", "", "only resources that match a filter (AIP-160)")
	cmd.Flags().StringVar(&query.OrderBy, "order", "", "fields to sort by, such as 'create_time desc, body.size'")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of resources")
	completeDeploymentAndKind(cmd)
	return cmd
}

func newWatch() *cobra.Command {
	var kind, filter string
	cmd := resourceCommand("watch DEPLOYMENT", "Show the resources of a deployment and every change after that", "  db-controller watch devices.example.com/eastus2", ofDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			resources, err := c.Resources(cmd.Context(), id)
			if err != nil {
				return err
			}
			stream, err := resources.WatchResources(cmd.Context(), &resourcev1.WatchResourcesRequest{Kind: kind, Filter: filter})
			if err != nil {
				return plain(err)
			}
			for {
				msg, err := stream.Recv()
				if cmd.Context().Err() != nil {
					return nil // Ctrl-C
				}
				if err != nil {
					return plain(err)
				}
				if err := printEvent(printerOf(cmd), msg); err != nil {
					return err
				}
			}
		})
	cmd.Flags().StringVar(&kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&filter, "filter", "", "only resources that match a filter (AIP-160)")
	completeDeploymentAndKind(cmd)
	return cmd
}

// printEvent prints a line for people, or a document of one line for programs.
func printEvent(r printer, msg *resourcev1.WatchResourcesResponse) error {
	if !r.people() {
		return r.write(msg, "")
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00")
	switch e := msg.GetEvent().(type) {
	case *resourcev1.WatchResourcesResponse_Upsert:
		body, _ := protojson.Marshal(e.Upsert.GetBody())
		r.line("%s  %-8s  %s %s", now, stateWord(e.Upsert), fullName(e.Upsert), body)
	case *resourcev1.WatchResourcesResponse_Delete:
		r.line("%s  %-8s  %s", now, "GONE", fullName(e.Delete))
	case *resourcev1.WatchResourcesResponse_EndOfSnapshot_:
		r.line("%s  -- end of the snapshot, changes follow --", now)
	}
	return nil
}

func stateWord(r *resourcev1.Resource) string {
	return strings.TrimPrefix(r.GetState().String(), "STATE_")
}

// fullName is the name that every command takes.
func fullName(r *resourcev1.Resource) string {
	if r.GetDeployment() == "" {
		return r.GetName()
	}
	return "//" + r.GetDeployment() + "/" + r.GetName()
}

// show prints resources: one as an object, several, or possibly several, as an array.
func show(cmd *cobra.Command, found []*resourcev1.Resource, several bool) error {
	r := printerOf(cmd)
	if !r.people() {
		if !several && len(found) == 1 {
			return r.document(found[0])
		}
		return r.document(messages(found))
	}
	var rows [][]any
	for _, f := range found {
		rows = append(rows, []any{fullName(f), f.GetKind(), stateWord(f), f.GetRevision(), ago(f.GetCreateTime().AsTime())})
		for _, condition := range f.GetConditions() {
			rows = append(rows, []any{"  " + condition.GetType() + " " + condition.GetMessage(), "", "", "", ""})
		}
	}
	r.table("NAME KIND STATE REVISION AGE", rows)
	return nil
}
