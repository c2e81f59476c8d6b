package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// Verify compares this deployment with the others, and sends each difference when it is found.
func (a *admin) Verify(req *adminv1.VerifyRequest, stream grpc.ServerStreamingServer[adminv1.VerifyResponse]) error {
	sent := time.Now()
	decision, err := danglingDecision(stream.Context(), req)
	if err != nil {
		return err
	}
	done, err := a.verifier.Verify(stream.Context(), shadow.Verification{
		Repair: req.GetRepair(), Dangling: decision,
		Report: func(d shadow.Difference) error { return stream.Send(differenceProto(d)) },
		Progress: func(_ context.Context, so shadow.Verified) error {
			if time.Since(sent) < time.Second {
				return nil
			}
			sent = time.Now()
			return stream.Send(verifiedProto(so, false))
		},
	})
	if err != nil {
		return outcome.Status(a.log, err)
	}
	return stream.Send(verifiedProto(done, true))
}

// danglingDecision returns the decision of a request, with the calling operator; nil for none.
func danglingDecision(ctx context.Context, req *adminv1.VerifyRequest) (*shadow.Decision, error) {
	switch req.GetDangling() {
	case adminv1.VerifyRequest_DANGLING_UNSPECIFIED:
		return nil, nil
	case adminv1.VerifyRequest_DANGLING_ACT:
	default:
		return nil, outcome.Status(nil, outcome.Invalid("dangling", fmt.Errorf("%d is unknown", req.GetDangling())))
	}
	by, err := identity.FromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return &shadow.Decision{Reason: req.GetReason(), By: by.String()}, nil
}

func differenceProto(d shadow.Difference) *adminv1.VerifyResponse {
	p := &adminv1.VerifyResponse_Difference{
		Kind: string(d.Kind), Holder: d.Holder.String(), Target: d.Target.String(), Path: d.Path, Cause: d.Cause(),
		Remedy: d.Remedy(), Repaired: d.Repaired,
		Dangling: d.Dangles(), ActedUpon: d.ActedUpon,
	}
	if d.Behaviour.Valid() {
		p.Behaviour = d.Behaviour.String()
	}
	return &adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Difference_{Difference: p}}
}

func verifiedProto(v shadow.Verified, done bool) *adminv1.VerifyResponse {
	return &adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Progress_{Progress: &adminv1.VerifyResponse_Progress{
		References: v.References, Blockades: v.Blockades, Owners: v.Owners, Bodies: v.Bodies,
		Differences: v.Differences, Repaired: v.Repaired, ActedUpon: v.ActedUpon,
		Unreachable: wire.DeploymentNames(slices.Collect(maps.Keys(v.Unreachable))), Done: done,
	}}}
}
