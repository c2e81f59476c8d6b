package schema

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Verb is an operation that a grant allows on a resource.
type Verb string

// The verbs. Refer is the right to put a reference to the resource into another one; Operate the right to
// call the operators' methods that are about one resource.
const (
	Read    Verb = "read"
	Write   Verb = "write"
	Delete  Verb = "delete"
	Refer   Verb = "refer"
	Operate Verb = "operate"
	// GrantRights is the right of an operator to change the rights; no grant gives it.
	GrantRights Verb = "grant"
)

// Verbs are all verbs of grants.
var Verbs = []Verb{Read, Write, Delete, Refer, Operate}

// OperatorVerbs are all verbs of operators.
var OperatorVerbs = append(slices.Clone(Verbs), GrantRights)

// Every in a grant stands for every identity, kind or name.
const Every = "*"

// MaxGrants bounds the grants of an environment.
const MaxGrants = 1000

// AccessGrant gives an identity, or the members of a group, verbs on the resources of a kind whose names
// begin with a prefix.
type AccessGrant struct {
	// Identity is an identity's path without its slash, such as user/ann, or Every; empty when Group is set.
	Identity string
	Group    string
	Verbs    []Verb
	// Kind is service/Kind, service/* or Every; empty for Every.
	Kind string
	// Name is a relative name, which stands for the resource and all below it; or a text that ends in *,
	// which stands for all names that begin with the text. Empty for Every.
	Name string
	Pos  Pos
}

func (g AccessGrant) String() string {
	who := g.Identity
	if g.Group != "" {
		who = "group " + g.Group
	}
	return fmt.Sprintf("%s: %s", who, g.Verbs)
}

// Operator limits an operator to verbs and deployments.
type Operator struct {
	// Identity is operator/NAME.
	Identity string
	Verbs    []Verb
	// Deployments are service/region, with Every for either part; none: all.
	Deployments []string
	Pos         Pos
}

// On reports whether the operator is one of a deployment.
func (o Operator) On(id DeploymentID) bool {
	return len(o.Deployments) == 0 || slices.ContainsFunc(o.Deployments, func(pattern string) bool {
		return fitsDeployment(pattern, id)
	})
}

// fitsDeployment reports whether a deployment fits a pattern: service/region, with Every for either part.
func fitsDeployment(pattern string, id DeploymentID) bool {
	service, region, _ := strings.Cut(pattern, "/")
	return (service == Every || service == id.Service) && (region == Every || region == id.Region)
}

func checkDeploymentPattern(ps *Problems, pos Pos, pattern string) {
	service, region, ok := strings.Cut(pattern, "/")
	if !ok || service != Every && CheckService(service) != nil || region != Every && CheckRegion(region) != nil {
		ps.add(pos, "write service/region, service/*, */region", "deployment %q", clip(pattern))
	}
}

// Quota bounds the references of deployments to resources of other ones.
type Quota struct {
	// Holders and Targets are service/region, with Every for either part. Each deployment of Targets counts
	// by itself, and each of Holders.
	Holders, Targets string
	// Blocking is the maximum number of blocking references, Tentative of references under way; 0 for the
	// setting of the target's processes alone.
	Blocking, Tentative int64
	Pos                 Pos
}

func (q Quota) check(ps *Problems) {
	checkDeploymentPattern(ps, q.Pos, q.Holders)
	checkDeploymentPattern(ps, q.Pos, q.Targets)
	if q.Blocking < 0 || q.Tentative < 0 || q.Blocking == 0 && q.Tentative == 0 {
		ps.add(q.Pos, "write blocking: N, tentative: N, or both", "a quota has numbers greater than 0")
	}
}

// Quota returns the lowest numbers of the quotas for the references of a deployment to resources of another
// one; 0 for none.
func (r *Rights) Quota(holder, target DeploymentID) (blocking, tentative int64) {
	if r == nil {
		return 0, 0
	}
	for _, q := range r.Quotas {
		if !fitsDeployment(q.Holders, holder) || !fitsDeployment(q.Targets, target) {
			continue
		}
		if q.Blocking > 0 && (blocking == 0 || q.Blocking < blocking) {
			blocking = q.Blocking
		}
		if q.Tentative > 0 && (tentative == 0 || q.Tentative < tentative) {
			tentative = q.Tentative
		}
	}
	return blocking, tentative
}

func (o Operator) check(ps *Problems) {
	if !identityGrammar.MatchString(o.Identity) || !strings.HasPrefix(o.Identity, "operator/") {
		ps.add(o.Pos, "write operator/NAME", "identity %q: no operator", clip(o.Identity))
	}
	if len(o.Verbs) == 0 {
		ps.add(o.Pos, "add verbs: ["+joinVerbs(OperatorVerbs)+"], or some of them", "the operator has no verb")
	}
	for _, v := range o.Verbs {
		if !slices.Contains(OperatorVerbs, v) {
			ps.add(o.Pos, "the verbs of operators are "+joinVerbs(OperatorVerbs), "unknown verb %q", clip(string(v)))
		}
	}
	for _, pattern := range o.Deployments {
		checkDeploymentPattern(ps, o.Pos, pattern)
	}
}

// Rights are the rights by resource that an environment declares. With the zero value, and nil, users need
// grants to read, write and delete; a user, or another deployment, that may write a resource may refer to any
// resource by it.
type Rights struct {
	// Deny is the default deny: references need grants too, also of other deployments. It takes precedence
	// over Allow.
	Deny bool
	// Allow is the default allow: users may do all that their role allows, and grants only add the right to
	// operate.
	Allow bool
	// CascadeNeedsDelete: a delete needs the right to delete all that it takes along.
	CascadeNeedsDelete bool
	// MaxRemovals is the maximum number of resources that a delete of a person removes, unless its request
	// has a number; 0 for any number.
	MaxRemovals int64
	// TwoOperators are the Decisions that one operator signs and another one sends.
	TwoOperators []string
	Grants       []AccessGrant
	// Operators are the operators with their limits; none: each operator may make every call.
	Operators []Operator
	// Quotas of references; the lowest fitting one counts, beside the settings of the targets' processes.
	Quotas []Quota
	// Declaration is greater for a later declaration; 0 before the registry has set it.
	Declaration int64
	Pos         Pos
}

// Decisions of operators that the rights may require two operators for: the commands of these names.
var Decisions = []string{"decommission", "force-release"}

// MaxRemovals is the greatest limit of removals: a look-ahead counts no more.
const MaxRemovals = 9999

// With returns the grants of two declarations together; one of them is enough to deny by default, to need
// delete for a cascade, and to limit removals: the lower limit counts.
func (r *Rights) With(other *Rights) *Rights {
	if r == nil || other == nil {
		return cmp.Or(r, other)
	}
	most := max(r.MaxRemovals, other.MaxRemovals)
	if r.MaxRemovals > 0 && other.MaxRemovals > 0 {
		most = min(r.MaxRemovals, other.MaxRemovals)
	}
	return &Rights{
		Deny: r.Deny || other.Deny, Allow: r.Allow || other.Allow, CascadeNeedsDelete: r.CascadeNeedsDelete ||
			other.CascadeNeedsDelete, MaxRemovals: most,
		TwoOperators: slices.Concat(r.TwoOperators, other.TwoOperators), Grants: slices.Concat(r.Grants, other.Grants),
		Operators: slices.Concat(r.Operators, other.Operators), Quotas: slices.Concat(r.Quotas, other.Quotas),
		Pos: r.Pos,
	}
}

// After returns rights as a declaration at a time, which is later than the one before; nil for nil.
func (r *Rights) After(before *Rights, now time.Time) *Rights {
	if r == nil {
		return nil
	}
	declared := *r
	if declared.Declaration = now.UnixMicro(); before != nil {
		declared.Declaration = max(declared.Declaration, before.Declaration+1)
	}
	return &declared
}

// Same reports whether two declarations say the same.
func (r *Rights) Same(other *Rights) bool {
	return r != nil && other != nil && r.Deny == other.Deny && r.Allow == other.Allow &&
		r.CascadeNeedsDelete == other.CascadeNeedsDelete && r.MaxRemovals == other.MaxRemovals &&
		slices.Equal(r.TwoOperators, other.TwoOperators) &&
		slices.EqualFunc(r.Grants, other.Grants, func(a, b AccessGrant) bool {
			return slices.Equal(a.Verbs, b.Verbs) && a.Identity == b.Identity && a.Group == b.Group &&
				a.Kind == b.Kind && a.Name == b.Name
		}) && slices.EqualFunc(r.Operators, other.Operators, func(a, b Operator) bool {
		return a.Identity == b.Identity && slices.Equal(a.Verbs, b.Verbs) && slices.Equal(a.Deployments, b.Deployments)
	}) && slices.EqualFunc(r.Quotas, other.Quotas, func(a, b Quota) bool {
		a.Pos, b.Pos = Pos{}, Pos{}
		return a == b
	})
}

var (
	identityGrammar = regexp.MustCompile(`^(user|operator)/[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}$`)
	groupGrammar    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:/+-]{0,126}$`)
)

// CheckGroup accepts the names of groups.
func CheckGroup(s string) error {
	if !groupGrammar.MatchString(s) {
		return fmt.Errorf("group %q: want letters, digits and . _ @ : / + -, such as team-a", clip(s))
	}
	return nil
}

// Check validates the declaration. It returns all Problems at once.
func (r *Rights) Check() error {
	if r == nil {
		return nil
	}
	var ps Problems
	if len(r.Grants) > MaxGrants {
		ps.add(r.Pos, "grant rights to groups, or to shorter name prefixes", "%d grants, at most %d are allowed",
			len(r.Grants), MaxGrants)
	}
	for _, g := range r.Grants {
		g.check(&ps)
	}
	for _, o := range r.Operators {
		o.check(&ps)
	}
	for _, q := range r.Quotas {
		q.check(&ps)
	}
	for _, d := range r.TwoOperators {
		if !slices.Contains(Decisions, d) {
			ps.add(r.Pos, "the decisions are "+strings.Join(Decisions, ", "), "two_operators: unknown decision %q",
				clip(d))
		}
	}
	if len(r.Operators) > 0 && !slices.ContainsFunc(r.Operators, func(o Operator) bool {
		return slices.Contains(o.Verbs, GrantRights) && slices.Contains(o.Verbs, Operate) && len(o.Deployments) == 0
	}) {
		ps.add(r.Pos, "give one operator the verbs operate and grant on all deployments",
			"no operator could change the rights again")
	}
	return ps.or()
}

func (g AccessGrant) check(ps *Problems) {
	switch {
	case (g.Identity == "") == (g.Group == ""):
		ps.add(g.Pos, "write identity: user/NAME, or group: NAME", "want either an identity or a group")
	case g.Group != "":
		if err := CheckGroup(g.Group); err != nil {
			ps.add(g.Pos, "", "%v", err)
		}
	default:
		checkGrantee(ps, g)
	}
	if len(g.Verbs) == 0 {
		ps.add(g.Pos, "add verbs: ["+joinVerbs(Verbs)+"], or some of them", "the grant has no verb")
	}
	for _, v := range g.Verbs {
		if !slices.Contains(Verbs, v) {
			ps.add(g.Pos, "the verbs are "+joinVerbs(Verbs), "unknown verb %q", clip(string(v)))
		}
	}
	if err := checkGrantKind(g.Kind); err != nil {
		ps.add(g.Pos, "", "%v", err)
	}
	if err := checkGrantName(g.Name); err != nil {
		ps.add(g.Pos, "", "%v", err)
	}
}

func checkGrantee(ps *Problems, g AccessGrant) {
	if g.Identity == Every || identityGrammar.MatchString(g.Identity) {
		return
	}
	if deployment, ok := strings.CutPrefix(g.Identity, "deployment/"); ok {
		if _, err := ParseDeploymentID(deployment); err != nil {
			ps.add(g.Pos, "", "identity: %v", err)
		}
		return
	}
	ps.add(g.Pos, "write user/NAME, operator/NAME, deployment/SERVICE/REGION, or * for everybody",
		"identity %q: unknown form", clip(g.Identity))
}

func joinVerbs(verbs []Verb) string {
	texts := make([]string, len(verbs))
	for i, v := range verbs {
		texts[i] = string(v)
	}
	return strings.Join(texts, ", ")
}

func checkGrantKind(kind string) error {
	if kind == "" || kind == Every {
		return nil
	}
	if service, ok := strings.CutSuffix(kind, "/"+Every); ok {
		return CheckService(service)
	}
	_, err := ParseKindID(kind)
	return err
}

// checkGrantName accepts relative names, and texts that end in * and can begin a relative name.
func checkGrantName(name string) error {
	prefix, open := strings.CutSuffix(name, Every)
	switch {
	case name == "" || name == Every:
		return nil
	case !open:
		return CheckName(name)
	case len(prefix) > MaxNameBytes:
		return fmt.Errorf("name %q: %d bytes, at most %d are allowed", clip(name), len(prefix), MaxNameBytes)
	}
	for _, rest := range []string{"", "a", "a/a", "/a", "/a/a"} { // one of them completes a part of a name
		if CheckName(prefix+rest) == nil {
			return nil
		}
	}
	return fmt.Errorf("name %q: no name begins with %q; want such as projects/acme, or projects/acme-*", clip(name),
		clip(prefix))
}

// CheckKinds reports grants of kinds that a described service does not have in any version.
func (r *Rights) CheckKinds(descriptors []*Descriptor) error {
	if r == nil {
		return nil
	}
	var ps Problems
	kinds := NewKinds(descriptors)
	for _, g := range r.Grants {
		if id, err := ParseKindID(g.Kind); err == nil && !kinds.Knows(id) {
			ps.add(g.Pos, "its kinds are "+strings.Join(kinds.Names(id.Service), ", "),
				"%s has no kind %s in any version", id.Service, id.Kind)
		}
	}
	return ps.or()
}
