package schema

import (
	"cmp"
	"errors"
	"slices"

	"github.com/google/uuid"
)

// Deployment is a deployment in the registry.
type Deployment struct {
	DeploymentID
	// Address is host:port of its gRPC server; empty until it registers.
	Address    string
	Version    string
	Generation int64
	Disabled   bool
	// Database is the identity of its database, as the registry knows it; uuid.Nil before its first
	// registration.
	Database uuid.UUID
	Pos      Pos
}

// NeverRan reports whether a deployment has been described and has never registered, also not before it was
// removed: it has no resources.
func (d Deployment) NeverRan() bool {
	return d.Address == "" && d.Generation == 0 && d.Database == uuid.Nil
}

// Environment is the content of the registry at one moment. An Environment that was handed out is never
// changed.
type Environment struct {
	Revision int64
	// History is the part of the registry's history in which Revision was read; empty if the registry names
	// none.
	History     string
	Regions     []string
	Services    []*Descriptor
	Deployments []Deployment
	// Rights are the rights by resource; nil when none were declared.
	Rights *Rights
	// Incomplete: the registry's database lost commits, or is empty, and deployments may be missing; or some
	// of its deployments, Unheard, have not reported yet the revision that they have seen.
	Incomplete bool
	Unheard    []string
}

// Deployment returns a deployment, and reports whether there is one.
func (e *Environment) Deployment(id DeploymentID) (Deployment, bool) {
	i := slices.IndexFunc(e.Deployments, func(d Deployment) bool { return d.DeploymentID == id })
	if i < 0 {
		return Deployment{}, false
	}
	return e.Deployments[i], true
}

// Model compiles the version of a deployment.
func (e *Environment) Model(id DeploymentID) (*Model, error) {
	d, ok := e.Deployment(id)
	if !ok {
		return nil, Problems{{
			Message: "deployment " + id.String() + " is not registered",
			Remedy:  "apply a file that lists it under deployments",
		}}
	}
	return NewModel(ServiceVersion{Service: id.Service, Version: d.Version}, e.Services)
}

// Interested returns the deployments whose deletions a deployment with the model has to watch: all regions of
// its own service and of the imported ones, its own region included; and the deployments that its stored
// references point to, whose service an earlier version may have imported. They are sorted, without
// duplicates.
func (e *Environment) Interested(model *Model, pointedTo []DeploymentID) []DeploymentID {
	services := []string{model.Descriptor.Service}
	for _, imp := range model.Descriptor.Imports {
		services = append(services, imp.Service)
	}
	var out []DeploymentID
	for _, d := range e.Deployments {
		if slices.Contains(services, d.Service) || slices.Contains(pointedTo, d.DeploymentID) {
			out = append(out, d.DeploymentID)
		}
	}
	return SortedDeployments(out)
}

// Subscription is a deployment whose deletions are watched. A Subscription that differs in any field replaces
// the earlier one.
type Subscription struct {
	DeploymentID
	Version string
	Address string // host:port
}

// MayRefer reports whether two services are the same, or any described version of the first imports the
// second.
func (e *Environment) MayRefer(service, to string) bool {
	return service == to || slices.ContainsFunc(e.Services, func(d *Descriptor) bool {
		return d.Service == service && slices.ContainsFunc(d.Imports, func(i Import) bool { return i.Service == to })
	})
}

// With returns the union of two environments, with the later registration of each deployment. It is for
// questions in which a wrong "no" does harm.
func (e *Environment) With(other *Environment) *Environment {
	out := *e
	out.Services, out.Deployments = slices.Clone(e.Services), slices.Clone(e.Deployments)
	for _, s := range other.Services {
		if !slices.ContainsFunc(out.Services, func(d *Descriptor) bool {
			return d.ServiceVersion == s.ServiceVersion
		}) {
			out.Services = append(out.Services, s)
		}
	}
	for _, d := range other.Deployments {
		i := slices.IndexFunc(out.Deployments, func(o Deployment) bool { return o.DeploymentID == d.DeploymentID })
		switch {
		case i < 0:
			out.Deployments = append(out.Deployments, d)
		case d.Generation > out.Deployments[i].Generation:
			d.Database = cmp.Or(out.Deployments[i].Database, d.Database)
			out.Deployments[i] = d
		default:
			out.Deployments[i].Database = cmp.Or(out.Deployments[i].Database, d.Database)
		}
	}
	return &out
}

// Over returns the union of two environments; given replaces descriptors and deployments of e.
func (e *Environment) Over(given *Environment) *Environment {
	out := &Environment{
		Revision: e.Revision, History: e.History, Regions: e.Regions, Services: slices.Clone(given.Services),
		Deployments: slices.Clone(given.Deployments),
		Rights:      cmp.Or(given.Rights, e.Rights),
	}
	for _, s := range e.Services {
		if !slices.ContainsFunc(given.Services, func(d *Descriptor) bool {
			return d.ServiceVersion == s.ServiceVersion
		}) {
			out.Services = append(out.Services, s)
		}
	}
	for _, d := range e.Deployments {
		if _, ok := given.Deployment(d.DeploymentID); !ok {
			out.Deployments = append(out.Deployments, d)
		}
	}
	return out
}

// SortedDeployments sorts in place and removes duplicates.
func SortedDeployments(ids []DeploymentID) []DeploymentID {
	slices.SortFunc(ids, func(a, b DeploymentID) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region))
	})
	return slices.Compact(ids)
}

// Check validates an environment: its descriptors together, the regions and versions of its deployments, and
// its rights. It returns all Problems at once.
func (e *Environment) Check() error {
	var ps Problems
	for _, r := range e.Regions {
		if err := CheckRegion(r); err != nil {
			ps.add(Pos{Path: "regions"}, "", "%v", err)
		}
	}
	for _, d := range e.Deployments {
		version := ServiceVersion{Service: d.Service, Version: d.Version}
		if _, err := ParseDeploymentID(d.String()); err != nil {
			ps.add(d.Pos, "", "%v", err)
		}
		if !slices.Contains(e.Regions, d.Region) {
			ps.add(d.Pos, "list it under regions", "deployment %s: unknown region %s", d.DeploymentID, d.Region)
		}
		if !slices.ContainsFunc(e.Services, func(s *Descriptor) bool { return s.ServiceVersion == version }) {
			ps.add(d.Pos, "apply its descriptor as well", "deployment %s: there is no descriptor of %s",
				d.DeploymentID, version)
		}
	}
	for _, err := range []error{Check(e.Services), e.Rights.Check()} {
		var further Problems
		if errors.As(err, &further) {
			ps = append(ps, further...)
		}
	}
	return ps.or()
}
