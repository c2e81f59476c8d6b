// Package grant decides about the rights of identities to resources, from the declarations of an environment.
// It is pure: no database, no network.
package grant

import (
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Subject is the caller whose right is decided.
type Subject struct {
	// Identity is the path of an identity without its slash, such as user/ann.
	Identity string
	Groups   []string
}

// operator reports whether the subject has an operator's certificate. Operators have all rights that their
// limits leave them: grants cannot lock them out.
func (s Subject) operator() bool { return strings.HasPrefix(s.Identity, "operator/") }

// deployment reports whether the subject is another deployment.
func (s Subject) deployment() bool { return strings.HasPrefix(s.Identity, "deployment/") }

// Rights are the compiled rights of one environment. They are never changed.
type Rights struct {
	deny     bool // schema.Rights.Deny
	allow    bool // schema.Rights.Allow, without Deny
	cascades bool // schema.Rights.CascadeNeedsDelete
	// MaxRemovals is schema.Rights.MaxRemovals.
	MaxRemovals int64
	// TwoOperators is schema.Rights.TwoOperators.
	TwoOperators []string

	kinds    *schema.Kinds
	versions map[schema.DeploymentID]string
	// The rules by grantee: an identity, "group " and a group, or schema.Every.
	rules map[string][]rule
	// operators are the operators with limits; none: no operator has one.
	operators []schema.Operator
}

// rule is a grant without its grantee.
type rule struct {
	verbs  []schema.Verb
	kind   schema.KindID // its oldest name; no kind for all of the service, no service for all
	ranges []NameRange
}

func (r rule) covers(verb schema.Verb, kinds []schema.KindID) bool {
	return slices.Contains(r.verbs, verb) &&
		(r.kind.Service == "" || slices.ContainsFunc(kinds, func(k schema.KindID) bool {
			return k.Service == r.kind.Service && (r.kind.Kind == "" || r.kind == k)
		}))
}

func (r rule) has(name string) bool {
	return slices.ContainsFunc(r.ranges, func(of NameRange) bool { return of.Has(name) })
}

// Compile compiles the rights of an environment that was checked. A grant that it cannot read grants nothing.
func Compile(env *schema.Environment) *Rights {
	out := &Rights{
		kinds: schema.NewKinds(env.Services), versions: map[schema.DeploymentID]string{},
		rules: map[string][]rule{},
	}
	for _, d := range env.Deployments {
		out.versions[d.DeploymentID] = d.Version
	}
	if env.Rights == nil {
		return out
	}
	out.deny, out.allow = env.Rights.Deny, env.Rights.Allow && !env.Rights.Deny
	out.cascades, out.operators = env.Rights.CascadeNeedsDelete, env.Rights.Operators
	out.MaxRemovals, out.TwoOperators = env.Rights.MaxRemovals, env.Rights.TwoOperators
	for _, g := range env.Rights.Grants {
		if rule, ok := out.rule(g); ok {
			out.rules[grantee(g)] = append(out.rules[grantee(g)], rule)
		}
	}
	return out
}

func (r *Rights) rule(g schema.AccessGrant) (rule, bool) {
	kind, ok := r.kindOf(g.Kind)
	return rule{verbs: g.Verbs, kind: kind, ranges: NameRanges(g.Name)}, ok
}

// kindsOf returns the kinds that a name of a deployment can have; one without a name for a name of no kind.
func (r *Rights) kindsOf(name schema.FullName) []schema.KindID {
	if kinds := r.kinds.Of(name.Deployment.Service, r.versions[name.Deployment], name.Name); len(kinds) > 0 {
		return kinds
	}
	return []schema.KindID{{Service: name.Deployment.Service}}
}

func (r *Rights) kindOf(text string) (schema.KindID, bool) {
	if text == "" || text == schema.Every {
		return schema.KindID{}, true
	}
	if service, ok := strings.CutSuffix(text, "/"+schema.Every); ok {
		return schema.KindID{Service: service}, true
	}
	id, err := schema.ParseKindID(text)
	return r.kinds.Root(id), err == nil
}

// Operator reports whether the limits of an operator allow a verb at a deployment. Limits need no other kind
// of certificate: where operators are listed, an operator that is not listed has no right by being one.
func (r *Rights) Operator(who Subject, verb schema.Verb, at schema.DeploymentID) bool {
	return who.operator() && (len(r.operators) == 0 || slices.ContainsFunc(r.operators, func(o schema.Operator) bool {
		return o.Identity == who.Identity && slices.Contains(o.Verbs, verb) && o.On(at)
	}))
}

// Limited reports whether operators have limits.
func (r *Rights) Limited() bool { return len(r.operators) > 0 }

// open reports whether the verb needs no grant at a deployment. The right to operate always does, because
// without one only operators have it.
func (r *Rights) open(who Subject, verb schema.Verb, at schema.DeploymentID) bool {
	if who.operator() {
		return r.Operator(who, verb, at)
	}
	return r.byDefault(who, verb)
}

// byDefault reports whether a subject that is no operator needs no grant for a verb.
func (r *Rights) byDefault(who Subject, verb schema.Verb) bool {
	switch {
	case verb == schema.Operate:
		return false
	case verb == schema.Refer || who.deployment(): // a reference also needs the right to write its holder
		return !r.deny
	}
	return r.allow
}

// Authorize reports whether a subject has a right on a resource, whether or not that exists.
func (r *Rights) Authorize(who Subject, verb schema.Verb, name schema.FullName) bool {
	if r.open(who, verb, name.Deployment) {
		return true
	}
	kinds := r.kindsOf(name)
	for rule := range r.rulesOf(who) {
		if rule.covers(verb, kinds) && rule.has(name.Name) {
			return true
		}
	}
	return false
}

// CascadeNeedsDelete reports whether a delete of a subject needs the right to delete all that it takes along.
func (r *Rights) CascadeNeedsDelete(who Subject) bool {
	return r.cascades && (!who.operator() || r.Limited())
}

// Ranges returns the names of a kind in a deployment on which Authorize gives a subject a right: disjoint
// ranges in order. An empty kind stands for the names that fit no kind.
func (r *Rights) Ranges(who Subject, verb schema.Verb, at schema.DeploymentID, name string) []NameRange {
	kind := schema.KindID{Service: at.Service, Kind: name}
	if r.open(who, verb, at) {
		return []NameRange{AllNames}
	}
	var out []NameRange
	for rule := range r.rulesOf(who) {
		if rule.covers(verb, []schema.KindID{r.kinds.Root(kind)}) {
			out = append(out, rule.ranges...)
		}
	}
	return JoinedRanges(out)
}

// Within returns the Ranges of each kind of a deployment, for lists and watches; nil when the subject has the
// right on all names.
func (r *Rights) Within(who Subject, verb schema.Verb, at schema.DeploymentID) Within {
	if r.open(who, verb, at) {
		return nil
	}
	out := Within{schema.Every: r.Ranges(who, verb, at, "")}
	for _, kind := range r.kinds.Names(at.Service) {
		out[kind] = r.Ranges(who, verb, at, kind)
	}
	return out
}

func (r *Rights) rulesOf(who Subject) func(func(rule) bool) {
	return func(yield func(rule) bool) {
		grantees := []string{schema.Every, who.Identity}
		if who.operator() && r.Limited() {
			grantees = grantees[1:] // Every means every user: an operator has the rights of the list
		}
		for _, g := range who.Groups {
			grantees = append(grantees, "group "+g)
		}
		for _, grantee := range grantees {
			for _, rule := range r.rules[grantee] {
				if !yield(rule) {
					return
				}
			}
		}
	}
}
