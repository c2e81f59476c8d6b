package schema

import (
	"slices"
	"strings"
)

// Check validates descriptors together: grammar, unknown kinds, references to services that are not imported,
// import cycles, invalid behaviours. It returns all Problems at once.
func Check(descriptors []*Descriptor) error {
	var ps Problems
	all := map[ServiceVersion]*Descriptor{}
	for _, d := range descriptors {
		if other, ok := all[d.ServiceVersion]; ok {
			ps.add(d.Pos, "keep one of the two", "%s is described twice, first at %s", d.ServiceVersion,
				strings.TrimSuffix(other.Pos.String(), ":"))
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
			ps.add(imp.Pos, "add its descriptor, or correct the import",
				"import %s: there is no descriptor of this version", imp.ServiceVersion)
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
	checkTables(ps, d)
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
	checkTable(ps, k)
	checkFields(ps, k)
	checkFinalizers(ps, d.Service, k)
	for i := range k.Parents {
		checkParent(ps, d, k, &k.Parents[i], all)
	}
	checkUntils(ps, k)
	paths, bodies := map[string]bool{}, map[string]bool{}
	for i := range k.References {
		r := &k.References[i]
		switch {
		case paths[r.Field()]:
			ps.add(r.Pos, "list all target kinds in one reference", "%s is listed twice", r.named())
		case len(r.Columns) > 0 && bodies[r.BodyPath()]:
			ps.add(r.Pos, "rename a column, or write another value in when", "%s has the field %s of another reference",
				r.named(), r.BodyPath())
		}
		paths[r.Field()], bodies[r.BodyPath()] = true, true
		checkReference(ps, d, k, r, all)
	}
}

func checkParent(ps *Problems, d *Descriptor, k *Kind, parent *Parent, all map[ServiceVersion]*Descriptor) {
	target := checkTarget(ps, d, parent.Pos, parent.Kind, all)
	if parent.Behaviour.Unsets() {
		ps.add(parent.Pos, "use CASCADE_DELETE or BLOCK",
			"%s cannot be a parent's behaviour: the parent's name is part of the child's name and cannot be removed from it", parent.Behaviour)
	} else if !parent.Behaviour.Valid() {
		ps.add(parent.Pos, "add the effect on the child when the parent is deleted, such as CASCADE_DELETE",
			"behaviour is missing")
	}
	checkUntil(ps, k, parent.Pos, parent.UntilRemoved, parent.Behaviour)
	checkParentRegion(ps, parent, target)
	if target != nil && !liesBelow(k, target) {
		ps.add(parent.Pos, "begin a pattern of "+k.Name+" with a pattern of "+parent.Kind,
			"no name of %s lies below one of %s", k.Name, parent.Kind)
	}
}

func checkReference(ps *Problems, d *Descriptor, k *Kind, r *Reference, all map[ServiceVersion]*Descriptor) {
	if k.Table == (TableName{}) && len(r.Columns) == 0 {
		if _, err := ParsePath(r.Path); err != nil {
			ps.add(r.Pos, "", "%v", err)
		}
	}
	if len(r.Targets) == 0 {
		ps.add(r.Pos, "add targets, such as [iam.example.com/Project]", "reference %s has no target kind", r.Field())
	}
	if !r.Behaviour.Valid() {
		ps.add(r.Pos, "add the effect on the holder when the target is deleted, such as BLOCK", "behaviour is missing")
	}
	checkUntil(ps, k, r.Pos, r.UntilRemoved, r.Behaviour)
	var targets []*Kind
	for _, target := range r.Targets {
		if t := checkTarget(ps, d, r.Pos, target, all); t != nil {
			targets = append(targets, t)
		}
	}
	checkTableReference(ps, k, r, targets)
}

// checkUntils refuses parents that are kept in different ways: they are stored under one path.
func checkUntils(ps *Problems, k *Kind) {
	var kept, left bool
	for i := range k.Parents {
		if p := &k.Parents[i]; p.Behaviour == Block {
			kept, left = kept || p.UntilRemoved, left || !p.UntilRemoved
		}
	}
	if kept && left {
		ps.add(k.Pos, "write until: removed at all of them, or at none",
			"kind %s has parents with BLOCK, of which some have until", k.Name)
	}
}

func checkUntil(ps *Problems, k *Kind, at Pos, removed bool, b Behaviour) {
	switch {
	case !removed:
	case k.Table != (TableName{}):
		ps.add(at, "remove until", "kind %s is a table, whose rows are removed at once", k.Name)
	case b != Block:
		ps.add(at, "use BLOCK, or remove until",
			"until: removed is for BLOCK: with %s the target does not wait for the holder", b)
	}
}

func checkParentRegion(ps *Problems, p *Parent, target *Kind) {
	if p.Region == "" && p.RegionField == "" {
		return
	}
	if p.Region != "" && p.RegionField != "" {
		ps.add(p.Pos, "remove one of them", "the parent has both a region and a region field")
	}
	if p.Region != "" {
		if err := CheckRegion(p.Region); err != nil {
			ps.add(p.Pos, "", "%v", err)
		}
	}
	if p.RegionField != "" {
		path, err := ParsePath(p.RegionField)
		if err != nil {
			ps.add(p.Pos, "", "%v", err)
		} else if slices.Contains(path.segments, "*") {
			ps.add(p.Pos, "name one field, without a star", "region: the field %s can have many values", p.RegionField)
		}
	}
	if target != nil && slices.ContainsFunc(compilePatterns(target.Patterns), func(pattern Pattern) bool {
		return pattern.regionAt() >= 0
	}) {
		ps.add(p.Pos, "remove region", "names of %s contain their region", p.Kind)
	}
}

// checkTarget returns the kind that a reference names, or nil after it added the problem.
func checkTarget(ps *Problems, d *Descriptor, pos Pos, target string, all map[ServiceVersion]*Descriptor) *Kind {
	id, err := d.KindID(target)
	if err != nil {
		ps.add(pos, "", "%v", err)
		return nil
	}
	of := d
	if id.Service != d.Service {
		i := slices.IndexFunc(d.Imports, func(i Import) bool { return i.Service == id.Service })
		if i < 0 {
			ps.add(pos, "add "+id.Service+"@<version> to imports", "%s refers to %s, which %s does not import",
				d.ServiceVersion, id, d.ServiceVersion)
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
		ps.add(pos, "its kinds are "+strings.Join(known, ", "), "unknown kind %s: %s has no such kind", id,
			of.ServiceVersion)
		return nil
	}
	if by := of.Kinds[i].ReferableBy; of != d && len(by) > 0 && !slices.Contains(by, d.Service) {
		ps.add(pos, "add "+d.Service+" to its referable_by, or remove the reference", "%s lets only %s refer to it", id,
			strings.Join(by, ", "))
	}
	if of.Kinds[i].ConstraintsDisabled {
		ps.add(pos, "remove the reference, or constraints_disabled from "+id.Kind,
			"nothing can refer to %s: its constraints are disabled", id)
	}
	return &of.Kinds[i]
}

// checkPreviousNames checks that each name, current or previous, belongs to one kind of the version.
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
			ps.add(k.Pos, "give the other kind another name, or remove previous_name",
				"previous_name %s is the name, or the previous name, of another kind of this version", k.PreviousName)
		}
		names[k.PreviousName] = true
	}
}

// KindID parses service/Kind, or Kind alone for a kind of the service of d.
func (d *Descriptor) KindID(s string) (KindID, error) {
	if !strings.Contains(s, "/") {
		return KindID{Service: d.Service, Kind: s}, CheckKind(s)
	}
	return ParseKindID(s)
}

func liesBelow(child, parent *Kind) bool {
	for _, c := range child.Patterns {
		for _, p := range parent.Patterns {
			if pattern, err := ParsePattern(p); err == nil && pattern.PrefixOf(c) != "" {
				return true
			}
		}
	}
	// Invalid patterns have problems of their own.
	return len(child.Patterns) == 0 || len(parent.Patterns) == 0
}

// checkPatternOverlaps checks that no name fits patterns of two kinds.
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
					ps.add(k.Pos, "use different collections",
						"pattern %s of %s and pattern %s of %s match the same names", p, k.Name, other.Pattern,
						other.kind.Name)
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
				continue // a problem of its own
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
