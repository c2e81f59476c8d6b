package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// resourceCommand returns a command that calls a deployment.
func resourceCommand(use, short, example string, args cobra.PositionalArgs, run func(cmd *cobra.Command, c *client.Client, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(cmd); err != nil { // before the call
			return err
		}
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
			if len(found) == 0 {
				return missing
			}
			return errors.Join(show(cmd, found), missing)
		})
	outputFlag(cmd)
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
				return fmt.Errorf("--limit %d: want at least 1", limit)
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
			if err == nil {
				return show(cmd, found)
			}
			if err := show(cmd, found); err != nil {
				return err
			}
			cmd.PrintErrf("there are more resources: use --limit %d\n", 10*limit)
			return nil
		})
	cmd.Flags().StringVar(&query.Kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&query.Filter, "filter", "", "only resources that match a filter (AIP-160)")
	cmd.Flags().StringVar(&query.OrderBy, "order", "", "fields to sort by, such as 'create_time desc, body.size'")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of resources")
	outputFlag(cmd)
	return cmd
}

func newPut() *cobra.Command {
	var file string
	var owners []string
	cmd := resourceCommand("put NAME [BODY]", "Create or replace a resource; the body is JSON or YAML, in the argument or a file; without a body it creates, and does not replace",
		`  db-controller put //iam.example.com/us-west2/projects/acme '{"title": "Acme"}'
  db-controller put //devices.example.com/eastus2/projects/acme/devices/d1 -f device.yaml
  db-controller put //devices.example.com/eastus2/fleets/f --owner Project=//iam.example.com/us-west2/projects/acme`, cobra.MatchAll(cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error { return ofResources(cobra.ExactArgs(1))(cmd, args[:1]) }),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			body, err := readBody(cmd, args[1:], file)
			if err != nil {
				return err
			}
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			references, err := readOwners(owners)
			if err != nil {
				return err
			}
			r, err := put(cmd.Context(), resources, &resourcev1.Resource{Name: name.Name, Body: body, OwnerReferences: references})
			if status.Code(err) == codes.AlreadyExists {
				return fmt.Errorf("%s exists, and a put without a body would empty it: give its whole body, or '{}' for none", name)
			}
			if err != nil {
				return plain(err)
			}
			return show(cmd, []*resourcev1.Resource{r})
		})
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the body, - for standard input")
	cmd.Flags().StringArrayVar(&owners, "owner", nil, "KIND=NAME of an owner; the resource is deleted with its last owner")
	outputFlag(cmd)
	return cmd
}

// put creates or replaces a resource. Without a body it only creates: a missing body must not empty an existing resource.
func put(ctx context.Context, c resourcev1.ResourceServiceClient, r *resourcev1.Resource) (*resourcev1.Resource, error) {
	if r.Body == nil {
		return c.CreateResource(ctx, &resourcev1.CreateResourceRequest{Resource: r})
	}
	return c.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
}

func readOwners(texts []string) ([]*resourcev1.OwnerReference, error) {
	var out []*resourcev1.OwnerReference
	for _, text := range texts {
		kind, name, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--owner %s: want KIND=NAME, such as Project=//iam.example.com/us-west2/projects/acme", text)
		}
		out = append(out, &resourcev1.OwnerReference{Kind: kind, Name: name})
	}
	return out, nil
}

// readBody returns nil when there is no body, or one without a document.
func readBody(cmd *cobra.Command, inline []string, file string) (*structpb.Struct, error) {
	var raw []byte
	var err error
	switch {
	case len(inline) > 0 && file != "":
		return nil, errors.New("give the body as an argument or in a file, not both")
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
	documents := yaml.NewDecoder(bytes.NewReader(raw))
	if err := documents.Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the body is neither JSON nor YAML with fields: %w", err)
	}
	if err := documents.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the body has more than one YAML document; a resource has one")
	}
	if body == nil {
		return nil, nil //nolint:nilnil // no body, which differs from an empty body
	}
	if err := exact("body", body); err != nil {
		return nil, err
	}
	s, err := structpb.NewStruct(body)
	if err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	// Protobuf's JSON would write NaN as a string; encoding/json refuses it.
	if _, err := json.Marshal(body); err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	return s, nil
}

// exact returns an error for a value that JSON does not represent exactly.
func exact(at string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			if err := exact(at+"."+key, field); err != nil {
				return err
			}
		}
	case []any:
		for i, element := range v {
			if err := exact(fmt.Sprintf("%s[%d]", at, i), element); err != nil {
				return err
			}
		}
	case int, int64, uint64:
		if text := fmt.Sprint(v); strconv.FormatFloat(toFloat(v), 'f', -1, 64) != text {
			return fmt.Errorf("field %s: %s has more digits than a number can hold; write it as a string in quotes", at, text)
		}
	case time.Time:
		return fmt.Errorf("field %s: YAML parses it as a date; write it as a string in quotes", at)
	}
	return nil
}

func toFloat(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return 0
}

// deletion is a delete as its flags describe it.
type deletion struct {
	timeout, wait time.Duration
	dryRun        bool
}

func newDelete() *cobra.Command {
	var d deletion
	cmd := resourceCommand("delete NAME", "Delete a resource with everything that cascades", `  db-controller delete //iam.example.com/us-west2/projects/acme --wait 10s
  db-controller delete //iam.example.com/us-west2/projects/acme --timeout 30s`, ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if d.timeout < 0 {
				return fmt.Errorf("--timeout %s: want more than 0s", d.timeout)
			}
			if d.dryRun {
				return printPlan(cmd, c, args[0])
			}
			return d.run(cmd, c, args[0])
		})
	cmd.Flags().DurationVar(&d.timeout, "timeout", 0, "how long to wait for the answers of deployments and for undecided references (default: the limit of the deployment, 5s)")
	cmd.Flags().DurationVar(&d.wait, "wait", 0, "how long to wait until the resource is removed")
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only show the effect, as plan does")
	return cmd
}

func (d *deletion) run(cmd *cobra.Command, c *client.Client, full string) error {
	name, resources, err := c.Named(cmd.Context(), full)
	if err != nil {
		return err
	}
	answer, err := d.send(cmd.Context(), resources, name)
	if err != nil {
		return plain(err)
	}
	for _, u := range answer.GetUnasked() {
		cmd.PrintErrf("note: %s did not answer whether its resources block the cascade: %s\n", u.GetDeployment(), u.GetMessage())
	}
	if answer.GetRemoved() {
		cmd.Println(name, "deleted")
		return nil
	}
	if d.wait > 0 {
		began := time.Now()
		if gone, err := d.waitGone(cmd.Context(), c, name, answer.GetResource().GetUid()); err != nil {
			return plain(err)
		} else if gone {
			cmd.Printf("%s deleted, after %s\n", name, time.Since(began).Round(time.Millisecond))
			return nil
		}
	}
	printDeleting(cmd, resources, name)
	if d.wait > 0 {
		return fmt.Errorf("%s still exists after %s; its deletion continues", name, d.wait)
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

// waitGone reports whether the resource was removed before the wait ended.
func (d *deletion) waitGone(ctx context.Context, c *client.Client, name schema.FullName, uid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, d.wait)
	defer cancel()
	err := c.WaitGone(ctx, name, uid)
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// printDeleting shows what a resource in DELETING waits for.
func printDeleting(cmd *cobra.Command, resources resourcev1.ResourceServiceClient, name schema.FullName) {
	cmd.Println(name, "is being deleted")
	r, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{Name: name.Name})
	if err != nil {
		return
	}
	for _, condition := range r.GetConditions() {
		cmd.Printf("  %s %s\n", condition.GetType(), condition.GetMessage())
	}
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
				printEvent(cmd, msg)
			}
		})
	cmd.Flags().StringVar(&kind, "kind", "", "only this kind")
	cmd.Flags().StringVar(&filter, "filter", "", "only resources that match a filter (AIP-160)")
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
		cmd.Printf("%s  -- end of the snapshot, changes follow --\n", at)
	}
}

func stateWord(r *resourcev1.Resource) string {
	return strings.TrimPrefix(r.GetState().String(), "STATE_")
}

func outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringP("output", "o", "table", "table, json or yaml")
}

func checkOutput(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("output")
	if flag == nil || slices.Contains([]string{"table", "json", "yaml"}, flag.Value.String()) {
		return nil
	}
	return fmt.Errorf("--output %s: want table, json or yaml", flag.Value)
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
	return checkOutput(cmd)
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
