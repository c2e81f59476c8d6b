package service

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Verify compares this deployment with the others, and sends each difference when it is found.
func (a *admin) Verify(req *adminv1.VerifyRequest, stream grpc.ServerStreamingServer[adminv1.VerifyResponse]) error {
	sent := time.Now()
	done, err := a.inspector.Verify(stream.Context(), shadow.Verification{
		Repair: req.GetRepair(),
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

func differenceProto(d shadow.Difference) *adminv1.VerifyResponse {
	return &adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Difference_{Difference: &adminv1.VerifyResponse_Difference{
		Kind: string(d.Kind), Holder: d.Holder.String(), Target: d.Target.String(), Path: d.Path, Cause: d.Cause(), Remedy: d.Remedy(), Repaired: d.Repaired,
	}}}
}

func verifiedProto(v shadow.Verified, done bool) *adminv1.VerifyResponse {
	return &adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Progress_{Progress: &adminv1.VerifyResponse_Progress{
		References: v.References, Blockades: v.Blockades, Owners: v.Owners, Bodies: v.Bodies, Differences: v.Differences, Repaired: v.Repaired,
		Unreachable: deploymentNames(slices.Collect(maps.Keys(v.Unreachable))), Done: done,
	}}}
}
