package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Model is a checked descriptor made ready for use: it tells the kind of a name, and takes the references out of a
// body. It does not change; a version switch makes a new one.
type Model struct {
	Descriptor *Descriptor
	// Digest stands for what the version says, together with what it imports.
	Digest  string
	kinds   []*KindModel
	renames *renames
}

// KindModel is a kind of the model's own service.
type KindModel struct {
	ID KindID
	// Hides and Unconstrained are the descriptor's hide_while_deleting and constraints_disabled.
	Hides, Unconstrained bool
	// ReferableBy are the services, beside its own, whose resources may refer to it; none: all that import it.
	// EverReferableBy are those of any described version: whoever referred to it once is not told later that it may not.
	ReferableBy, EverReferableBy []string

	previous string
	patterns []Pattern
	// everPaths are those of the kind's references in any described version: a body may hold a reference of the version
	// before, or of the one that comes.
	everPaths  []Path
	references []referenceModel
	parents    []referenceModel
}

type referenceModel struct {
	path      Path
	behaviour Behaviour
	targets   []targetModel
	// Where a parent lies, when that is declared.
	region      string
	regionField Path
}

type targetModel struct {
	id       KindID
	patterns []Pattern
}

// Found is a reference as a body has it: at Path it names Target, which is of kind TargetKind.
type Found struct {
	Path       string
	Target     FullName
	TargetKind KindID
	Behaviour  Behaviour
}

// NewModel compiles one version; the descriptors must hold it and what it imports. Errors are Problems.
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
	}
	m.renames.use(m.Descriptor)
	for _, imp := range m.Descriptor.Imports {
		m.renames.use(all[imp.ServiceVersion])
	}
	m.Digest = m.digest()
	return m, nil
}

// closureOf gives the version and everything it imports, directly or not; what is missing is left to Check.
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
		return nil, fmt.Errorf("no descriptor of %s is known", version)
	}
	return needed, nil
}

// versionsOf gives what the described versions of a service say of a kind, under all its names.
func (m *Model) versionsOf(id KindID, descriptors []*Descriptor) (out []Kind) {
	for _, d := range descriptors {
		for _, k := range d.Kinds {
			if d.Service == id.Service && m.renames.rootOf(KindID{Service: d.Service, Kind: k.Name}) == m.renames.rootOf(id) {
				out = append(out, k)
			}
		}
	}
	return out
}

// everReferableBy is empty as soon as one version lets all.
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
			if path, err := ParsePath(r.Path); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// compile presupposes that the descriptor was checked, hence the errors that cannot be.
func (m *Model) compile(k *Kind, all map[ServiceVersion]*Descriptor) *KindModel {
	km := &KindModel{
		ID: KindID{Service: m.Descriptor.Service, Kind: k.Name}, previous: k.PreviousName, patterns: compilePatterns(k.Patterns),
		Hides: k.HideWhileDeleting, Unconstrained: k.ConstraintsDisabled, ReferableBy: k.ReferableBy,
	}
	if k.ConstraintsDisabled {
		return km
	}
	for _, r := range k.References {
		path, _ := ParsePath(r.Path)
		km.references = append(km.references, referenceModel{path: path, behaviour: r.Behaviour, targets: m.targets(r.Targets, all)})
	}
	for _, p := range k.Parents {
		field, _ := ParsePath(p.RegionField)
		km.parents = append(km.parents, referenceModel{behaviour: p.Behaviour, targets: m.targets([]string{p.Kind}, all), region: p.Region, regionField: field})
	}
	return km
}

func (m *Model) targets(names []string, all map[ServiceVersion]*Descriptor) []targetModel {
	var out []targetModel
	for _, name := range names {
		id, _ := m.Descriptor.kindID(name)
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

// KindOf gives the kind that a relative name is of; the error names the patterns that there are.
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
	return nil, fmt.Errorf("name %q fits no kind of %s: its patterns are %s", name, m.Descriptor.ServiceVersion, strings.Join(patterns, ", "))
}

// Kind gives a kind by its name.
func (m *Model) Kind(name string) (*KindModel, error) {
	var known []string
	for _, k := range m.kinds {
		if k.ID.Kind == name {
			return k, nil
		}
		known = append(known, k.ID.Kind)
	}
	return nil, fmt.Errorf("unknown kind %q: kinds of %s are %s", clip(name), m.Descriptor.ServiceVersion, strings.Join(known, ", "))
}

// References takes the references out of a body, and the parents out of the name. Relative names are of the region
// that they say (regions/{region}), else of that of the holder's own deployment. The errors name the field; more than MaxReferences are one.
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
				return nil, fmt.Errorf("field %s: %w", r.path, err)
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

// dedupe keeps one of each (path, target): a full and a relative name of one target are one reference.
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
	return Found{}, fmt.Errorf("%q names no %s", clip(value), strings.Join(kinds, " or "))
}

// ResolveName reads a full name, or a relative one as of self's region; a relative name's service is settled by the
// kind that it turns out to be of.
func ResolveName(self DeploymentID, value string) (FullName, error) {
	if strings.HasPrefix(value, "//") {
		return ParseFullName(value)
	}
	if err := CheckName(value); err != nil {
		return FullName{}, err
	}
	return FullName{Deployment: self, Name: value}, nil
}

// parentOf gives the parent of a name that lies below one.
func (r referenceModel) parentOf(self DeploymentID, name string, body map[string]any) (Found, bool, error) {
	t := r.targets[0]
	for _, p := range t.patterns {
		prefix := p.prefixOf(name)
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
				return Found{}, false, fmt.Errorf("field %s, the region of the parent: %w", r.regionField, err)
			}
		}
		d := DeploymentID{Service: t.id.Service, Region: cmp.Or(region, self.Region)}
		return Found{Path: ParentPath, Target: FullName{Deployment: d, Name: prefix}, TargetKind: t.id, Behaviour: r.behaviour}, true, nil
	}
	return Found{}, false, nil
}

// CheckRegion refuses a name that says another region than the one where its resource would lie.
func (k *KindModel) CheckRegion(self DeploymentID, name string) error {
	for _, p := range k.patterns {
		if !p.Match(name) {
			continue
		}
		if said := p.regionOf(name); said != "" && said != self.Region {
			return fmt.Errorf("name %q says region %s, and this is %s: give its full name, //%s/%s/...", clip(name), clip(said), self, self.Service, clip(said))
		}
	}
	return nil
}

// Names tells whether a value in a field of one of the model's kinds names the target. A field that the version does
// not have any more, or that may name other kinds now, is compared by the name alone: what is stored counts.
func (m *Model) Names(self DeploymentID, kind, path, value string, target FullName, targetKind KindID) bool {
	if k, err := m.Kind(kind); err == nil {
		for _, r := range k.references {
			if r.path.String() == path {
				if f, err := r.resolve(self, value); err == nil {
					return f.Target == target && f.TargetKind == m.Canonical(targetKind)
				}
			}
		}
	}
	name, err := ResolveName(self, value)
	if err == nil && !strings.HasPrefix(value, "//") {
		name.Deployment.Service = target.Deployment.Service
		if strings.Contains("/"+name.Name+"/", "/regions/"+target.Deployment.Region+"/") {
			name.Deployment.Region = target.Deployment.Region
		}
	}
	return err == nil && name == target
}

// KindNames are the model's kinds, in the descriptor's order.
func (m *Model) KindNames() []string {
	names := make([]string, len(m.kinds))
	for i, k := range m.kinds {
		names[i] = k.ID.Kind
	}
	return names
}

// Kinds are the kind itself and those that it can refer to.
func (k *KindModel) Kinds() []KindID {
	ids := []KindID{k.ID}
	for _, r := range append(slices.Clone(k.references), k.parents...) {
		for _, t := range r.targets {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// Dropped are the patterns of the kind's names for which another version has no place, under whatever name it has the kind.
func (k *KindModel) Dropped(by *Model) []Pattern {
	var shapes []string
	if now, err := by.Kind(by.Canonical(k.ID).Kind); err == nil {
		shapes = now.Shapes()
	}
	return slices.DeleteFunc(slices.Clone(k.patterns), func(p Pattern) bool { return slices.Contains(shapes, p.Shape()) })
}

// Shapes are those of the patterns of the kind's names.
func (k *KindModel) Shapes() []string {
	shapes := make([]string, len(k.patterns))
	for i, p := range k.patterns {
		shapes[i] = p.Shape()
	}
	return shapes
}

// Paths are those of the kind's references, and of its parents.
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
