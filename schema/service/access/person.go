package access

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// Tokens verifies the tokens of people whom other deployments speak for.
type Tokens interface {
	identity.TokenVerifier
	// RequireForwarded: no identity is believed without a token.
	RequireForwarded() bool
	// Denied returns the error of a user who is denied, also on the word of a deployment.
	Denied(who identity.Identity) error
}

// Person is a person for whom another deployment speaks.
type Person struct {
	Identity string // path
	Groups   []string
	Token    string
}

// Believe returns the caller that a deployment speaks for: the identity that the person's token proves, where
// there is one and tokens are accepted here; otherwise the word of the deployment. It is never an operator.
func Believe(ctx context.Context, tokens Tokens, by schema.DeploymentID, p Person) (identity.Caller, error) {
	who, err := identity.ParsePath(p.Identity)
	if err != nil {
		return identity.Caller{}, err
	}
	if who.Role != identity.RoleUser {
		return identity.Caller{}, fmt.Errorf("%s may not act for %s: a deployment forwards the calls of users only", by,
			who)
	}
	if tokens != nil {
		if err := tokens.Denied(who); err != nil {
			return identity.Caller{}, err
		}
	}
	switch {
	case tokens != nil && p.Token != "":
		proved, err := tokens.Verify(ctx, p.Token)
		if err == nil && proved.Identity != who {
			err = fmt.Errorf("the token is of %s, not of %s", proved.Identity, who)
		}
		return proved, err
	case tokens != nil && tokens.RequireForwarded():
		return identity.Caller{},
			errors.New(
				"a person that another deployment speaks for needs a signed token here: ask the deployment directly, or come with a token")
	}
	return identity.Caller{
		Identity: who, Groups: identity.Groups(p.Groups), Proof: "the word of " + by.String(),
		WordOf: identity.Deployment(by),
	}, nil
}

// refers is the right to refer of a person whose write arrives here. To resources elsewhere an operator
// refers with the rights of the user of the same name, as when their deployment is asked. The authorization
// service of this deployment decides about resources here alone.
func (a *Access) refers(ctx context.Context, who identity.Caller, names []schema.FullName) ([]bool, error) {
	allowed := make([]bool, len(names))
	var here []schema.FullName
	elsewhere := who
	if who.Role == identity.RoleOperator {
		elsewhere.Role = identity.RoleUser
	}
	for i, name := range names {
		if name.Deployment == a.cfg.Deployment {
			here = append(here, name)
		} else {
			rights := a.current()
			allowed[i] = rights.Authorize(subject(elsewhere), schema.Refer, name) &&
				(!rights.Limited() || rights.Authorize(subject(who), schema.Refer, name))
		}
	}
	if len(here) == 0 {
		return allowed, nil
	}
	answers, err := a.Authorize(ctx, who, schema.Refer, here)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if name.Deployment == a.cfg.Deployment {
			allowed[i], answers = answers[0], answers[1:]
		}
	}
	return allowed, nil
}

// mayRefer checks the right to refer to the targets of another deployment's references: of their writer.
// Without a person it is the deployment's own right, but for references that were established before.
func (a *Access) mayRefer(ctx context.Context, by identity.Caller,
	req *schemav1.EstablishReferencesRequest_Attempt,
) error {
	who := by
	if p := req.GetPerson(); p != nil {
		var err error
		who, err = Believe(ctx, a.cfg.Tokens, by.Deployment, Person{
			Identity: "/" + p.GetIdentity(),
			Groups:   p.GetGroups(), Token: p.GetToken(),
		})
		if err != nil {
			return &DeniedError{Who: fmt.Sprintf("%s (%v)", p.GetIdentity(), err), Verb: schema.Refer}
		}
	}
	var asked []*schemav1.EstablishReferencesRequest_Reference
	var names []schema.FullName
	for _, r := range req.GetReferences() {
		if again, _ := uuid.FromBytes(r.GetTarget().GetUid()); req.GetPerson() == nil && again != uuid.Nil {
			continue
		}
		asked = append(asked, r)
		names = append(names, schema.FullName{Deployment: a.cfg.Deployment, Name: r.GetTarget().GetName()})
	}
	allowed, err := a.Authorize(ctx, who, schema.Refer, names)
	if err != nil {
		return err
	}
	refused := &peer.RefusedError{}
	for i, ok := range allowed {
		if !ok {
			refused.Refusals = append(refused.Refusals, peer.Refusal{
				Holder: asked[i].GetHolder().GetName(), Path: asked[i].GetPath(), Target: names[i],
				Reason: peer.ReferDenied,
				Detail: "the writer is " + who.String(),
			})
		}
	}
	if len(refused.Refusals) > 0 {
		return refused
	}
	return nil
}

type refusedKey struct{}

// withRefused checks the right to refer for each attempt, whose outcomes the handler returns.
func (a *Access) withRefused(ctx context.Context, by identity.Caller,
	req *schemav1.EstablishReferencesRequest,
) context.Context {
	refused := make([]error, len(req.GetAttempts()))
	for i, asked := range req.GetAttempts() {
		refused[i] = a.mayRefer(ctx, by, asked)
	}
	return context.WithValue(ctx, refusedKey{}, refused)
}

// Refused returns the refusal of the n-th attempt of a call; nil when it may refer, and for calls of this
// process.
func Refused(ctx context.Context, n int) error {
	if refused, ok := ctx.Value(refusedKey{}).([]error); ok {
		return refused[n]
	}
	return nil
}
