package schema

import (
	"io"

	"go.yaml.in/yaml/v3"
)

// WriteFile writes a file as ParseFile reads it: a document for each service, and one with regions,
// deployments and rights. A file of nothing is empty.
func WriteFile(w io.Writer, f *File) error {
	var documents []*yaml.Node
	for _, d := range f.Services {
		documents = append(documents, d.Document(nil))
	}
	if rest := f.document(); len(rest.Content) > 0 {
		documents = append(documents, rest)
	}
	if len(documents) == 0 { // the encoder fails at the end of no document
		return nil
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	for _, n := range documents {
		if err := encoder.Encode(n); err != nil {
			return err
		}
	}
	return encoder.Close()
}

// document has all of a file but its services.
func (f *File) document() *yaml.Node {
	n := yamlMapping()
	n.texts("regions", f.Regions)
	n.nodes("deployments", yamlEach(f.Deployments, func(d Deployment) yamlMap {
		one := yamlMapping()
		one.text("deployment", d.DeploymentID.String())
		one.text("version", d.Version)
		one.text("address", d.Address)
		one.flag("disabled", d.Disabled)
		return one
	}))
	if f.Rights != nil {
		rights := yamlMapping()
		switch {
		case f.Rights.Deny:
			rights.text("default", "deny")
		case f.Rights.Allow:
			rights.text("default", "allow")
		}
		rights.flag("cascade_needs_delete", f.Rights.CascadeNeedsDelete)
		if f.Rights.MaxRemovals > 0 {
			rights.value("max_removals", f.Rights.MaxRemovals)
		}
		rights.texts("two_operators", f.Rights.TwoOperators)
		rights.nodes("grants", yamlEach(f.Rights.Grants, func(g AccessGrant) yamlMap {
			one := yamlMapping()
			one.Style = yaml.FlowStyle
			one.text("identity", g.Identity)
			one.text("group", g.Group)
			one.texts("verbs", verbTexts(g.Verbs))
			one.text("kind", g.Kind)
			one.text("name", g.Name)
			return one
		}))
		rights.nodes("operators", yamlEach(f.Rights.Operators, func(o Operator) yamlMap {
			one := yamlMapping()
			one.Style = yaml.FlowStyle
			one.text("identity", o.Identity)
			one.texts("verbs", verbTexts(o.Verbs))
			one.texts("deployments", o.Deployments)
			return one
		}))
		rights.nodes("quotas", yamlEach(f.Rights.Quotas, func(q Quota) yamlMap {
			one := yamlMapping()
			one.Style = yaml.FlowStyle
			one.text("holders", q.Holders)
			one.text("targets", q.Targets)
			if q.Blocking > 0 {
				one.value("blocking", q.Blocking)
			}
			if q.Tentative > 0 {
				one.value("tentative", q.Tentative)
			}
			return one
		}))
		n.add("rights", rights.Node)
	}
	return n.Node
}

func verbTexts(verbs []Verb) []string {
	texts := make([]string, len(verbs))
	for i, v := range verbs {
		texts[i] = string(v)
	}
	return texts
}

// Document returns the YAML of a descriptor. The comment of a reference stands above it; comment may be nil.
func (d *Descriptor) Document(comment func(kind string, r *Reference) string) *yaml.Node {
	n := yamlMapping()
	n.text("service", d.Service)
	n.text("version", d.Version)
	var imports []string
	for _, i := range d.Imports {
		imports = append(imports, i.String())
	}
	n.texts("imports", imports)
	n.text("patterns_dropped", d.PatternsDropped)
	n.nodes("kinds", yamlEach(d.Kinds, func(k Kind) yamlMap { return k.node(comment) }))
	n.nodes("acknowledge", yamlEach(d.Acknowledged, func(a Acknowledgement) yamlMap {
		one := yamlMapping()
		one.text("warning", a.Finding)
		one.text("at", a.At)
		one.text("reason", a.Reason)
		return one
	}))
	return n.Node
}

func (k *Kind) node(comment func(kind string, r *Reference) string) yamlMap {
	n := yamlMapping()
	n.text("kind", k.Name)
	n.text("previous_name", k.PreviousName)
	if k.Table != (TableName{}) {
		n.text("table", k.Table.String())
	}
	n.texts("key", k.Key)
	n.text("gone", k.Gone)
	n.texts("patterns", k.Patterns)
	n.flag("hide_while_deleting", k.HideWhileDeleting)
	n.flag("constraints_disabled", k.ConstraintsDisabled)
	n.texts("referable_by", k.ReferableBy)
	if k.DelegationNone {
		n.text("delegation", "none")
	}
	if k.DeletesAtomically {
		n.text("deletion", "atomic")
	}
	if k.Retention > 0 {
		n.text("retention", FormatRetention(k.Retention))
	}
	n.nodes("parents", yamlEach(k.Parents, func(p Parent) yamlMap {
		one := yamlMapping()
		one.text("kind", p.Kind)
		one.behaviour(p.Behaviour)
		one.until(p.UntilRemoved)
		one.text("region", p.Region)
		one.within("region", "field", p.RegionField)
		return one
	}))
	n.nodes("references", yamlEach(k.References, func(r Reference) yamlMap {
		one := r.node()
		if comment != nil {
			one.HeadComment = comment(k.Name, &r)
		}
		return one
	}))
	n.nodes("fields", yamlEach(k.Fields, func(f Field) yamlMap {
		one := yamlMapping()
		one.text("path", f.Path)
		if f.Default != nil {
			one.value("default", f.Default)
		}
		one.flag("required", f.Required)
		one.flag("immutable", f.Immutable)
		return one
	}))
	if k.Schema != nil {
		n.value("schema", k.Schema)
	}
	n.nodes("finalizers", yamlEach(k.Finalizers, func(f Finalizer) yamlMap {
		one := yamlMapping()
		one.text("name", f.Name)
		one.text("holder", f.Holder)
		return one
	}))
	return n
}

func (r *Reference) node() yamlMap {
	n := yamlMapping()
	n.text("path", r.Path)
	n.texts("columns", r.Columns)
	n.texts("targets", r.Targets)
	n.text("region", r.Region.Fixed)
	if r.Region.Same {
		n.text("region", "same")
	}
	n.within("region", "column", r.Region.Column)
	n.behaviour(r.Behaviour)
	n.until(r.UntilRemoved)
	n.text("enforce", string(r.Enforce))
	n.text("missing", string(r.Missing))
	n.texts("none", r.None)
	if r.When != (RowCondition{}) {
		n.within("when", r.When.Column, r.When.Value)
	}
	n.texts("unset", r.Unset)
	if r.UnsetToDefault {
		n.text("unset_to", "default")
	}
	if r.MatchFull {
		n.text("match", "full")
	}
	return n
}

// yamlMap is a mapping to which keys with values are added; keys without a value are left out.
type yamlMap struct{ *yaml.Node }

func yamlMapping() yamlMap { return yamlMap{&yaml.Node{Kind: yaml.MappingNode}} }

func (m yamlMap) add(key string, value *yaml.Node) {
	m.Content = append(m.Content, yamlText(key), value)
}

func (m yamlMap) text(key, value string) {
	if value != "" {
		m.add(key, yamlText(value))
	}
}

func (m yamlMap) behaviour(b Behaviour) {
	if b.Valid() {
		m.text("behaviour", b.String())
	}
}

func (m yamlMap) until(removed bool) {
	if removed {
		m.text("until", "removed")
	}
}

func (m yamlMap) flag(key string, value bool) {
	if value {
		m.value(key, value)
	}
}

// value adds a value that JSON has.
func (m yamlMap) value(key string, value any) {
	n := &yaml.Node{}
	if err := n.Encode(value); err != nil { // values of JSON can be encoded
		n = yamlText(err.Error())
	}
	m.add(key, n)
}

func (m yamlMap) texts(key string, values []string) {
	if len(values) == 0 {
		return
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range values {
		n.Content = append(n.Content, yamlText(s))
	}
	m.add(key, n)
}

func (m yamlMap) nodes(key string, values []*yaml.Node) {
	if len(values) > 0 {
		m.add(key, &yaml.Node{Kind: yaml.SequenceNode, Content: values})
	}
}

// within adds a mapping of one key.
func (m yamlMap) within(key, inner, value string) {
	if value == "" {
		return
	}
	one := yamlMapping()
	one.Style = yaml.FlowStyle
	one.text(inner, value)
	m.add(key, one.Node)
}

func yamlEach[T any](values []T, node func(T) yamlMap) (out []*yaml.Node) {
	for _, v := range values {
		out = append(out, node(v).Node)
	}
	return out
}

func yamlText(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}
