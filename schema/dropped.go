package schema

import "slices"

// DroppedPattern is a name pattern of a kind that a deployment's next version lacks and does not keep
// (patterns_dropped). Resources whose names match it fit no kind of that version.
type DroppedPattern struct {
	Deployment DeploymentID
	// Kind is the name of the kind in the present version.
	Kind    string
	Pattern Pattern
	// By is the next version, and Pos its place in a file.
	By  ServiceVersion
	Pos Pos
}

// Dropped returns the patterns that a deployment of e loses by the version that it has in next. A deployment
// that never ran stores nothing, and loses none. It fails when one of the two versions cannot be compiled.
func (e *Environment) Dropped(next *Environment, id DeploymentID) (dropped []DroppedPattern, err error) {
	was, known := e.Deployment(id)
	if !known || was.NeverRan() {
		return nil, nil
	}
	to, err := next.Model(id)
	if err != nil || to.Descriptor.PatternsDropped == "keep" {
		return nil, err
	}
	from, err := e.Model(id)
	if err != nil {
		return nil, err
	}
	for _, kind := range from.kinds {
		for _, p := range kind.Dropped(to) {
			dropped = append(dropped, DroppedPattern{
				Deployment: id, Kind: kind.ID.Kind, Pattern: p, By: to.Descriptor.ServiceVersion,
				Pos: Pos{File: to.Descriptor.Pos.File, Line: to.Descriptor.Pos.Line}, // the message names the version
			})
		}
	}
	return dropped, nil
}

// SameVersion reports whether a deployment has the same descriptor in both environments. Descriptors that are
// equal, but different values, count as different.
func (e *Environment) SameVersion(other *Environment, id DeploymentID) bool {
	mine, theirs := e.descriptorOf(id), other.descriptorOf(id)
	return mine != nil && mine == theirs
}

func (e *Environment) descriptorOf(id DeploymentID) *Descriptor {
	d, _ := e.Deployment(id)
	i := slices.IndexFunc(e.Services, func(s *Descriptor) bool {
		return s.ServiceVersion == ServiceVersion{Service: d.Service, Version: d.Version}
	})
	if i < 0 {
		return nil
	}
	return e.Services[i]
}
