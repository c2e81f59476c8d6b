package resources

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// keeper is a resource with a field that names another one and does not act upon its deletion
// (ALLOW_DANGLING): it keeps the name.
type keeper struct {
	Holder string `json:"holder"`
	Kind   string `json:"kind"`
	Path   string `json:"path"`
}

// keepersOf is the number of resources of a plan whose keepers are asked for.
const keepersOf = 20

// keepersTimeout bounds the search for keepers in one deployment.
const keepersTimeout = 30 * time.Second

// keeping is a kind of a deployment whose fields may keep names of another kind.
type keeping struct {
	at    schema.DeploymentID
	model *schema.KindModel
	paths []string
}

// keepingKinds finds the kinds with fields that may keep a name.
func keepingKinds(env *schema.Environment, name schema.FullName) (found []keeping) {
	kinds := schema.NewKinds(env.Services)
	home, _ := env.Deployment(name.Deployment)
	roots := kinds.Of(home.Service, home.Version, name.Name)
	for _, d := range env.Deployments {
		m, err := env.Model(d.DeploymentID)
		if err != nil {
			continue // it has no version yet
		}
		for _, k := range m.Descriptor.Kinds {
			var paths []string
			for _, r := range k.References {
				if r.Behaviour == schema.AllowDangling && k.Table == (schema.TableName{}) &&
					slices.ContainsFunc(r.Targets, func(target string) bool {
						id, err := schema.ParseKindID(target)
						if err != nil {
							id = schema.KindID{Service: d.Service, Kind: target}
						}
						return slices.Contains(roots, kinds.Root(id))
					}) {
					paths = append(paths, r.Path)
				}
			}
			if km, err := m.Kind(k.Name); err == nil && len(paths) > 0 {
				found = append(found, keeping{d.DeploymentID, km, paths})
			}
		}
	}
	return found
}

// keepersBefore finds what keeps the name of a resource that exists, by the stored references.
func keepersBefore(ctx context.Context, c *client.Client, name schema.FullName) ([]keeper, error) {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	kinds := keepingKinds(env, name)
	if len(kinds) == 0 {
		return nil, nil
	}
	r, err := c.Get(ctx, name.String())
	if err != nil {
		return nil, err
	}
	var found []keeper
	var failed error
	asked := map[schema.DeploymentID]bool{}
	for _, k := range kinds {
		if asked[k.at] {
			continue
		}
		asked[k.at] = true
		at, err := c.Resources(ctx, k.at)
		for token := ""; err == nil; {
			var page *resourcev1.ListReferrersResponse
			page, err = at.ListReferrers(ctx, &resourcev1.ListReferrersRequest{
				Target:    name.String(),
				TargetUid: r.GetUid(), PageSize: 1000, PageToken: token, Latest: true,
			})
			for _, one := range page.GetReferrers() {
				if schema.Behaviour(one.GetBehaviour()) == schema.AllowDangling {
					found = append(found, keeper{one.GetHolder(), one.GetKind(), one.GetPath()})
				}
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("what keeps the name in %s is not known: %w", k.at, cli.Plain(err)))
		}
	}
	return found, failed
}

// filterable is a path that filters can name.
var filterable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// filter selects resources of which a field is a name, full or relative; empty when the paths are in lists or
// maps, so that each body has to be read.
func (k keeping) filter(name schema.FullName) string {
	var terms []string
	for _, path := range k.paths {
		if !filterable.MatchString(path) {
			return ""
		}
		for _, value := range []string{name.String(), name.Name} {
			terms = append(terms, "body."+path+" = "+strconv.Quote(strings.ReplaceAll(value, "*", `\*`)))
		}
	}
	return strings.Join(terms, " OR ")
}

// keepersAfter finds what keeps the name of a resource that is removed, in the bodies: the references are
// gone.
func keepersAfter(ctx context.Context, c *client.Client, name schema.FullName) (found []keeper, failed error) {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range keepingKinds(env, name) {
		ctx, cancel := context.WithTimeout(ctx, keepersTimeout)
		for r, err := range c.List(ctx, k.at, client.Query{Kind: k.model.ID.Kind, Filter: k.filter(name)}) {
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("what keeps the name in %s is not known: %w", k.at,
					cli.Plain(err)))
				break
			}
			values, err := k.model.References(k.at, r.GetName(), r.GetBody().AsMap())
			if err != nil {
				continue // it was written by another version
			}
			for _, v := range values {
				if v.Behaviour == schema.AllowDangling && v.Target == name {
					found = append(found, keeper{cli.FullName(r), r.GetKind(), v.Path})
				}
			}
		}
		cancel()
	}
	return found, failed
}

// maxKeepers is the number of keepers that people see.
const maxKeepers = 20

func printKeepers(out cli.Printer, found []keeper) {
	for _, k := range found[:min(len(found), maxKeepers)] {
		out.Line("keeps      %s (%s) keeps the name (ALLOW_DANGLING)", k.Holder, k.Path)
	}
	if more := len(found) - maxKeepers; more > 0 {
		out.Line("and %d more keep the name: -o json lists all", more)
	}
}

// purged is what purge has done.
type purged struct {
	Name     string `json:"name"`
	Changes  int64  `json:"changes"`
	Requests int64  `json:"requests"`
}

// NewPurge returns the command purge.
func NewPurge() *cobra.Command {
	cmd := cli.NewDeploymentCommand("purge NAME",
		"Take what a removed resource contained out of the recent changes and out of the answers of requests, at once, for operators",
		"  db-controller purge //iam.example.com/us-west2/users/ada", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return err
			}
			admin, err := c.Admin(cmd.Context(), name.Deployment)
			if err != nil {
				return err
			}
			answer, err := admin.Purge(cmd.Context(), &adminv1.PurgeRequest{Name: name.Name})
			if err != nil {
				return cli.PlainOf(name, err)
			}
			out := cli.PrinterOf(cmd)
			out.Line("%s: %s purged, and %s of requests", name, cli.Plural(answer.GetChanges(), "change"),
				cli.Plural(answer.GetRequests(), "answer"))
			return out.Document(purged{name.String(), answer.GetChanges(), answer.GetRequests()})
		})
	cmd.Long = `Take the bodies, labels, owners and statuses of the removed resources of a name out of the database of their deployment, at once: without it the changes from
which watches are resumed have them for --changes-kept (24 hours by default), the answers that repeated requests get for 24 hours. It is refused while there is a resource of the name.

A watch that is resumed delivers the removal without the changes before it. The records of removals stay, which have the name and no body. It does not reach the
log and the backups of PostgreSQL, dead rows before VACUUM, and what other resources say of this one: "plan NAME" and "removals --root NAME" list what keeps the name.`
	return cmd
}
