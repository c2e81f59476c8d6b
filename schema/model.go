package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/db-controller/db-controller/internal/bodyschema"
	"github.com/db-controller/db-controller/schema/violation"
)

// Model is a compiled descriptor: it finds the kind of a name, and derives references from bodies. It is
// immutable; a version switch compiles another one.
type Model struct {
	Descriptor *Descriptor
	// Digest identifies the content of the version and of the versions that it imports, see digest.
	Digest  string
	kinds   []*KindModel
	renames *renames
	// asked are the kinds of other services to which a resource of this service does not refer without
	// asking, tabled the kinds whose resources are rows of tables.
	asked, tabled map[KindID]bool
}

// KindModel is a compiled kind of the model's own service.
type KindModel struct {
	ID KindID
	// Hides and Unconstrained are the descriptor's hide_while_deleting and constraints_disabled. A kind with
	// a table hides: its row is deleted when nothing blocks the resource any more.
	Hides, Unconstrained bool
	// ReferableBy are the other services whose resources may refer to the kind; none means all that import
	// it. EverReferableBy is the union over all described versions: a reference that was allowed once stays
	// allowed.
	ReferableBy, EverReferableBy []string
	// DelegationNone: any described version has it.
	DelegationNone bool
	// DeletesAtomically is the descriptor's deletion: atomic.
	DeletesAtomically bool
	// Retention is the descriptor's retention.
	Retention time.Duration

	// Table has the rows that are the kind's resources; nil for a kind whose resources have bodies.
	Table *TableModel

	previous string
	patterns []Pattern
	// everPaths are the paths of the kind's references in all described versions: a body can have a reference
	// of the previous or of the next version.
	everPaths  []Path
	references []referenceModel
	parents    []referenceModel
	fields     []fieldModel
	schema     *bodyschema.Schema // nil: none
	finalizers []Finalizer
}

type referenceModel struct {
	path         Path
	behaviour    Behaviour
	targets      []targetModel
	untilRemoved bool
	// The declared region of a parent, see Parent.
	region      string
	regionField Path
}

type targetModel struct {
	id       KindID
	patterns []Pattern
}

// Found is a reference in a body: at Path the body names Target, a resource of kind TargetKind.
type Found struct {
	Path       string
	Target     FullName
	TargetKind KindID
	Behaviour  Behaviour
}

// NewModel compiles one version. The descriptors must contain it and the versions that it imports. Errors are
// Problems.
func NewModel(version ServiceVersion, descriptors []*Descriptor) (*Model, error) {
	needed, err := closureOf(version, descriptors)
	if err != nil {
		return nil, err
	}
	if err := Check(needed); err != nil {
		return nil, err
	}
	all := map[ServiceVersion]*Descriptor{}
	for _, d := range needed {
		all[d.ServiceVersion] = d
	}
	m := &Model{Descriptor: all[version], renames: newRenames(descriptors)}
	for i := range m.Descriptor.Kinds {
		m.kinds = append(m.kinds, m.compile(&m.Descriptor.Kinds[i], all))
	}
	for _, k := range m.kinds {
		versions := m.versionsOf(k.ID, descriptors)
		k.EverReferableBy, k.everPaths = everReferableBy(versions), everPaths(versions)
		k.DelegationNone = slices.ContainsFunc(versions, func(v Kind) bool { return v.DelegationNone })
	}
	m.asked, m.tabled = m.marked(descriptors)
	m.renames.use(m.Descriptor)
	for _, imp := range m.Descriptor.Imports {
		m.renames.use(all[imp.ServiceVersion])
	}
	m.Digest = m.digest()
	return m, nil
}

// closureOf returns the version and the versions that it imports, directly or not. Check reports missing
// ones.
func closureOf(version ServiceVersion, descriptors []*Descriptor) ([]*Descriptor, error) {
	var needed []*Descriptor
	want, seen := []ServiceVersion{version}, map[ServiceVersion]bool{}
	for len(want) > 0 {
		v := want[0]
		want = want[1:]
		if seen[v] {
			continue
		}
		seen[v] = true
		for _, d := range descriptors {
			if d.ServiceVersion == v {
				needed = append(needed, d)
				for _, imp := range d.Imports {
					want = append(want, imp.ServiceVersion)
				}
			}
		}
	}
	if len(needed) == 0 {
		return nil, fmt.Errorf("there is no descriptor of %s", version)
	}
	return needed, nil
}

// versionsOf returns a kind as all described versions of its service have it, under all its names.
func (m *Model) versionsOf(id KindID, descriptors []*Descriptor) (out []Kind) {
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			if d.Service == id.Service &&
				m.renames.rootOf(KindID{Service: d.Service, Kind: k.Name}) == m.renames.rootOf(id) {
				out = append(out, k)
			}
		}
	}
	return out
}

// marked returns the kinds that any described version excludes from delegations, or does not let this service
// refer to, because another deployment may have switched its version since this one heard of it; and the
// kinds whose resources are rows of tables.
func (m *Model) marked(descriptors []*Descriptor) (asked, tabled map[KindID]bool) {
	asked, tabled = map[KindID]bool{}, map[KindID]bool{}
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			root := m.renames.rootOf(KindID{Service: d.Service, Kind: k.Name})
			refers := d.Service == m.Descriptor.Service || len(k.ReferableBy) == 0 ||
				slices.Contains(k.ReferableBy, m.Descriptor.Service)
			asked[root] = asked[root] || k.DelegationNone || k.ConstraintsDisabled || !refers
			tabled[root] = tabled[root] || k.Table != (TableName{})
		}
	}
	return asked, tabled
}

// Delegable reports whether resources of this service may refer to resources of a kind without asking, under
// a right. A kind that no descriptor describes is asked about.
func (m *Model) Delegable(id KindID) bool { return !m.asked[m.renames.rootOf(id)] }

// Tabled reports whether resources of a kind are rows of a table, in any described version.
func (m *Model) Tabled(id KindID) bool { return m.tabled[m.renames.rootOf(id)] }

// everReferableBy returns nil, which means all, if any version allows all services.
func everReferableBy(versions []Kind) (listed []string) {
	for _, k := range versions {
		if len(k.ReferableBy) == 0 {
			return nil
		}
		listed = append(listed, k.ReferableBy...)
	}
	return listed
}

func everPaths(versions []Kind) (paths []Path) {
	for _, k := range versions {
		for _, r := range k.References {
			if path, err := ParsePath(r.BodyPath()); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// compile expects a descriptor that passed Check, and ignores the errors that Check has excluded.
func (m *Model) compile(k *Kind, all map[ServiceVersion]*Descriptor) *KindModel {
	km := &KindModel{
		ID: KindID{Service: m.Descriptor.Service, Kind: k.Name}, previous: k.PreviousName,
		patterns: compilePatterns(k.Patterns),
		Hides:    k.HideWhileDeleting || k.Table != (TableName{}), Unconstrained: k.ConstraintsDisabled,
		DeletesAtomically: k.DeletesAtomically, Retention: k.Retention, ReferableBy: k.ReferableBy,
		fields: compileFields(k), finalizers: k.Finalizers,
	}
	if k.Schema != nil {
		km.schema, _ = bodyschema.Compile(k.Schema)
	}
	if k.ConstraintsDisabled {
		return km
	}
	for _, r := range k.References {
		path, _ := ParsePath(r.BodyPath())
		km.references = append(km.references, referenceModel{
			path: path, behaviour: r.Behaviour,
			untilRemoved: r.UntilRemoved, targets: m.targets(r.Targets, all),
		})
	}
	km.Table = compileTable(k, km.references, m.Root)
	for _, p := range k.Parents {
		field, _ := ParsePath(p.RegionField)
		km.parents = append(km.parents, referenceModel{
			behaviour: p.Behaviour, untilRemoved: p.UntilRemoved,
			targets: m.targets([]string{p.Kind}, all), region: p.Region, regionField: field,
		})
	}
	return km
}

func (m *Model) targets(names []string, all map[ServiceVersion]*Descriptor) []targetModel {
	var out []targetModel
	for _, name := range names {
		id, _ := m.Descriptor.KindID(name)
		of := m.Descriptor
		for _, imp := range m.Descriptor.Imports {
			if imp.Service == id.Service {
				of = all[imp.ServiceVersion]
			}
		}
		for _, k := range of.Kinds {
			if k.Name == id.Kind {
				out = append(out, targetModel{id: id, patterns: compilePatterns(k.Patterns)})
			}
		}
	}
	return out
}

func compilePatterns(texts []string) []Pattern {
	out := make([]Pattern, 0, len(texts))
	for _, text := range texts {
		if p, err := ParsePattern(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// KindOf returns the kind of a relative name. The error lists the patterns.
func (m *Model) KindOf(name string) (*KindModel, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	var patterns []string
	for _, k := range m.kinds {
		for _, p := range k.patterns {
			if p.Match(name) {
				return k, nil
			}
			patterns = append(patterns, p.String())
		}
	}
	return nil, fmt.Errorf("name %q fits no kind of %s: its patterns are %s", name, m.Descriptor.ServiceVersion,
		strings.Join(patterns, ", "))
}

// Kind returns a kind by its name. The error lists the kinds.
func (m *Model) Kind(name string) (*KindModel, error) {
	var known []string
	for _, k := range m.kinds {
		if k.ID.Kind == name {
			return k, nil
		}
		known = append(known, k.ID.Kind)
	}
	return nil, fmt.Errorf("unknown kind %q: kinds of %s are %s", clip(name), m.Descriptor.ServiceVersion,
		strings.Join(known, ", "))
}

// References derives the references from a body, and the parent from the name. A relative name is in the
// region that it contains (regions/{region}), otherwise in the region of the holder. Errors name the field;
// more than MaxReferences references are an error.
func (k *KindModel) References(self DeploymentID, name string, body map[string]any) ([]Found, error) {
	var found []Found
	for _, r := range k.references {
		values, err := r.path.Values(body)
		if err != nil {
			return nil, err
		}
		for _, value := range values {
			f, err := r.resolve(self, value)
			if err != nil {
				return nil, violation.In(violation.Join(violation.Body, r.path.String()),
					fmt.Errorf("field %s: %w", r.path, err))
			}
			f.Path = r.path.String()
			found = append(found, f)
		}
	}
	for _, p := range k.parents {
		f, ok, err := p.parentOf(self, name, body)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, f)
		}
	}
	if found = dedupe(found); len(found) > MaxReferences {
		return nil, errTooManyReferences
	}
	return found, nil
}

// dedupe removes repetitions of (path, target): a full and a relative name of one target are one reference.
func dedupe(found []Found) []Found {
	type key struct {
		path   string
		target FullName
	}
	seen := make(map[key]bool, len(found))
	kept := found[:0]
	for _, f := range found {
		k := key{f.Path, f.Target}
		if !seen[k] {
			seen[k] = true
			kept = append(kept, f)
		}
	}
	return kept
}

func (r referenceModel) resolve(self DeploymentID, value string) (Found, error) {
	name, err := ResolveName(self, value)
	if err != nil {
		return Found{}, err
	}
	full := strings.HasPrefix(value, "//")
	for _, t := range r.targets {
		if full && t.id.Service != name.Deployment.Service {
			continue
		}
		for _, p := range t.patterns {
			if p.Match(name.Name) {
				name.Deployment.Service = t.id.Service
				if said := p.regionOf(name.Name); said != "" && !full {
					name.Deployment.Region = said
					if err := CheckRegion(said); err != nil {
						return Found{}, fmt.Errorf("name %q: %w", clip(value), err)
					}
				}
				return Found{Target: name, TargetKind: t.id, Behaviour: r.behaviour}, nil
			}
		}
	}
	kinds := make([]string, len(r.targets))
	for i, t := range r.targets {
		kinds[i] = t.id.String()
	}
	return Found{}, fmt.Errorf("%q is not the name of a resource of kind %s", clip(value), strings.Join(kinds, " or "))
}

// ResolveName parses a full name, or a relative one as a name in the deployment self. The caller corrects the
// service of a relative name once the kind is known.
func ResolveName(self DeploymentID, value string) (FullName, error) {
	if strings.HasPrefix(value, "//") {
		return ParseFullName(value)
	}
	if err := CheckName(value); err != nil {
		return FullName{}, err
	}
	return FullName{Deployment: self, Name: value}, nil
}

// parentOf returns the parent of a name, and reports whether the name lies below one.
func (r referenceModel) parentOf(self DeploymentID, name string, body map[string]any) (Found, bool, error) {
	t := r.targets[0]
	for _, p := range t.patterns {
		prefix := p.PrefixOf(name)
		if prefix == "" {
			continue
		}
		region := cmp.Or(p.regionOf(prefix), r.region)
		if r.regionField.text != "" {
			values, err := r.regionField.Values(body)
			if err == nil && len(values) > 0 {
				region, err = values[0], CheckRegion(values[0])
			}
			if err != nil {
				return Found{}, false, violation.In(violation.Join(violation.Body, r.regionField.String()),
					fmt.Errorf("field %s, the region of the parent: %w", r.regionField, err))
			}
		}
		d := DeploymentID{Service: t.id.Service, Region: cmp.Or(region, self.Region)}
		return Found{
			Path: ParentPath, Target: FullName{Deployment: d, Name: prefix}, TargetKind: t.id,
			Behaviour: r.behaviour,
		}, true, nil
	}
	return Found{}, false, nil
}

// CheckRegion refuses a name that contains a region other than its deployment's.
func (k *KindModel) CheckRegion(self DeploymentID, name string) error {
	for _, p := range k.patterns {
		if !p.Match(name) {
			continue
		}
		if said := p.regionOf(name); said != "" && said != self.Region {
			//nolint:revive,staticcheck // the dots stand for the rest of a name
			return fmt.Errorf("name %q contains region %s, and this is %s: use the full name, //%s/%s/...", clip(name),
				clip(said), self, self.Service, clip(said))
		}
	}
	return nil
}

// Names reports whether a value in a field of one of the model's kinds names the target, of any kind: the
// version may give its names to another kind. When the version lacks the field or the value, the names alone
// are compared: the stored reference counts.
func (m *Model) Names(self DeploymentID, kind, path, value string, target FullName) bool {
	if k, err := m.Kind(kind); err == nil {
		for _, r := range k.references {
			if r.path.String() == path {
				if f, err := r.resolve(self, value); err == nil {
					return f.Target == target
				}
			}
		}
	}
	return MayName(self, value, target)
}

// MayName reports whether a value in a field of a resource of a deployment names the target, by the names alone:
// a relative name is one of the target's service, in the region that it contains, or else in the deployment's.
func MayName(self DeploymentID, value string, target FullName) bool {
	name, err := ResolveName(self, value)
	if err == nil && !strings.HasPrefix(value, "//") {
		name.Deployment.Service = target.Deployment.Service
		if strings.Contains("/"+name.Name+"/", "/regions/"+target.Deployment.Region+"/") {
			name.Deployment.Region = target.Deployment.Region
		}
	}
	return err == nil && name == target
}

// KindNames returns the names of the model's kinds, in the order of the descriptor.
func (m *Model) KindNames() []string {
	names := make([]string, len(m.kinds))
	for i, k := range m.kinds {
		names[i] = k.ID.Kind
	}
	return names
}

// Kinds returns the kind itself and the kinds that it can refer to.
func (k *KindModel) Kinds() []KindID {
	ids := []KindID{k.ID}
	for _, r := range append(slices.Clone(k.references), k.parents...) {
		for _, t := range r.targets {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// Dropped returns the patterns of the kind that another version does not have, under any name of the kind.
func (k *KindModel) Dropped(by *Model) []Pattern {
	var shapes []string
	if current, err := by.Kind(by.Canonical(k.ID).Kind); err == nil {
		shapes = current.Shapes()
	}
	return slices.DeleteFunc(slices.Clone(k.patterns), func(p Pattern) bool {
		return slices.Contains(shapes, p.Shape())
	})
}

// Shapes returns the shapes of the kind's patterns.
func (k *KindModel) Shapes() []string {
	shapes := make([]string, len(k.patterns))
	for i, p := range k.patterns {
		shapes[i] = p.Shape()
	}
	return shapes
}

// Paths returns the field paths of the kind's references, and ParentPath if it has parents.
func (k *KindModel) Paths() []string {
	var paths []string
	for _, r := range k.references {
		paths = append(paths, r.path.String())
	}
	if len(k.parents) > 0 {
		paths = append(paths, ParentPath)
	}
	return paths
}
