package schema

import (
	"fmt"
	"strings"
)

// Pos is where something was written, for messages: file and line are empty when it came over the wire.
type Pos struct {
	File string
	Line int
	// Path inside the document, such as kinds[Device].references[spec.account].
	Path string
}

func (p Pos) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		b.WriteByte(':')
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:", p.Line)
	}
	if b.Len() > 0 && p.Path != "" {
		b.WriteByte(' ')
	}
	if p.Path != "" {
		b.WriteString(p.Path)
		b.WriteByte(':')
	}
	return b.String()
}

// ServiceVersion is one version of a service, written iam.example.com@v1.
type ServiceVersion struct {
	Service string
	Version string
}

func (v ServiceVersion) String() string { return v.Service + "@" + v.Version }

// ParseServiceVersion reads service@version.
func ParseServiceVersion(s string) (ServiceVersion, error) {
	service, version, ok := strings.Cut(s, "@")
	if !ok {
		return ServiceVersion{}, fmt.Errorf("%q: want service@version, such as iam.example.com@v1", clip(s))
	}
	if err := CheckService(service); err != nil {
		return ServiceVersion{}, err
	}
	if err := CheckVersion(version); err != nil {
		return ServiceVersion{}, err
	}
	return ServiceVersion{Service: service, Version: version}, nil
}

// Descriptor describes one version of a service. What it says is as written; Check tells whether it can be so.
type Descriptor struct {
	ServiceVersion
	Imports []Import
	Kinds   []Kind
	// PatternsDropped says what becomes of stored resources whose names fit a pattern of the version before and none of this
	// one: "keep", or "refuse", which is meant by nothing.
	PatternsDropped string
	// Acknowledged is for Lint: it stays in the file.
	Acknowledged []Acknowledgement
	Pos          Pos
}

// Acknowledgement says that a finding of Lint is meant.
type Acknowledgement struct {
	// Finding and At are the finding's ID and path.
	Finding, At string
	Reason      string
	Pos         Pos
}

// Import is a service version whose kinds may be referred to.
type Import struct {
	ServiceVersion
	Pos Pos
}

// Kind is a type of resource.
type Kind struct {
	Name string
	// PreviousName is what an earlier version called the same kind; its resources keep their names and uids.
	PreviousName string
	Patterns     []string
	Parents      []Parent
	References   []Reference
	// HideWhileDeleting lets readers see a resource as gone from the moment that nothing can keep it any more.
	HideWhileDeleting bool
	// ConstraintsDisabled: nothing refers to its resources or owns through them, and what their fields name is not
	// looked at.
	ConstraintsDisabled bool
	// ReferableBy are the services, beside its own, whose resources may refer to resources of this kind, and so keep them.
	// Empty: all that import this service.
	ReferableBy []string
	Pos         Pos
}

// Parent is the kind that a name lies below, with what happens to the child when the parent is deleted.
type Parent struct {
	Kind      string
	Behaviour Behaviour
	// Region is that of the parent, or RegionField a field of the child's body that has it; else it is the child's.
	Region, RegionField string
	Pos                 Pos
}

// Reference is a field that names resources of other kinds.
type Reference struct {
	Path      string
	Targets   []string
	Behaviour Behaviour
	Pos       Pos
}

// Problem is one thing that is wrong with what a person wrote: where, what, and what to do.
type Problem struct {
	Pos     Pos
	Message string
	Remedy  string
}

func (p Problem) String() string {
	s := strings.TrimSpace(p.Pos.String() + " " + p.Message)
	if p.Remedy != "" {
		s += "; " + p.Remedy
	}
	return s
}

// Problems is the error of checks that report everything at once.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// or gives nil for no problems, so that an empty list never becomes a non-nil error.
func (ps Problems) or() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

func (ps *Problems) add(pos Pos, remedy, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: pos, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}
