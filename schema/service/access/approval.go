package access

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
)

// approved verifies the approval in a request, and demands one where the rights require two operators. It
// returns the caller with the operator who has signed the request as a part of the proof, and a context with
// this caller.
func (a *Access) approved(ctx context.Context, who identity.Caller, method string,
	req any,
) (context.Context, identity.Caller, error) {
	r, ok := req.(approval.Request)
	if !ok {
		return ctx, who, nil
	}
	d := demand{verb: schema.Operate, names: []schema.FullName{{Deployment: a.cfg.Deployment}}}
	by, err := approval.Verify(a.cfg.Credentials, a.cfg.Deployment.String(), who.Identity, r, time.Now())
	if err != nil {
		a.denied(ctx, who, method, d)
		return ctx, who, status.Errorf(codes.PermissionDenied, "approval: %v", err)
	}
	rights := a.current()
	switch decision := approval.Decision(r); {
	case by == identity.Identity{} && slices.Contains(rights.TwoOperators, decision):
		a.denied(ctx, who, method, d)
		return ctx, who, approval.Missing(decision)
	case by == identity.Identity{}:
		return ctx, who, nil
	}
	if signer := (identity.Caller{Identity: by}); !rights.Operator(subject(signer), schema.Operate, a.cfg.Deployment) {
		return ctx, who, a.beyond(ctx, signer, method, schema.Operate, a.cfg.Deployment)
	}
	who.Proof = approval.Proof(who.Proof, by)
	return identity.NewCallerContext(ctx, who), who, nil
}
