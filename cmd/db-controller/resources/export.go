package resources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// exported is the content of a file from which put makes resources anew.
type exported struct {
	names     []schema.FullName // of the resources that a delete removes, targets before their holders
	resources map[schema.FullName]*resourcev1.Resource
	unset     []string // a line for each group of resources that lose a value
}

// mostExported is the number of resources that one plan names.
const mostExported = 10_000

// exportTo writes what deletes of names remove to a new file, and limits the deletes to it.
func (d *deletion) exportTo(cmd *cobra.Command, c *client.Client, names []string) error {
	all, err := selections(names)
	if err != nil {
		return err
	}
	if len(all) > 1 {
		return cli.Usage("--export: want at most %d names of one deployment", most)
	}
	e, err := export(cmd.Context(), c, all[0].names, d.maxRemovals)
	if err != nil {
		return err
	}
	if d.maxRemovals <= 0 || d.maxRemovals > int64(len(e.names)) {
		d.maxRemovals = int64(len(e.names)) // more have joined since
	}
	text, err := e.text(names)
	if err != nil {
		return err
	}
	if err := writeNew(d.export, text); err != nil {
		return err
	}
	cmd.PrintErrf("%s written to %s: put -f %[2]s --create makes them anew\n", cli.Plural(len(e.names), "resource"),
		d.export)
	return nil
}

// writeNew writes a file that does not exist, which only its owner can read, to the disk.
func writeNew(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return cli.Usage("--export %s: the file exists, and nothing is deleted: name a new one", path)
	}
	if err != nil {
		return cli.Usage("--export: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("--export: nothing is deleted: %w", err)
	}
	return nil
}

// export reads the resources that a delete of names, of one deployment, removes. It fails unless it knows all
// of them.
func export(ctx context.Context, c *client.Client, names []schema.FullName, maxRemovals int64) (*exported, error) {
	plan, err := planWith(ctx, c, names, mostExported, maxRemovals)
	if err != nil {
		return nil, err
	}
	attached, err := attachedKinds(ctx, c)
	if err != nil {
		return nil, err
	}
	const none = "nothing is deleted, and nothing is exported"
	switch {
	case len(plan.GetUnasked()) > 0:
		return nil, cli.WithCode(cli.Unavailable, fmt.Errorf("%s: %s did not answer what the delete removes there: %s",
			none, plan.GetUnasked()[0].GetDeployment(), plan.GetUnasked()[0].GetMessage()))
	case plan.GetTruncated() || plan.GetUncounted():
		return nil, cli.WithCode(cli.Refused,
			fmt.Errorf(
				"%s: the delete removes %d resources or more, which one plan does not name: delete parts of them first",
				none, mostExported))
	case plan.GetRefusal() != "":
		return nil, cli.WithCode(cli.Refused, fmt.Errorf("%s: %s", none, plan.GetRefusal()))
	}
	e := &exported{resources: map[schema.FullName]*resourcev1.Resource{}}
	seen := map[schema.FullName]bool{}
	for _, g := range plan.GetGroups() {
		if g.GetUnset() {
			e.unset = append(e.unset, fmt.Sprintf("%s of %s (%s): %s", g.GetPath(), g.GetKind(), g.GetDeployment(),
				strings.Join(g.GetSamples(), ", ")))
			continue
		}
		for _, text := range g.GetSamples() {
			name, err := schema.ParseFullName(text)
			if err != nil {
				return nil, err
			}
			if table := attached(name); table != "" {
				return nil, cli.WithCode(cli.Refused,
					fmt.Errorf("nothing is deleted: %s is a row of table %s: keep its table with pg_dump", name, table))
			}
			if !seen[name] {
				seen[name], e.names = true, append(e.names, name)
			}
		}
	}
	if err := e.read(ctx, c); err != nil {
		return nil, err
	}
	e.sort()
	return e, nil
}

// attachedKinds returns a function that names the table of a resource that is a row; empty for others.
func attachedKinds(ctx context.Context, c *client.Client) (func(name schema.FullName) (table string), error) {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, cli.Plain(err)
	}
	models := map[schema.DeploymentID]*schema.Model{}
	return func(name schema.FullName) string {
		m, known := models[name.Deployment]
		if !known {
			m, _ = env.Model(name.Deployment) // nil: it has no version
			models[name.Deployment] = m
		}
		if m == nil {
			return ""
		}
		if kind, err := m.KindOf(name.Name); err == nil && kind.Table != nil {
			return kind.Table.Name.String()
		}
		return ""
	}, nil
}

// read reads the resources, a few hundred at a time.
func (e *exported) read(ctx context.Context, c *client.Client) error {
	by := map[schema.DeploymentID][]schema.FullName{}
	for _, name := range e.names {
		by[name.Deployment] = append(by[name.Deployment], name)
	}
	for id, names := range by {
		resources, err := c.Resources(ctx, id)
		if err != nil {
			return cli.Plain(err)
		}
		for page := range slices.Chunk(names, 200) {
			if err := e.readPage(ctx, resources, page); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *exported) readPage(ctx context.Context, resources resourcev1.ResourceServiceClient,
	page []schema.FullName,
) error {
	req := &resourcev1.BatchGetResourcesRequest{Latest: true}
	for _, name := range page {
		req.Names = append(req.Names, name.Name)
	}
	answer, err := resources.BatchGetResources(ctx, req)
	switch {
	case status.Code(err) == codes.ResourceExhausted && len(page) > 1: // their bodies are large
		return errors.Join(e.readPage(ctx, resources, page[:len(page)/2]),
			e.readPage(ctx, resources, page[len(page)/2:]))
	case status.Code(err) == codes.NotFound:
		return cli.WithCode(cli.Unavailable,
			fmt.Errorf("nothing is deleted: a resource of the plan has gone meanwhile: try again: %w", cli.Plain(err)))
	case err != nil:
		return cli.Plain(err)
	}
	for i, r := range answer.GetResources() {
		if r.GetState() == resourcev1.Resource_STATE_DELETING {
			return cli.WithCode(cli.Refused, fmt.Errorf("nothing is deleted: %s is being deleted already", page[i]))
		}
		e.resources[page[i]] = r
	}
	return nil
}

// sort puts the targets of references, parents and owners before the resources that name them. Resources of
// one deployment, which are written in one transaction in any order, stay beside one another as far as that
// allows. Resources of a cycle keep their order.
func (e *exported) sort() {
	needs, left := e.needs(), e.names
	done := map[schema.FullName]bool{}
	e.names = nil
	for len(left) > 0 {
		run := left[:1] // of a cycle over deployments
		for _, d := range deploymentsOf(left) {
			if free := freeAt(d, left, needs, done); len(free) > 0 {
				run = free
				break
			}
		}
		for _, name := range run {
			done[name] = true
		}
		e.names = append(e.names, run...)
		left = slices.DeleteFunc(slices.Clone(left), func(name schema.FullName) bool { return done[name] })
	}
}

// freeAt returns the resources of a deployment that need nothing elsewhere that is not done, by themselves
// and by the resources of the deployment that they need.
func freeAt(at schema.DeploymentID, left []schema.FullName, needs map[schema.FullName][]schema.FullName,
	done map[schema.FullName]bool,
) []schema.FullName {
	free := map[schema.FullName]bool{}
	for _, name := range left {
		free[name] = name.Deployment == at
	}
	for changed := true; changed; {
		changed = false
		for name, ok := range free {
			if ok && slices.ContainsFunc(needs[name], func(target schema.FullName) bool {
				return !done[target] && !free[target]
			}) {
				free[name], changed = false, true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(left), func(name schema.FullName) bool { return !free[name] })
}

func deploymentsOf(names []schema.FullName) (out []schema.DeploymentID) {
	for _, name := range names {
		if !slices.Contains(out, name.Deployment) {
			out = append(out, name.Deployment)
		}
	}
	return out
}

// needs returns for each resource the other exported ones that it names: in a string of its body, as an
// owner, or as the beginning of its name. A relative name in a body can be of another service, in the same
// region.
func (e *exported) needs() map[schema.FullName][]schema.FullName {
	by := map[string][]schema.FullName{}
	for _, name := range e.names {
		by[name.Name] = append(by[name.Name], name)
	}
	out := map[schema.FullName][]schema.FullName{}
	for _, name := range e.names {
		add := func(text string) {
			full, err := schema.ResolveName(name.Deployment, text)
			if err != nil {
				return
			}
			for _, other := range by[full.Name] {
				meant := other == full || !strings.HasPrefix(text, "//") &&
					other.Deployment.Region == name.Deployment.Region
				if meant && other != name && !slices.Contains(out[name], other) {
					out[name] = append(out[name], other)
				}
			}
		}
		r := e.resources[name]
		eachText(r.GetBody().AsMap(), add)
		for _, o := range r.GetOwnerReferences() {
			add(o.GetName())
		}
		for i := range name.Name {
			if name.Name[i] == '/' {
				add(name.Name[:i])
			}
		}
	}
	return out
}

// eachText calls fn with the strings of a JSON value.
func eachText(v any, fn func(string)) {
	switch v := v.(type) {
	case string:
		fn(v)
	case []any:
		for _, one := range v {
			eachText(one, fn)
		}
	case map[string]any:
		for _, one := range v {
			eachText(one, fn)
		}
	}
}

// text returns the file.
func (e *exported) text(roots []string) ([]byte, error) {
	var out bytes.Buffer
	_, _ = fmt.Fprintf(&out,
		"# Removed on %s by: db-controller delete %s\n# db-controller put -f FILE --create makes these resources anew, with new uids.\n", cli.At(time.Now()), strings.Join(roots, " "))
	for _, line := range e.unset {
		_, _ = fmt.Fprintf(&out, "# Has lost its value, and is not in this file: %s\n", line)
	}
	for _, name := range e.names {
		if err := cli.WriteYAML(&out, cli.Message(e.resources[name])); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
