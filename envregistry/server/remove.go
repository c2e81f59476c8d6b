package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

const (
	removeRegionSQL = `
WITH old AS (
    DELETE FROM dbcontroller_registry.region WHERE name = $1 RETURNING name
)
INSERT INTO dbcontroller_registry.change (revision, gone, region) SELECT m.revision, true, old.name FROM old, dbcontroller_registry.meta m`

	removeServiceSQL = `
WITH old AS (
    DELETE FROM dbcontroller_registry.service_version WHERE service = $1 AND version = $2 RETURNING service, version, descriptor
)
INSERT INTO dbcontroller_registry.change (revision, gone, service, version, descriptor)
SELECT m.revision, true, old.service, old.version, old.descriptor FROM old, dbcontroller_registry.meta m`

	// Its database stays, and so do the resources in it.
	removeDeploymentSQL = `
WITH old AS (
    DELETE FROM dbcontroller_registry.deployment WHERE service = $1 AND region = $2
    RETURNING service, region, version, address, generation, disabled, database
), ran AS (
    INSERT INTO dbcontroller_registry.removed (service, region, version, descriptor, database)
    SELECT old.service, old.region, v.version, v.descriptor, old.database
    FROM old JOIN dbcontroller_registry.service_version v ON v.service = old.service AND v.version = old.version
    WHERE old.generation <> 0 OR old.address <> ''
    ON CONFLICT (service, region) DO UPDATE SET version = EXCLUDED.version, descriptor = EXCLUDED.descriptor, database = EXCLUDED.database
)
INSERT INTO dbcontroller_registry.change (revision, gone, service, region, version, address, generation, disabled)
SELECT m.revision, true, old.service, old.region, old.version, old.address, old.generation, old.disabled
FROM old, dbcontroller_registry.meta m`
)

// Remove removes the named regions, versions and deployments: all, or none.
func (s *Server) Remove(ctx context.Context, req *registryv1.RemoveRequest) (*registryv1.RemoveResponse, error) {
	var removed removal
	var problems schema.Problems
	for i, name := range req.GetDeployments() {
		id, err := schema.ParseDeploymentID(name)
		if err != nil {
			problems = append(problems, schema.Problem{
				Pos:     schema.Pos{Path: fmt.Sprintf("deployments[%d]", i)},
				Message: err.Error(),
			})
		}
		removed.deployments = append(removed.deployments, id)
	}
	for i, name := range req.GetServices() {
		v, err := schema.ParseServiceVersion(name)
		if err != nil {
			problems = append(problems, schema.Problem{
				Pos:     schema.Pos{Path: fmt.Sprintf("services[%d]", i)},
				Message: err.Error(),
			})
		}
		removed.versions = append(removed.versions, v)
	}
	if removed.regions = req.GetRegions(); len(problems) > 0 {
		return nil, s.fail(problems)
	}
	by, err := s.author(ctx, "Remove", "")
	if err != nil {
		return nil, err
	}
	changes, err := s.store.change(ctx, change{by: by, edit: removed.from})
	if err != nil {
		return nil, s.fail(err)
	}
	return &registryv1.RemoveResponse{Changes: changes}, nil
}

type removal struct {
	regions     []string
	versions    []schema.ServiceVersion
	deployments []schema.DeploymentID
}

// from removes them from an environment; the error names everything that still needs one of them.
func (r *removal) from(env *schema.Environment) error {
	env.Deployments = slices.DeleteFunc(env.Deployments, func(d schema.Deployment) bool {
		return slices.Contains(r.deployments, d.DeploymentID)
	})
	env.Services = slices.DeleteFunc(env.Services, func(d *schema.Descriptor) bool {
		return slices.Contains(r.versions, d.ServiceVersion)
	})
	env.Regions = slices.DeleteFunc(env.Regions, func(name string) bool { return slices.Contains(r.regions, name) })
	var problems schema.Problems
	for _, d := range env.Deployments {
		if slices.Contains(r.regions, d.Region) {
			problems = append(problems, schema.Problem{
				Pos: schema.Pos{Path: "regions"}, Message: fmt.Sprintf("%s has a deployment there", d.DeploymentID),
				Remedy: "remove it as well",
			})
		}
		if v := (schema.ServiceVersion{Service: d.Service, Version: d.Version}); slices.Contains(r.versions, v) {
			problems = append(problems, schema.Problem{
				Pos: schema.Pos{Path: "services"}, Message: fmt.Sprintf("%s runs %s", d.DeploymentID, v),
				Remedy: "switch its version first, or remove it as well",
			})
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}
