package schema

import (
	"fmt"
	"strings"
	"time"
)

// Pos is a place in a document, for messages. A descriptor that was received over the wire has neither file
// nor line.
type Pos struct {
	File string
	Line int
	// Path in the document, such as kinds[Device].references[spec.account].
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

// ParseServiceVersion parses service@version.
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

// Descriptor describes one version of a service, as it is written: Check validates it.
type Descriptor struct {
	ServiceVersion
	Imports []Import
	Kinds   []Kind
	// PatternsDropped decides about stored resources whose names fit a pattern of the previous version and
	// none of this one: "keep" keeps them, "refuse" refuses to switch. Empty means "refuse".
	PatternsDropped string
	// Acknowledged findings of Lint. They are not sent to the registry.
	Acknowledged []Acknowledgement
	Pos          Pos
}

// Acknowledgement marks a finding of Lint as intended.
type Acknowledgement struct {
	// Finding and At are the ID and the path of the finding.
	Finding, At string
	Reason      string
	Pos         Pos
}

// Import is a version of another service to whose kinds references are allowed.
type Import struct {
	ServiceVersion
	Pos Pos
}

// Kind is a type of resource.
type Kind struct {
	Name string
	// PreviousName is the name of the kind in an earlier version. Its resources keep their names and uids.
	PreviousName string
	Patterns     []string
	// Table has the resources as its rows, and Key are the columns that name one; zero for a kind whose
	// resources have bodies.
	Table TableName
	Key   []string
	// Gone is the column that says of a row that it is deleted: a time, or true. Empty: rows are deleted by
	// DELETE alone.
	Gone       string
	Parents    []Parent
	References []Reference
	// HideWhileDeleting hides a resource in DELETING from readers, once no blocker can keep it.
	HideWhileDeleting bool
	// ConstraintsDisabled: no reference to its resources is allowed, they own nothing, and their bodies have
	// no references.
	ConstraintsDisabled bool
	// ReferableBy are the other services whose resources may refer to resources of this kind, and so block
	// their deletion. Empty: all services that import this one.
	ReferableBy []string
	// DelegationNone: no other deployment is given the right to refer to resources of this kind without
	// asking.
	DelegationNone bool
	// DeletesAtomically: a delete of its resources happens in all deployments or in none.
	DeletesAtomically bool
	// Retention is the time for which a delete of a resource hides what it reaches before it removes it; 0:
	// it removes it at once.
	Retention time.Duration
	// Fields are rules for fields of the bodies, and Schema is a JSON Schema that every written body has to
	// fit; nil: none.
	Fields []Field
	Schema map[string]any
	// Finalizers have to be removed before a resource in DELETING is.
	Finalizers []Finalizer
	Pos        Pos
}

// Parent is the kind of the resource whose name is the beginning of a child's name.
type Parent struct {
	Kind      string
	Behaviour Behaviour
	// UntilRemoved: see Reference.
	UntilRemoved bool
	// Region is the region of the parent; RegionField is a field of the child's body with it. Without both,
	// the parent is in the region of the child.
	Region, RegionField string
	Pos                 Pos
}

// Reference is a field of a kind's bodies that names resources, or, for a kind with a table, the columns that
// do.
type Reference struct {
	Path string
	// Columns of the holder's table, in the order of the target's key.
	Columns   []string
	Targets   []string
	Behaviour Behaviour
	// UntilRemoved: a holder in DELETING keeps the reference, which blocks, until the holder is removed.
	UntilRemoved bool
	// Region, Enforce, Missing and None are for columns. Empty means the holder's region, EnforceAsync and
	// MissingReport.
	Region  TargetRegion
	Enforce Enforcement
	Missing Missing
	// None are the values of one column, as texts, that name nothing, as NULL does.
	None []string
	// When limits the reference to rows with a value in another column, which says which kind the columns
	// name. Zero: to none.
	When RowCondition
	// Unset are the columns that UNSET sets, to NULL or to their DEFAULT; empty: all columns of the
	// reference.
	Unset          []string
	UnsetToDefault bool
	// MatchFull: a row has a value in all of the columns, or in none.
	MatchFull bool
	Pos       Pos
}

// RowCondition is true of rows that have this text in a column.
type RowCondition struct {
	Column string `json:"column"`
	Value  string `json:"value"`
}

// Field returns the path, or the names of the columns: it identifies a reference of a kind.
func (r *Reference) Field() string {
	if r.When != (RowCondition{}) {
		return strings.Join(r.Columns, ",") + " when " + r.When.Column + "=" + r.When.Value
	}
	if len(r.Columns) > 0 {
		return strings.Join(r.Columns, ",")
	}
	return r.Path
}

func (r *Reference) named() string {
	if len(r.Columns) > 0 {
		return "columns " + r.Field()
	}
	return "path " + r.Path
}

// Problem is a mistake in a document, with its place and the remedy.
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

// Problems is the error of checks that return all problems at once.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// or returns nil for an empty list, which would otherwise be a non-nil error.
func (ps Problems) or() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

func (ps *Problems) add(pos Pos, remedy, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: pos, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}
