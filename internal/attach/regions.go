package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// checkRegions finds references to a service that runs in several regions without a declared region: by
// default their targets are in the region of the rows, and targets in another region do not exist for them.
func checkRegions(ctx context.Context, tx pgx.Tx, model *schema.Model, k *schema.Kind) ([]Finding, error) {
	c := &checker{kind: k}
	var env *schema.Environment
	for i := range k.References {
		r := &k.References[i]
		if r.Region != (schema.TargetRegion{}) {
			continue
		}
		for _, target := range r.Targets {
			id, err := model.Descriptor.KindID(target)
			if err != nil || id.Service == model.Descriptor.Service {
				continue
			}
			if env == nil {
				if env, err = environment(ctx, tx); err != nil {
					return nil, err
				}
			}
			if regions := regionsOf(env, id.Service); len(regions) > 1 {
				c.refuse("",
					"%s: %s runs in %s: declare the region of the targets: region: same (that of the rows), a region, or {column: …}",
					strings.Join(r.Columns, ", "), id.Service, strings.Join(regions, ", "))
			}
		}
	}
	return c.out, nil
}

// environment returns the environment that the deployment received last; an empty one before.
func environment(ctx context.Context, tx pgx.Tx) (*schema.Environment, error) {
	var raw []byte
	if err := tx.QueryRow(ctx, `SELECT environment FROM dbcontroller.meta`).Scan(&raw); err != nil {
		return nil, fmt.Errorf("read the environment of the deployment: %w", err)
	}
	stored := &registryv1.Environment{}
	if err := proto.Unmarshal(raw, stored); err != nil {
		return nil, fmt.Errorf("read the environment of the deployment: %w", err)
	}
	return wire.Environment(stored), nil
}

func regionsOf(env *schema.Environment, service string) (regions []string) {
	for _, d := range env.Deployments {
		if d.Service == service {
			regions = append(regions, d.Region)
		}
	}
	slices.Sort(regions)
	return regions
}
