package wire

import (
	"fmt"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// Rights converts rights; nil for none. schema.Rights.Check validates them.
func Rights(p *registryv1.Rights) *schema.Rights {
	if p == nil {
		return nil
	}
	out := &schema.Rights{
		Deny: p.GetDeny(), Allow: p.GetAllow(), CascadeNeedsDelete: p.GetCascadeNeedsDelete(),
		MaxRemovals: p.GetMaxRemovals(), TwoOperators: p.GetTwoOperators(), Declaration: p.GetDeclaration(),
		Pos: schema.Pos{Path: "rights"},
	}
	for i, g := range p.GetGrants() {
		grant := schema.AccessGrant{
			Identity: g.GetIdentity(), Group: g.GetGroup(), Kind: g.GetKind(), Name: g.GetName(),
			Pos: schema.Pos{Path: fmt.Sprintf("rights.grants[%d]", i)},
		}
		for _, v := range g.GetVerbs() {
			grant.Verbs = append(grant.Verbs, schema.Verb(v))
		}
		out.Grants = append(out.Grants, grant)
	}
	for i, o := range p.GetOperators() {
		operator := schema.Operator{
			Identity: o.GetIdentity(), Deployments: o.GetDeployments(),
			Pos: schema.Pos{Path: fmt.Sprintf("rights.operators[%d]", i)},
		}
		for _, v := range o.GetVerbs() {
			operator.Verbs = append(operator.Verbs, schema.Verb(v))
		}
		out.Operators = append(out.Operators, operator)
	}
	for i, q := range p.GetQuotas() {
		out.Quotas = append(out.Quotas, schema.Quota{
			Holders: q.GetHolders(), Targets: q.GetTargets(), Blocking: q.GetBlocking(), Tentative: q.GetTentative(),
			Pos: schema.Pos{Path: fmt.Sprintf("rights.quotas[%d]", i)},
		})
	}
	return out
}

// RightsProto converts rights to their message.
func RightsProto(r *schema.Rights) *registryv1.Rights {
	if r == nil {
		return nil
	}
	out := &registryv1.Rights{
		Deny: r.Deny, Allow: r.Allow, CascadeNeedsDelete: r.CascadeNeedsDelete,
		MaxRemovals: r.MaxRemovals, TwoOperators: r.TwoOperators, Declaration: r.Declaration,
	}
	for _, g := range r.Grants {
		p := &registryv1.Grant{Identity: g.Identity, Group: g.Group, Kind: g.Kind, Name: g.Name}
		for _, v := range g.Verbs {
			p.Verbs = append(p.Verbs, string(v))
		}
		out.Grants = append(out.Grants, p)
	}
	for _, o := range r.Operators {
		p := &registryv1.Operator{Identity: o.Identity, Deployments: o.Deployments}
		for _, v := range o.Verbs {
			p.Verbs = append(p.Verbs, string(v))
		}
		out.Operators = append(out.Operators, p)
	}
	for _, q := range r.Quotas {
		out.Quotas = append(out.Quotas, &registryv1.Quota{
			Holders: q.Holders, Targets: q.Targets, Blocking: q.Blocking,
			Tentative: q.Tentative,
		})
	}
	return out
}
