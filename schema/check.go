package schema

import (
	"slices"
	"strings"
)

// Check tells whether the descriptors can be so, together: grammar, unknown kinds, references without import,
// import cycles, behaviours that cannot be. It reports everything at once, as Problems.
func Check(descriptors []*Descriptor) error {
	var ps Problems
	all := map[ServiceVersion]*Descriptor{}
	for _, d := range descriptors {
		if other, ok := all[d.ServiceVersion]; ok {
			ps.add(d.Pos, "keep one of the two", "%s is described twice, first at %s", d.ServiceVersion, strings.TrimSuffix(other.Pos.String(), ":"))
			continue
		}
		all[d.ServiceVersion] = d
	}
	for _, d := range descriptors {
		checkDescriptor(&ps, d, all)
	}
	checkImportCycles(&ps, descriptors, all)
	checkNames(&ps, descriptors)
	return ps.or()
}

func checkDescriptor(ps *Problems, d *Descriptor, all map[ServiceVersion]*Descriptor) {
	if err := CheckService(d.Service); err != nil {
		ps.add(d.Pos, "", "%v", err)
	}
	if err := CheckVersion(d.Version); err != nil {
		ps.add(d.Pos, "", "%v", err)
	}
	imported := map[string]bool{}
	for _, imp := range d.Imports {
		switch {
		case imp.Service == d.Service:
			ps.add(imp.Pos, "remove it: a service's own kinds need no import", "%s imports itself", d.ServiceVersion)
		case imported[imp.Service]:
			ps.add(imp.Pos, "import one version of it", "%s is imported twice", imp.Service)
		case all[imp.ServiceVersion] == nil:
			ps.add(imp.Pos, "describe it as well, or mend the import", "import %s is not known", imp.ServiceVersion)
		}
		imported[imp.Service] = true
	}
	names := map[string]bool{}
	for i := range d.Kinds {
		k := &d.Kinds[i]
		if names[k.Name] {
			ps.add(k.Pos, "give one of them another name", "kind %s is described twice", k.Name)
		}
		names[k.Name] = true
		checkKindDescriptor(ps, d, k, all)
	}
	checkPreviousNames(ps, d, names)
	checkPatternOverlaps(ps, d)
}

func checkKindDescriptor(ps *Problems, d *Descriptor, k *Kind, all map[ServiceVersion]*Descriptor) {
	if err := CheckKind(k.Name); err != nil {
		ps.add(k.Pos, "", "%v", err)
	}
	if len(k.Patterns) == 0 {
		ps.add(k.Pos, "add patterns, such as projects/{project}", "kind %s has no name pattern", k.Name)
	}
	for _, pattern := range k.Patterns {
		if _, err := ParsePattern(pattern); err != nil {
			ps.add(k.Pos, "", "%v", err)
		}
	}
	for _, service := range k.ReferableBy {
		if err := CheckService(service); err != nil {
			ps.add(k.Pos, "", "referable_by: %v", err)
		} else if service == d.Service {
			ps.add(k.Pos, "remove it: a service may refer to its own kinds", "referable_by lists %s itself", d.Service)
		}
	}
	for _, parent := range k.Parents {
		target := checkTarget(ps, d, parent.Pos, parent.Kind, all)
		if parent.Behaviour.Unsets() {
			ps.add(parent.Pos, "use CASCADE_DELETE or BLOCK", "%s cannot be a parent's behaviour: a name cannot lose its beginning", parent.Behaviour)
		} else if !parent.Behaviour.Valid() {
			ps.add(parent.Pos, "say what happens to the child when the parent is deleted, such as CASCADE_DELETE", "behaviour is missing")
		}
		checkParentRegion(ps, &parent, target)
		if target != nil && !liesBelow(k, target) {
			ps.add(parent.Pos, "begin a pattern of "+k.Name+" with a pattern of "+parent.Kind, "no name of %s lies below one of %s", k.Name, parent.Kind)
		}
	}
	paths := map[string]bool{}
	for _, r := range k.References {
		if _, err := ParsePath(r.Path); err != nil {
			ps.add(r.Pos, "", "%v", err)
		}
		if paths[r.Path] {
			ps.add(r.Pos, "list all target kinds in one reference", "path %s stands twice", r.Path)
		}
		paths[r.Path] = true
		if len(r.Targets) == 0 {
			ps.add(r.Pos, "add targets, such as [iam.example.com/Project]", "reference %s has no target kind", r.Path)
		}
		if !r.Behaviour.Valid() {
			ps.add(r.Pos, "say what happens to the holder when the target is deleted, such as BLOCK", "behaviour is missing")
		}
		for _, target := range r.Targets {
			checkTarget(ps, d, r.Pos, target, all)
		}
	}
}

func checkParentRegion(ps *Problems, p *Parent, target *Kind) {
	if p.Region == "" && p.RegionField == "" {
		return
	}
	if p.Region != "" && p.RegionField != "" {
		ps.add(p.Pos, "remove one of them", "the parent's region is given, and a field that has it as well")
	}
	if p.Region != "" {
		if err := CheckRegion(p.Region); err != nil {
			ps.add(p.Pos, "", "%v", err)
		}
	}
	if p.RegionField != "" {
		path, err := ParsePath(p.RegionField)
		if _, scalar := path.Scalar(); err != nil {
			ps.add(p.Pos, "", "%v", err)
		} else if !scalar {
			ps.add(p.Pos, "name one field, without a star", "region: the field %s can have many values", p.RegionField)
		}
	}
	if target != nil && slices.ContainsFunc(compilePatterns(target.Patterns), func(pattern Pattern) bool { return pattern.regionAt() >= 0 }) {
		ps.add(p.Pos, "remove region", "names of %s say their region", p.Kind)
	}
}

// checkTarget gives the kind that is referred to, or nil after it reported why there is none.
func checkTarget(ps *Problems, d *Descriptor, pos Pos, target string, all map[ServiceVersion]*Descriptor) *Kind {
	id, err := d.kindID(target)
	if err != nil {
		ps.add(pos, "", "%v", err)
		return nil
	}
	of := d
	if id.Service != d.Service {
		i := slices.IndexFunc(d.Imports, func(i Import) bool { return i.Service == id.Service })
		if i < 0 {
			ps.add(pos, "add "+id.Service+"@<version> to imports", "%s refers to %s, which %s does not import", d.ServiceVersion, id, d.ServiceVersion)
			return nil
		}
		if of = all[d.Imports[i].ServiceVersion]; of == nil {
			return nil
		}
	}
	i := slices.IndexFunc(of.Kinds, func(k Kind) bool { return k.Name == id.Kind })
	if i < 0 {
		known := make([]string, len(of.Kinds))
		for j, k := range of.Kinds {
			known[j] = k.Name
		}
		slices.Sort(known)
		ps.add(pos, "its kinds are "+strings.Join(known, ", "), "unknown kind %s: %s has no such kind", id, of.ServiceVersion)
		return nil
	}
	if by := of.Kinds[i].ReferableBy; of != d && len(by) > 0 && !slices.Contains(by, d.Service) {
		ps.add(pos, "add "+d.Service+" to its referable_by, or remove the reference", "%s lets only %s refer to it", id, strings.Join(by, ", "))
	}
	if of.Kinds[i].ConstraintsDisabled {
		ps.add(pos, "remove the reference, or constraints_disabled from "+id.Kind, "nothing can refer to %s: its constraints are disabled", id)
	}
	return &of.Kinds[i]
}

// checkPreviousNames makes sure that each name, of this version and of an earlier one, stands for one kind.
func checkPreviousNames(ps *Problems, d *Descriptor, names map[string]bool) {
	for i := range d.Kinds {
		k := &d.Kinds[i]
		if k.PreviousName == "" {
			continue
		}
		if err := CheckKind(k.PreviousName); err != nil {
			ps.add(k.Pos, "", "previous_name: %v", err)
		}
		if names[k.PreviousName] {
			ps.add(k.Pos, "give the other kind another name, or remove previous_name", "previous_name %s is another kind of this version, or the previous name of one", k.PreviousName)
		}
		names[k.PreviousName] = true
	}
}

// kindID reads service/Kind, or Kind alone for a kind of d's own service.
func (d *Descriptor) kindID(s string) (KindID, error) {
	if !strings.Contains(s, "/") {
		return KindID{Service: d.Service, Kind: s}, CheckKind(s)
	}
	return ParseKindID(s)
}

func liesBelow(child, parent *Kind) bool {
	for _, c := range child.Patterns {
		for _, p := range parent.Patterns {
			if pattern, err := ParsePattern(p); err == nil && pattern.prefixOf(c) != "" {
				return true
			}
		}
	}
	// Bad patterns are reported where they stand.
	return len(child.Patterns) == 0 || len(parent.Patterns) == 0
}

// checkPatternOverlaps makes sure that a name tells its kind.
func checkPatternOverlaps(ps *Problems, d *Descriptor) {
	type owned struct {
		Pattern
		kind *Kind
	}
	var seen []owned
	for i := range d.Kinds {
		k := &d.Kinds[i]
		for _, text := range k.Patterns {
			p, err := ParsePattern(text)
			if err != nil {
				continue
			}
			for _, other := range seen {
				if p.overlaps(other.Pattern) {
					ps.add(k.Pos, "let the collections differ", "pattern %s of %s and pattern %s of %s fit the same names", p, k.Name, other.Pattern, other.kind.Name)
				}
			}
			seen = append(seen, owned{p, k})
		}
	}
}

func checkImportCycles(ps *Problems, descriptors []*Descriptor, all map[ServiceVersion]*Descriptor) {
	done := map[ServiceVersion]bool{}
	var path []ServiceVersion
	var visit func(d *Descriptor)
	visit = func(d *Descriptor) {
		if done[d.ServiceVersion] {
			return
		}
		path = append(path, d.ServiceVersion)
		for _, imp := range d.Imports {
			if imp.Service == d.Service {
				continue // reported by itself
			}
			if i := slices.Index(path, imp.ServiceVersion); i >= 0 {
				names := make([]string, 0, len(path)-i+1)
				for _, v := range append(slices.Clone(path[i:]), imp.ServiceVersion) {
					names = append(names, v.String())
				}
				ps.add(imp.Pos, "remove one of these imports", "imports form a cycle: %s", strings.Join(names, " -> "))
				continue
			}
			if next := all[imp.ServiceVersion]; next != nil {
				visit(next)
			}
		}
		path = path[:len(path)-1]
		done[d.ServiceVersion] = true
	}
	for _, d := range descriptors {
		visit(d)
	}
}
