package server

import (
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
)

// keepsImports returns Problems when the last description goes by which a service imports another one.
// Resources that were stored under it may still refer there: they are kept without their kind, or their
// deployment has not switched yet. A restored database of the imported service waits for the deployments that
// may refer to it, and knows them by the descriptions alone if it has lost the rest.
func keepsImports(before, after *schema.Environment) error {
	var problems schema.Problems
	ran := func(service string) bool {
		return slices.ContainsFunc(after.Deployments, func(d schema.Deployment) bool {
			was := find(before, d.DeploymentID)
			return d.Service == service && was != nil && !was.NeverRan()
		})
	}
	for _, d := range before.Services {
		for _, i := range d.Imports {
			if after.MayRefer(d.Service, i.Service) || !ran(d.Service) || !ran(i.Service) {
				continue
			}
			problems = append(problems, schema.Problem{
				Pos: schema.Pos{Path: "services"},
				Message: fmt.Sprintf(
					"%s is described as importing %s, and no other description of %s would be: its resources may still refer to resources there", d.ServiceVersion, i.Service, d.Service),
				Remedy: "keep the description as it is, so that a restored database of " + i.Service +
					" waits for the deployments of " + d.Service,
			})
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}
