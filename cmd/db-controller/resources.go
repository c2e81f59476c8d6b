package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// resourceCommand is a command about a resource, or a deployment's resources.
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
	return cmd
}

func newGet() *cobra.Command {
	cmd := resourceCommand("get NAME...", "Show resources by their full names", "  db-controller get //iam.example.com/us-west2/projects/acme -o yaml", cobra.MinimumNArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			var found []*resourcev1.Resource
			for _, arg := range args {
				name, resources, err := c.Named(cmd.Context(), arg)
				if err != nil {
					return err
				}
				r, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{Name: name.Name})
				if err != nil {
					return plain(err)
				}
				found = append(found, r)
			}
			return show(cmd, found)
		})
	outputFlag(cmd)
	return cmd
}

func newList() *cobra.Command {
	var kind string
	var limit int
	cmd := resourceCommand("list DEPLOYMENT", "List the resources of a deployment", "  db-controller list devices.example.com/eastus2 --kind Device", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			var found []*resourcev1.Resource
			errEnough := errors.New("enough")
			err = c.Each(cmd.Context(), id, kind, func(r *resourcev1.Resource) error {
				if len(found) == limit {
					return errEnough
				}
				found = append(found, r)
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				return plain(err)
			}
			if err == nil {
				return show(cmd, found)
			}
			if err := show(cmd, found); err != nil {
				return err
			}
			cmd.PrintErrf("there are more: --limit %d\n", 10*limit)
			return nil
		})
	cmd.Flags().StringVar(&kind, "kind", "", "only this kind")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	outputFlag(cmd)
	return cmd
}

func newPut() *cobra.Command {
	var file string
	cmd := resourceCommand("put NAME [BODY]", "Create or update a resource; the body is JSON or YAML, given here or in a file",
		`  db-controller put //iam.example.com/us-west2/projects/acme '{"title": "Acme"}'
  db-controller put //devices.example.com/eastus2/projects/acme/devices/d1 -f device.yaml`, cobra.RangeArgs(1, 2),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			body, err := readBody(cmd, args[1:], file)
			if err != nil {
				return err
			}
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := resources.PutResource(cmd.Context(), &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name.Name, Body: body}})
			if err != nil {
				return plain(err)
			}
			return show(cmd, []*resourcev1.Resource{r})
		})
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the body, - for standard input")
	outputFlag(cmd)
	return cmd
}

func readBody(cmd *cobra.Command, inline []string, file string) (*structpb.Struct, error) {
	var raw []byte
	var err error
	switch {
	case len(inline) > 0 && file != "":
		return nil, errors.New("give the body here or in a file, not both")
	case len(inline) > 0:
		raw = []byte(inline[0])
	case file == "-":
		raw, err = io.ReadAll(cmd.InOrStdin())
	case file != "":
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	var body map[string]any
	if err := yaml.Unmarshal(raw, &body); err != nil {
		return nil, fmt.Errorf("the body is neither JSON nor YAML with fields: %w", err)
	}
	s, err := structpb.NewStruct(body)
	if err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	// Protobuf's JSON knows which numbers cannot be: it would write NaN as a string.
	if _, err := json.Marshal(body); err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	return s, nil
}

func newDelete() *cobra.Command {
	var wait time.Duration
	cmd := resourceCommand("delete NAME", "Delete a resource and what cascades with it", "  db-controller delete //iam.example.com/us-west2/projects/acme --wait 10s", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			answer, err := resources.DeleteResource(cmd.Context(), &resourcev1.DeleteResourceRequest{Name: name.Name})
			if err != nil {
				return plain(err)
			}
			for _, d := range answer.GetUnaskedDeployments() {
				cmd.PrintErrf("note: %s could not be asked whether something there blocks what will cascade\n", d)
			}
			if answer.GetRemoved() {
				cmd.Println(name, "deleted")
				return nil
			}
			if wait > 0 {
				began := time.Now()
				ctx, cancel := context.WithTimeout(cmd.Context(), wait)
				defer cancel()
				if err := c.WaitGone(ctx, name, answer.GetResource().GetUid()); err == nil {
					cmd.Printf("%s deleted, after %s\n", name, time.Since(began).Round(time.Millisecond))
					return nil
				}
			}
			cmd.Println(name, "is being deleted")
			r, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{Name: name.Name})
			if err == nil {
				for _, condition := range r.GetConditions() {
					cmd.Printf("  %s %s\n", condition.GetType(), condition.GetMessage())
				}
			}
			return nil
		})
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long until it is gone")
	return cmd
}

func newWatch() *cobra.Command {
	var kind string
	cmd := resourceCommand("watch DEPLOYMENT", "Show the resources of a deployment and every change after that", "  db-controller watch devices.example.com/eastus2", cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			resources, err := c.Resources(cmd.Context(), id)
			if err != nil {
				return err
			}
			stream, err := resources.WatchResources(cmd.Context(), &resourcev1.WatchResourcesRequest{Kind: kind})
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
				printEvent(cmd, msg)
			}
		})
	cmd.Flags().StringVar(&kind, "kind", "", "only this kind")
	return cmd
}

func printEvent(cmd *cobra.Command, msg *resourcev1.WatchResourcesResponse) {
	at := time.Now().Format("15:04:05.000")
	switch e := msg.GetEvent().(type) {
	case *resourcev1.WatchResourcesResponse_Upsert:
		body, _ := protojson.Marshal(e.Upsert.GetBody())
		cmd.Printf("%s  %-8s  %s %s\n", at, stateWord(e.Upsert), e.Upsert.GetName(), body)
	case *resourcev1.WatchResourcesResponse_Delete:
		cmd.Printf("%s  %-8s  %s\n", at, "GONE", e.Delete.GetName())
	case *resourcev1.WatchResourcesResponse_EndOfSnapshot_:
		cmd.Printf("%s  -- that is all there is; changes follow --\n", at)
	}
}

func stateWord(r *resourcev1.Resource) string {
	return strings.TrimPrefix(r.GetState().String(), "STATE_")
}

func outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringP("output", "o", "table", "table, json or yaml")
}

func show(cmd *cobra.Command, found []*resourcev1.Resource) error {
	output, _ := cmd.Flags().GetString("output")
	switch output {
	case "table":
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "NAME\tKIND\tSTATE\tREVISION\tAGE")
		for _, r := range found {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", r.GetName(), r.GetKind(), stateWord(r), r.GetRevision(), age(r))
			for _, condition := range r.GetConditions() {
				_, _ = fmt.Fprintf(w, "  %s %s\t\t\t\t\n", condition.GetType(), condition.GetMessage())
			}
		}
		return w.Flush()
	case "json", "yaml":
		for _, r := range found {
			raw, err := protojson.MarshalOptions{Multiline: output == "json"}.Marshal(r)
			if err != nil {
				return err
			}
			if output == "yaml" {
				var v any
				if err := yaml.Unmarshal(raw, &v); err != nil {
					return err
				}
				if raw, err = yaml.Marshal(v); err != nil {
					return err
				}
				cmd.Print("---\n")
			}
			cmd.Println(strings.TrimSpace(string(raw)))
		}
		return nil
	}
	return fmt.Errorf("--output %s: want table, json or yaml", output)
}

func age(r *resourcev1.Resource) string {
	d := time.Since(r.GetCreateTime().AsTime())
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
