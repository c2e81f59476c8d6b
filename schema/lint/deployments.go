package lint

import (
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
)

// Deployments looks for deployments whose region or version the files do not have, although they have others:
// the environment may have it, or it is misspelt.
func Deployments(f *schema.File) (found []Finding) {
	add := func(d schema.Deployment, id, remedy, text string, args ...any) {
		found = append(found, Finding{Level: Warning, ID: id, Problem: schema.Problem{
			Pos:     d.Pos,
			Message: fmt.Sprintf(text, args...), Remedy: remedy,
		}})
	}
	for _, d := range f.Deployments {
		if len(f.Regions) > 0 && !slices.Contains(f.Regions, d.Region) {
			add(d, UnknownRegion, "list it under regions, unless the environment has it",
				"deployment %s: no region %s in these files", d.DeploymentID, d.Region)
		}
		described, versions := false, []string{}
		for _, s := range f.Services {
			if s.Service == d.Service {
				versions = append(versions, s.Version)
			}
			described = described || s.Service == d.Service && s.Version == d.Version
		}
		if len(f.Services) > 0 && !described {
			add(d, UnknownVersion, "describe it, unless the environment has it",
				"deployment %s: no descriptor of %s@%s in these files %v", d.DeploymentID, d.Service,
				d.Version, versions)
		}
	}
	return found
}
