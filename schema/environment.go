package schema

import (
	"cmp"
	"errors"
	"slices"
)

// Deployment is a deployment as the registry knows it.
type Deployment struct {
	DeploymentID
	// host:port of its gRPC server; empty until it registered.
	Address    string
	Version    string
	Generation int64
	Disabled   bool
	Pos        Pos
}

// Environment is everything that the registry knows, at one moment. It is never changed once it is handed out.
type Environment struct {
	Revision    int64
	Regions     []string
	Services    []*Descriptor
	Deployments []Deployment
	// Incomplete says that the registry may have lost some of it.
	Incomplete bool
}

// Deployment finds one.
func (e *Environment) Deployment(id DeploymentID) (Deployment, bool) {
	i := slices.IndexFunc(e.Deployments, func(d Deployment) bool { return d.DeploymentID == id })
	if i < 0 {
		return Deployment{}, false
	}
	return e.Deployments[i], true
}

// Model compiles the version that a deployment runs.
func (e *Environment) Model(id DeploymentID) (*Model, error) {
	d, ok := e.Deployment(id)
	if !ok {
		return nil, Problems{{Message: "deployment " + id.String() + " is not registered", Remedy: "apply a file that lists it under deployments"}}
	}
	return NewModel(ServiceVersion{Service: id.Service, Version: d.Version}, e.Services)
}

// Interested gives the deployments whose deletions concern a deployment that runs the model: all of its own service
// and of every service that it imports, in all regions, its own included; and those that its stored references point
// to, which an earlier version may have imported. In order, without repetition.
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

// Subscription is a deployment whose deletions are watched. One that differs in any field replaces the one before it.
type Subscription struct {
	DeploymentID
	Version string
	Address string // host:port
}

// MayRefer tells whether some described version of a service is of another one, or imports it.
func (e *Environment) MayRefer(service, to string) bool {
	return service == to || slices.ContainsFunc(e.Services, func(d *Descriptor) bool {
		return d.Service == service && slices.ContainsFunc(d.Imports, func(i Import) bool { return i.Service == to })
	})
}

// With gives an environment that has what another one has besides, and of a deployment the later registration: for questions
// of which a wrong "no" would do harm.
func (e *Environment) With(other *Environment) *Environment {
	out := *e
	out.Services, out.Deployments = slices.Clone(e.Services), slices.Clone(e.Deployments)
	for _, s := range other.Services {
		if !slices.ContainsFunc(out.Services, func(d *Descriptor) bool { return d.ServiceVersion == s.ServiceVersion }) {
			out.Services = append(out.Services, s)
		}
	}
	for _, d := range other.Deployments {
		i := slices.IndexFunc(out.Deployments, func(o Deployment) bool { return o.DeploymentID == d.DeploymentID })
		switch {
		case i < 0:
			out.Deployments = append(out.Deployments, d)
		case d.Generation > out.Deployments[i].Generation:
			out.Deployments[i] = d
		}
	}
	return &out
}

// Over gives an environment in which another one's descriptors, and versions of deployments, take the place of those that
// there are.
func (e *Environment) Over(given *Environment) *Environment {
	out := &Environment{Revision: e.Revision, Regions: e.Regions, Services: slices.Clone(given.Services), Deployments: slices.Clone(given.Deployments)}
	for _, s := range e.Services {
		if !slices.ContainsFunc(given.Services, func(d *Descriptor) bool { return d.ServiceVersion == s.ServiceVersion }) {
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

// SortedDeployments sorts in place and drops repetitions.
func SortedDeployments(ids []DeploymentID) []DeploymentID {
	slices.SortFunc(ids, func(a, b DeploymentID) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region))
	})
	return slices.Compact(ids)
}

// Check tells whether the environment can be so: its descriptors together, and deployments of known regions and
// versions. It reports everything at once, as Problems.
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
			ps.add(d.Pos, "apply its descriptor as well", "deployment %s: no descriptor of %s is known", d.DeploymentID, version)
		}
	}
	var descriptors Problems
	if err := Check(e.Services); errors.As(err, &descriptors) {
		ps = append(ps, descriptors...)
	}
	return ps.or()
}
