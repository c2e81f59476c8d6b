package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// importPos returns the place of an import, with a path that does not depend on its index.
func importPos(imp schema.Import) schema.Pos {
	pos := imp.Pos
	pos.Path = "imports[" + imp.Service + "]"
	return pos
}

func importFinding(d *schema.Descriptor, id string, imp schema.Import, remedy, format string, args ...any) Finding {
	return Finding{Level: Warning, ID: id, Of: d.ServiceVersion, Problem: schema.Problem{
		Pos:     importPos(imp),
		Message: fmt.Sprintf(format, args...), Remedy: remedy,
	}}
}

// unusedImports finds imports of services to which no kind refers. Each costs a watch between each two
// regions.
func unusedImports(descriptors []*schema.Descriptor) []Finding {
	var out []Finding
	for _, d := range descriptors {
		used := map[string]bool{}
		for _, k := range d.Kinds {
			if k.ConstraintsDisabled {
				continue
			}
			for _, target := range targetsOf(&k) {
				if id, err := d.KindID(target); err == nil {
					used[id.Service] = true
				}
			}
		}
		for _, imp := range d.Imports {
			if !used[imp.Service] {
				out = append(out, importFinding(d, UnusedImport, imp, "remove it",
					"import %s is unused: no kind of %s refers to one of its kinds, and each region of the one watches each region of the other", imp.ServiceVersion, d.Service))
			}
		}
	}
	return out
}

// targetsOf returns the names of the kinds that a kind refers to, as written.
func targetsOf(k *schema.Kind) (out []string) {
	for _, p := range k.Parents {
		out = append(out, p.Kind)
	}
	for _, r := range k.References {
		out = append(out, r.Targets...)
	}
	return out
}

// importCycles finds services that import one another in different versions. Check refuses cycles of
// versions.
func importCycles(descriptors []*schema.Descriptor) []Finding {
	var edges []kindEdge
	at := map[kindEdge]int{}
	var imports []schema.Import
	var importers []*schema.Descriptor
	g := &kindGraph{}
	for _, d := range descriptors {
		holder := kindNode{ServiceVersion: schema.ServiceVersion{Service: d.Service}}
		if !slices.Contains(g.nodes, holder) {
			g.nodes = append(g.nodes, holder)
		}
		for _, imp := range d.Imports {
			e := kindEdge{
				holder: holder, target: kindNode{ServiceVersion: schema.ServiceVersion{Service: imp.Service}},
				path: d.Version + " " + imp.Version, pos: importPos(imp),
			}
			at[e] = len(imports)
			edges, imports, importers = append(edges, e), append(imports, imp), append(importers, d)
		}
	}
	sortEdges(edges)
	var out []Finding
	for _, ring := range g.rings(edges) {
		var ways []string
		for _, e := range slices.Backward(ring) {
			ways = append(ways, importers[at[e]].ServiceVersion.String()+" imports "+
				imports[at[e]].ServiceVersion.String())
		}
		first := at[ring[len(ring)-1]]
		out = append(out, importFinding(importers[first], ImportCycle, imports[first], "remove one of these imports",
			"services import one another in their versions: %s: each watches the other, and deletions of each can wait for the other", strings.Join(ways, ", ")))
	}
	return out
}

// parentsWithoutDeployment finds parents with a fixed region in which their service has no deployment: no
// child can be created.
func parentsWithoutDeployment(descriptors []*schema.Descriptor, deployments []schema.Deployment) []Finding {
	var out []Finding
	for _, d := range descriptors {
		if !slices.ContainsFunc(deployments, func(o schema.Deployment) bool {
			return o.Service == d.Service && o.Version == d.Version
		}) {
			continue
		}
		for i := range d.Kinds {
			for _, p := range d.Kinds[i].Parents {
				parent, err := d.KindID(p.Kind)
				there := schema.DeploymentID{Service: parent.Service, Region: p.Region}
				if err != nil || p.Region == "" || slices.ContainsFunc(deployments, func(o schema.Deployment) bool {
					return o.DeploymentID == there
				}) {
					continue
				}
				out = append(out, Finding{
					Level: Warning, ID: NoDeploymentInRegion, Of: d.ServiceVersion,
					Problem: schema.Problem{
						Pos: p.Pos,
						Message: fmt.Sprintf(
							"the parent's region is %s, where %s has no deployment: no %s can be created",
							p.Region, parent.Service, d.Kinds[i].Name),
						Remedy: "deploy it there, or correct the region",
					},
				})
			}
		}
	}
	return out
}

// withoutDeployment finds regions with a deployment of a version and without one of a service that it
// imports.
func withoutDeployment(descriptors []*schema.Descriptor, deployments []schema.Deployment) []Finding {
	var out []Finding
	for _, d := range descriptors {
		for _, imp := range d.Imports {
			var regions []string
			for _, dep := range deployments {
				there := schema.DeploymentID{Service: imp.Service, Region: dep.Region}
				if dep.Service == d.Service && dep.Version == d.Version && !slices.ContainsFunc(deployments,
					func(o schema.Deployment) bool {
						return o.DeploymentID == there
					}) {
					regions = append(regions, dep.Region)
				}
			}
			if len(regions) > 0 {
				out = append(out, importFinding(d, NoDeploymentInRegion, imp,
					"deploy it there, or use full names with another region",
					"%s runs in %s, where %s does not: names without a region, and parents, of that service cannot exist there", d.ServiceVersion, strings.Join(regions, ", "), imp.Service))
			}
		}
	}
	return out
}

// importsNotRun finds imports of kinds to which nothing can refer in the version that a deployment of their
// service runs: it lacks them, or has disabled their constraints.
func importsNotRun(descriptors []*schema.Descriptor, deployments []schema.Deployment) []Finding {
	models := map[schema.ServiceVersion]*schema.Model{}
	for _, o := range deployments {
		of := schema.ServiceVersion{Service: o.Service, Version: o.Version}
		if models[of] == nil {
			models[of], _ = schema.NewModel(of, descriptors) // nil: the version is not described here
		}
	}
	var out []Finding
	for _, d := range descriptors {
		if !slices.ContainsFunc(deployments, func(o schema.Deployment) bool {
			return o.Service == d.Service && o.Version == d.Version
		}) {
			continue
		}
		for _, imp := range d.Imports {
			for _, o := range deployments {
				running := models[schema.ServiceVersion{Service: o.Service, Version: o.Version}]
				if o.Service != imp.Service || o.Version == imp.Version || running == nil {
					continue
				}
				if kinds := targetsWithout(d, imp.Service, running); len(kinds) > 0 {
					out = append(out, importFinding(d, ImportNotRun, imp,
						"import a version that has what runs, or switch the version there",
						"%s refers to %s of %s, but %s runs %s, which refuses such references", d.ServiceVersion,
						strings.Join(kinds, ", "), imp.ServiceVersion, o.DeploymentID, o.Version))
				}
			}
		}
	}
	return out
}

// targetsWithout returns the kinds of a service to which a version refers, and to which it cannot refer in
// the running version of that service.
func targetsWithout(d *schema.Descriptor, service string, running *schema.Model) (kinds []string) {
	for i := range d.Kinds {
		if d.Kinds[i].ConstraintsDisabled {
			continue
		}
		for _, target := range targetsOf(&d.Kinds[i]) {
			id, err := d.KindID(target)
			if err != nil || id.Service != service || slices.Contains(kinds, id.Kind) {
				continue
			}
			kind, err := running.Kind(running.Canonical(id).Kind)
			if err != nil || kind.Unconstrained || len(kind.ReferableBy) > 0 && !slices.Contains(kind.ReferableBy,
				d.Service) {
				kinds = append(kinds, id.Kind)
			}
		}
	}
	return kinds
}
