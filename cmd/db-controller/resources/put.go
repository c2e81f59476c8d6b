package resources

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
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// putting is a put as its flags describe it.
type putting struct {
	file   string
	owners []string
	set    []string
	create bool
}

// NewPut returns the command put.
func NewPut() *cobra.Command {
	var p putting
	cmd := cli.NewDeploymentCommand("put NAME [BODY]",
		"Create or replace resources; the body is JSON or YAML, in the argument or a file; without a body it creates, and does not replace",
		`  db-controller put //iam.example.com/us-west2/projects/acme '{"title": "Acme"}'
  db-controller put //iam.example.com/us-west2/projects/acme --set title=Acme --set quota.devices=5
  db-controller put //devices.example.com/eastus2/projects/acme/devices/d1 -f device.yaml
  db-controller put //devices.example.com/eastus2/fleets/f --owner Project=//iam.example.com/us-west2/projects/acme
  db-controller put -f exported.yaml --create`, p.checkArguments,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 0 {
				return p.all(cmd, c)
			}
			return p.one(cmd, c, args)
		})
	cli.NamesToo(cmd)
	cmd.Use = "put NAME [BODY] | put -f FILE"
	cmd.Long = `Create or replace resources.

A put replaces everything: a field that the body lacks is dropped, and without --owner the owners are; "patch" changes some fields. Without a
body, also with --set alone, a put only creates.

Without NAME, the file has resources as "get -o yaml" and "list -o json" print them: a full name (or a name and a deployment), body, labels and ownerReferences.
Those of one deployment that follow one another are written in one transaction, and may refer to one another in any order. A resource with a revision is written
only while it has this revision. blockDeletion is set again, a status is stored where there is none, and a resource that is in DELETING in the file is refused.

With --create uids, revisions and the uids of owners are left out, as after a loss. It is refused for resources that exist.`
	cmd.Flags().StringVarP(&p.file, "file", "f", "", "file with the body, or with resources; - for standard input")
	cmd.Flags().BoolVar(&p.create, "create", false,
		"make the resources of the file anew, whatever uids and revisions they had")
	cmd.Flags().StringArrayVar(&p.set, "set", nil,
		"PATH=VALUE of a field of the given body, or of the new resource, such as quota.devices=5; the value is YAML (patch changes an existing one)")
	cmd.Flags().StringArrayVar(&p.owners, "owner", nil,
		"KIND=NAME of an owner; the resource is deleted with its last owner")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

func (p *putting) checkArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && p.create {
		return errors.New("--create is for a file with resources: put -f FILE --create")
	}
	if len(args) > 0 {
		return cobra.MatchAll(cobra.MaximumNArgs(2), func(cmd *cobra.Command, args []string) error {
			return ofResources(cobra.ExactArgs(1))(cmd, args[:1])
		})(cmd, args)
	}
	file, _ := cmd.Flags().GetString("file")
	if file == "" {
		return errors.New("give the full name of a resource, or a file with resources by -f")
	}
	for _, flag := range []string{"set", "owner"} {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s needs the full name of a resource", flag)
		}
	}
	return nil
}

func (p *putting) one(cmd *cobra.Command, c *client.Client, args []string) error {
	body, err := readBody(cmd, "body", args[1:], p.file)
	partly := body == nil // --set alone gives a part of the body
	if err == nil && len(p.set) > 0 {
		body, err = setFields(body, p.set)
	}
	if err != nil {
		return cli.Usage("%w", err)
	}
	references, err := ReadOwners(p.owners)
	if err != nil {
		return err
	}
	name, resources, err := direct.Named(cmd.Context(), c, args[0])
	if err != nil {
		return err
	}
	if err := checkOwnerKinds(cmd.Context(), c, name, references); err != nil {
		return err
	}
	r, err := put(cmd.Context(), resources, &resourcev1.Resource{
		Name: name.Name, Body: body,
		OwnerReferences: references,
	}, partly)
	if status.Code(err) == codes.AlreadyExists && len(p.set) > 0 {
		return cli.WithCode(cli.Refused,
			fmt.Errorf(
				"%s exists, and a put with --set alone would drop its other fields: change fields with patch %s --set …, or give its whole body", name, name))
	}
	if status.Code(err) == codes.AlreadyExists {
		return cli.WithCode(cli.Refused,
			fmt.Errorf("%s exists, and a put without a body would empty it: give its whole body, or '{}' for none",
				name))
	}
	if err != nil {
		return cli.PlainOf(name, err)
	}
	return show(cmd, []*resourcev1.Resource{r}, false)
}

// put creates or replaces a resource. Without a whole body it only creates: a replacement would drop the
// fields that the caller did not name.
func put(ctx context.Context, c resourcev1.ResourceServiceClient, r *resourcev1.Resource,
	creates bool,
) (*resourcev1.Resource, error) {
	if creates {
		return c.CreateResource(ctx, &resourcev1.CreateResourceRequest{Resource: r})
	}
	return c.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
}

// NewPatch returns the command patch.
func NewPatch() *cobra.Command {
	var set, unset, labels []string
	cmd := cli.NewDeploymentCommand("patch NAME", "Change some fields of a resource, and leave the others",
		`  db-controller patch //iam.example.com/us-west2/projects/acme --set title=Acme --set quota.devices=5 --unset note
  db-controller patch //devices.example.com/eastus2/devices/d --unset 'policies[0]' --unset 'groups[=//iam.example.com/us-west2/groups/g]'
  db-controller patch //iam.example.com/us-west2/projects/acme --label team=blue --label stage=`, ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			update, elements, err := patchOf(set, unset, labels)
			if err != nil {
				return cli.Usage("%w", err)
			}
			name, resources, err := direct.Named(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			update.Resource.Name = name.Name
			r, err := withoutElements(cmd.Context(), resources, update, elements)
			if err != nil {
				return cli.PlainOf(name, err)
			}
			return show(cmd, []*resourcev1.Resource{r}, false)
		})
	cli.NamesToo(cmd)
	cmd.Flags().StringArrayVar(&set, "set", nil,
		"PATH=VALUE of a field of the body, such as quota.devices=5; the value is YAML")
	cmd.Flags().StringArrayVar(&unset, "unset", nil,
		"PATH of a field of the body that is removed, or of an element of a list: PATH[INDEX] or PATH[=VALUE]")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "KEY=VALUE of a label; without a value the label is removed")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

// patchOf returns an update of the named fields only, and the elements of lists that it removes.
func patchOf(set, unset, labels []string) (*resourcev1.UpdateResourceRequest, []element, error) {
	body, err := setFields(nil, set)
	if err != nil {
		return nil, nil, err
	}
	var elements []element
	update := &resourcev1.UpdateResourceRequest{
		Resource:   &resourcev1.Resource{Body: body, Labels: map[string]string{}},
		UpdateMask: &fieldmaskpb.FieldMask{},
	}
	for _, s := range set {
		path, _, _ := strings.Cut(s, "=")
		update.UpdateMask.Paths = append(update.UpdateMask.Paths, "body."+path)
	}
	for _, path := range unset {
		if strings.Contains(path, "[") {
			e, err := parseElement(path)
			if err != nil {
				return nil, nil, fmt.Errorf("--unset %s: %w", path, err)
			}
			elements = append(elements, e)
			continue
		}
		if path == "" || strings.Contains(path, "=") {
			return nil, nil, fmt.Errorf("--unset %s: want the PATH of a field, such as quota.devices", path)
		}
		update.UpdateMask.Paths = append(update.UpdateMask.Paths, "body."+path)
	}
	for _, l := range labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			return nil, nil, fmt.Errorf("--label %s: want KEY=VALUE, or KEY= to remove the label", l)
		}
		if value != "" {
			update.Resource.Labels[key] = value
		}
		update.UpdateMask.Paths = append(update.UpdateMask.Paths, "labels."+key)
	}
	if len(update.UpdateMask.Paths)+len(elements) == 0 {
		return nil, nil, errors.New("nothing to change: give --set PATH=VALUE, --unset PATH or --label KEY=VALUE")
	}
	return update, elements, nil
}

// setFields sets PATH=VALUE in a body; nil is an empty body.
func setFields(body *structpb.Struct, set []string) (*structpb.Struct, error) {
	fields := body.AsMap()
	for _, s := range set {
		path, text, ok := strings.Cut(s, "=")
		if !ok || path == "" {
			return nil, fmt.Errorf("--set %s: want PATH=VALUE, such as quota.devices=5", s)
		}
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
		if err := exact("body."+path, value); err != nil {
			return nil, err
		}
		if err := setField(fields, strings.Split(path, "."), value); err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
	}
	return toStruct("body", fields)
}

func setField(fields map[string]any, path []string, value any) error {
	for i, key := range path[:len(path)-1] {
		inner, exists := fields[key]
		if !exists {
			inner = map[string]any{}
			fields[key] = inner
		}
		below, ok := inner.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not a field with fields", strings.Join(path[:i+1], "."))
		}
		fields = below
	}
	fields[path[len(path)-1]] = value
	return nil
}

// ReadOwners parses owners as they are written after --owner.
func ReadOwners(texts []string) ([]*resourcev1.OwnerReference, error) {
	var out []*resourcev1.OwnerReference
	for _, text := range texts {
		kind, name, ok := strings.Cut(text, "=")
		if !ok {
			return nil, cli.Usage(
				"--owner %s: want KIND=NAME, such as Project=//iam.example.com/us-west2/projects/acme", text)
		}
		out = append(out, &resourcev1.OwnerReference{Kind: kind, Name: name})
	}
	return out, nil
}

// checkOwnerKinds refuses a kind that no described version of the owner's service has: its deployment cannot
// say whether a later version has it. Without an environment nothing is known.
func checkOwnerKinds(ctx context.Context, c *client.Client, of schema.FullName,
	owners []*resourcev1.OwnerReference,
) error {
	if len(owners) == 0 {
		return nil
	}
	env, err := c.Environment(ctx)
	if err != nil {
		return nil //nolint:nilerr // the deployment decides
	}
	for _, o := range owners {
		name, err := schema.ResolveName(of.Deployment, o.GetName())
		if err != nil {
			continue
		}
		var known []string
		for _, d := range env.Services {
			for _, k := range d.Kinds {
				if d.Service == name.Deployment.Service {
					known = append(known, k.Name)
				}
			}
		}
		if len(known) > 0 && !slices.Contains(known, o.GetKind()) {
			return cli.WithCode(cli.Refused, fmt.Errorf("--owner: no version of %s has a kind %s%s",
				name.Deployment.Service, o.GetKind(), cli.DidYouMean(o.GetKind(), known)))
		}
	}
	return nil
}

// readInput reads a file, or the standard input for -.
func readInput(cmd *cobra.Command, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, cli.WithCode(cli.Failed, err)
	}
	return raw, nil
}

// readBody returns nil when there is no body, or one without a document.
func readBody(cmd *cobra.Command, what string, inline []string, file string) (*structpb.Struct, error) {
	var raw []byte
	var err error
	switch {
	case len(inline) > 0 && file != "":
		return nil, fmt.Errorf("give the %s as an argument or in a file, not both", what)
	case len(inline) > 0:
		raw = []byte(inline[0])
	case file != "":
		raw, err = readInput(cmd, file)
	}
	if err != nil {
		return nil, err
	}
	var body map[string]any
	documents := yaml.NewDecoder(bytes.NewReader(raw))
	if err := documents.Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the %s is neither JSON nor YAML with fields: %w", what, err)
	}
	if err := documents.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf(
			"the %s has more than one YAML document; a resource has one (several resources: put -f FILE without a name)", what)
	}
	if body == nil {
		return nil, nil //nolint:nilnil // no body, which differs from an empty body
	}
	return toStruct(what, body)
}

// toStruct converts a body, or a status. It returns an error for a value that JSON does not represent
// exactly.
func toStruct(what string, body map[string]any) (*structpb.Struct, error) {
	if err := exact(what, body); err != nil {
		return nil, err
	}
	s, err := structpb.NewStruct(body)
	if err != nil {
		return nil, fmt.Errorf("the %s: %w", what, err)
	}
	// Protobuf's JSON would write NaN as a string; encoding/json refuses it.
	if _, err := json.Marshal(body); err != nil {
		return nil, fmt.Errorf("the %s: %w", what, err)
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
			return fmt.Errorf("field %s: %s has more digits than a number can hold; write it as a string in quotes", at,
				text)
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
