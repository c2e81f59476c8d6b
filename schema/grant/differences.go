package grant

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Differences returns a line for each right that an identity or a group gains or loses when an environment
// becomes another one.
func Differences(before, after *schema.Environment) []string {
	old, now := Compile(before), Compile(after)
	var lines []string
	switch {
	case !old.allow && now.allow:
		lines = append(lines, "every user gains read, write, delete: the default is allow")
	case old.allow && !now.allow:
		lines = append(lines, "every user loses read, write, delete where no grant allows it")
	}
	switch {
	case old.deny && !now.deny:
		lines = append(lines, "everybody gains refer: the default is not deny")
	case !old.deny && now.deny:
		lines = append(lines, "everybody loses refer where no grant allows it: the default is deny")
	}
	switch was, is := needsDelete(before), needsDelete(after); {
	case !was && is:
		lines = append(lines,
			"everybody loses the right to delete what takes resources along that the caller may not delete")
	case was && !is:
		lines = append(lines,
			"everybody gains the right to delete what takes resources along that the caller may not delete")
	}
	if was, is := old.MaxRemovals, now.MaxRemovals; was != is {
		lines = append(lines, fmt.Sprintf("a delete removes %s, was %s, unless its request has a number", atMost(is),
			atMost(was)))
	}
	for _, decision := range schema.Decisions {
		switch was, is := slices.Contains(old.TwoOperators, decision), slices.Contains(now.TwoOperators, decision); {
		case !was && is:
			lines = append(lines, decision+" needs two operators")
		case was && !is:
			lines = append(lines, decision+" needs one operator, no longer two")
		}
	}
	lines = append(lines, lost(now, old, after.Rights, "gains")...)
	lines = append(lines, lost(old, now, before.Rights, "loses")...)
	lines = append(lines, operators(old, now)...)
	lines = append(lines, quotas(before.Rights, after.Rights)...)
	if len(lines) == 0 {
		lines = append(lines, "nobody gains or loses a right")
	}
	return lines
}

// operators returns a line for each change of the limits of operators.
func operators(old, now *Rights) (lines []string) {
	switch {
	case !old.Limited() && now.Limited():
		lines = append(lines, "operators lose everything but what the list gives them")
	case old.Limited() && !now.Limited():
		return []string{"each operator gains everything"}
	}
	text := func(o schema.Operator) string {
		verbs := make([]string, len(o.Verbs))
		for i, v := range o.Verbs {
			verbs[i] = string(v)
		}
		at := "all deployments"
		if len(o.Deployments) > 0 {
			at = strings.Join(o.Deployments, ", ")
		}
		return strings.Join(verbs, ", ") + " at " + at
	}
	missing := func(in, of []schema.Operator, word string) {
		for _, o := range in {
			if !slices.ContainsFunc(of, func(other schema.Operator) bool {
				return other.Identity == o.Identity && text(other) == text(o)
			}) {
				lines = append(lines, o.Identity+word+text(o))
			}
		}
	}
	missing(now.operators, old.operators, " has now ")
	missing(old.operators, now.operators, " has no longer ")
	return lines
}

// quotas returns a line for each quota that is added or removed.
func quotas(before, after *schema.Rights) (lines []string) {
	all := func(r *schema.Rights) (texts []string) {
		if r == nil {
			return nil
		}
		for _, q := range r.Quotas {
			var numbers []string
			if q.Blocking > 0 {
				numbers = append(numbers, fmt.Sprintf("%d blocking references", q.Blocking))
			}
			if q.Tentative > 0 {
				numbers = append(numbers, fmt.Sprintf("%d references under way", q.Tentative))
			}
			texts = append(texts, fmt.Sprintf("%s to resources of %s: at most %s", q.Holders, q.Targets,
				strings.Join(numbers, " and ")))
		}
		return texts
	}
	old, now := all(before), all(after)
	for _, text := range now {
		if !slices.Contains(old, text) {
			lines = append(lines, "a new quota: "+text)
		}
	}
	for _, text := range old {
		if !slices.Contains(now, text) {
			lines = append(lines, "no longer a quota: "+text)
		}
	}
	return lines
}

func atMost(removals int64) string {
	if removals == 0 {
		return "any number of resources"
	}
	return fmt.Sprintf("at most %d resources", removals)
}

func needsDelete(env *schema.Environment) bool {
	return env.Rights != nil && env.Rights.CascadeNeedsDelete
}

// lost returns the rights of a declaration, compiled as has, that other does not give.
func lost(has, other *Rights, declared *schema.Rights, word string) (lines []string) {
	if declared == nil {
		return nil
	}
	for _, g := range declared.Grants {
		kind, ok := has.kindOf(g.Kind)
		if !ok {
			continue
		}
		who := grantee(g)
		var verbs []string
		for _, verb := range g.Verbs {
			if !other.gives(who, verb, kind, NameRanges(g.Name)) {
				verbs = append(verbs, string(verb))
			}
		}
		if len(verbs) > 0 {
			lines = append(lines, named(who)+" "+word+" "+strings.Join(verbs, ", ")+" on "+on(g))
		}
	}
	return lines
}

// on names the resources of a grant.
func on(g schema.AccessGrant) string {
	kind := "everything"
	if g.Kind != "" && g.Kind != schema.Every {
		kind = g.Kind
	}
	switch {
	case g.Name == "" || g.Name == schema.Every:
		return kind
	case strings.HasSuffix(g.Name, schema.Every):
		return kind + " with names " + g.Name
	default:
		return kind + " at and below " + g.Name
	}
}

func named(who string) string {
	if who == schema.Every {
		return "everybody"
	}
	return who
}

func grantee(g schema.AccessGrant) string {
	if g.Group != "" {
		return "group " + g.Group
	}
	return g.Identity
}

// gives reports whether a grantee has a verb on all names of ranges, of a kind; an empty kind is all of the
// service, and no service all.
func (r *Rights) gives(who string, verb schema.Verb, kind schema.KindID, ranges []NameRange) bool {
	if r.byDefault(Subject{Identity: who}, verb) {
		return true
	}
	var have []NameRange
	for _, grantee := range []string{schema.Every, who} {
		for _, rule := range r.rules[grantee] {
			of := rule.kind
			if slices.Contains(rule.verbs, verb) && (of.Service == "" || of.Service == kind.Service &&
				(of.Kind == "" || of == kind)) {
				have = append(have, rule.ranges...)
			}
		}
	}
	want := JoinedRanges(slices.Clone(ranges))
	return slices.Equal(CommonRanges(JoinedRanges(have), want), want)
}

// Holder is an identity or a group that a grant gives a right.
type Holder struct {
	// Who is an identity such as user/ann, "group " and a group, or everybody.
	Who string
	// Verbs of the grant, joined by commas, and its resources in words.
	Verbs, On string
	// Limits: the operator has it by being one, within the limits.
	Limits bool
}

// HolderOf describes a grant.
func HolderOf(g schema.AccessGrant) Holder {
	verbs := make([]string, len(g.Verbs))
	for i, v := range g.Verbs {
		verbs[i] = string(v)
	}
	return Holder{Who: named(grantee(g)), Verbs: strings.Join(verbs, ", "), On: on(g)}
}

// Holders returns the subjects that have a right on a resource by a grant, and the operators whose limits
// leave it to them; operators without limits have every right, and are left out. Open: each caller has it
// without a grant.
func Holders(env *schema.Environment, verb schema.Verb, name schema.FullName) (holders []Holder, open bool) {
	rights := Compile(env)
	if env.Rights == nil {
		return nil, rights.open(Subject{}, verb, name.Deployment)
	}
	for _, o := range env.Rights.Operators {
		if rights.Operator(Subject{Identity: o.Identity}, verb, name.Deployment) {
			holders = append(holders, Holder{Who: o.Identity, Limits: true})
		}
	}
	kinds := rights.kindsOf(name)
	for _, g := range env.Rights.Grants {
		rule, ok := rights.rule(g)
		if ok && !strings.HasPrefix(g.Identity, "operator/") && rule.covers(verb, kinds) && rule.has(name.Name) {
			holders = append(holders, HolderOf(g))
		}
	}
	return holders, rights.open(Subject{}, verb, name.Deployment)
}
