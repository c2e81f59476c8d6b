package server

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// pattern is a name pattern of a kind in a deployment.
type pattern struct {
	deployment    schema.DeploymentID
	kind, pattern string
}

type patterns map[pattern]bool

func patternsOf(unused []*registryv1.UnusedPattern) patterns {
	out := patterns{}
	for _, u := range unused {
		out[pattern{
			schema.DeploymentID{Service: u.GetService(), Region: u.GetRegion()}, u.GetKind(), u.GetPattern(),
		}] = true
	}
	return out
}

// keepsPatterns returns Problems when the next version of a deployment drops a pattern that is not in unused:
// the deployment may store resources whose names fit it.
func keepsPatterns(ctx context.Context, tx pgx.Tx, before, after *schema.Environment, unused patterns) error {
	var removed map[schema.DeploymentID]*schema.Environment
	var problems schema.Problems
	for _, d := range after.Deployments {
		if before.SameVersion(after, d.DeploymentID) {
			continue
		}
		if removed == nil {
			var err error
			if removed, err = readRemoved(ctx, tx); err != nil {
				return err
			}
		}
		found, err := drops(before, after, d.DeploymentID, removed[d.DeploymentID], unused)
		if err != nil {
			return err
		}
		problems = append(problems, found...)
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// drops returns a problem for each pattern that a deployment loses. A deployment that never ran since it was
// removed still has the resources of the version that it ran then.
func drops(before, after *schema.Environment, id schema.DeploymentID, removed *schema.Environment,
	unused patterns,
) (problems schema.Problems, err error) {
	remedy := ""
	if was := find(before, id); removed != nil && (was == nil || was.Address == "" && was.Generation == 0) {
		before = before.Over(removed)
		remedy = fmt.Sprintf("; it ran %s when it was removed: with that version it can be asked",
			removed.Services[0].ServiceVersion)
	}
	dropped, err := before.Dropped(after, id)
	for _, p := range dropped {
		if unused[pattern{id, p.Kind, p.Pattern.String()}] {
			continue
		}
		problems = append(problems, schema.Problem{
			Pos: p.Pos,
			Message: fmt.Sprintf("%s has no pattern %s of kind %s, and %s may store such resources", p.By, p.Pattern,
				p.Kind, id),
			Remedy: "name it in patterns_unused, as the commands apply and set-version do after they have asked the deployment, " +
				"or describe the version with patterns_dropped: keep" + remedy,
		})
	}
	return problems, err
}

const selectRemovedSQL = `SELECT service, region, version, descriptor FROM dbcontroller_registry.removed`

// readRemoved returns the deployments that were removed, each with the version that it ran then.
func readRemoved(ctx context.Context, tx pgx.Tx) (map[schema.DeploymentID]*schema.Environment, error) {
	rows, err := tx.Query(ctx, selectRemovedSQL)
	if err != nil {
		return nil, err
	}
	removed := map[schema.DeploymentID]*schema.Environment{}
	d, raw := schema.Deployment{Generation: 1}, []byte(nil)
	_, err = pgx.ForEachRow(rows, []any{&d.Service, &d.Region, &d.Version, &raw}, func() error {
		descriptor := &schemav1.ServiceDescriptor{}
		if err := proto.Unmarshal(raw, descriptor); err != nil {
			return err
		}
		removed[d.DeploymentID] = &schema.Environment{
			Services:    []*schema.Descriptor{wire.Descriptor(descriptor)},
			Deployments: []schema.Deployment{d},
		}
		return nil
	})
	return removed, err
}
