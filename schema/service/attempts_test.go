package service

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/wire"
)

// Each attempt of a call has its own answer, or its own error with its own request id: also an attempt that
// is wrong in itself, which the store does not see.
func TestEachAttemptOfACallHasItsOwnOutcome_I20(t *testing.T) {
	t.Parallel()
	good, refused, locked, broken, noUUID := newAttempt(t), newAttempt(t), newAttempt(t), newAttempt(t), uuid.New()
	s := newSchemaService(
		&schemaStore{establishTogether: func(_ context.Context, holder schema.DeploymentID,
			attempts []peer.EstablishAttempt,
		) []peer.EstablishOutcome {
			require.Equal(t, other, holder)
			out := make([]peer.EstablishOutcome, len(attempts))
			for i, a := range attempts {
				switch a.Attempt {
				case good:
					require.InDelta(t, time.Minute, time.Until(a.Until), float64(30*time.Second))
					out[i].Established = &peer.Established{UIDs: []uuid.UUID{uid(2)}, Version: "v2", Epoch: uid(9)}
				case refused:
					require.Zero(t, a.Until)
					out[i].Err = &peer.RefusedError{Refusals: []peer.Refusal{{
						Holder: "devices/d", Path: "p",
						Target: schema.FullName{Deployment: self, Name: "accounts/a"}, Reason: peer.TargetMissing,
					}}}
				case locked:
					out[i].Err = peer.ErrLeftOut
				case broken:
					out[i].Err = errors.New("SQL")
				default:
					require.Fail(t, "asked", a.Attempt)
				}
			}
			return out
		}})
	request := uuid.New()
	req := &schemav1.EstablishReferencesRequest{}
	for _, a := range []uuid.UUID{noUUID, good, refused, locked, broken} {
		req.Attempts = append(req.Attempts, establishRequest(a))
	}
	validated := establishRequest(good)
	validated.ValidateOnly = true
	req.Attempts = append(req.Attempts, validated, &schemav1.EstablishReferencesRequest_Attempt{})
	req.Attempts[1].Timeout = durationpb.New(time.Minute)
	req.Attempts[2].RequestId = request.String()
	answer, err := s.EstablishReferences(asDeployment(t, other), req)
	require.NoError(t, err)
	var got []peer.EstablishOutcome
	for _, o := range answer.GetOutcomes() {
		got = append(got, wire.EstablishOutcome(o))
	}
	require.Len(t, got, 7)
	require.Equal(t, codes.InvalidArgument, status.Code(got[0].Err))
	require.Equal(t, &peer.Established{UIDs: []uuid.UUID{uid(2)}, Epoch: uid(9)}, got[1].Established)
	require.Equal(t, "v2", answer.GetOutcomes()[1].GetEstablished().GetTargets()[0].GetVersion())
	require.Equal(t, codes.FailedPrecondition, status.Code(got[2].Err))
	var named bool
	for _, d := range status.Convert(got[2].Err).Details() {
		if info, ok := d.(*errdetails.RequestInfo); ok {
			named = info.GetRequestId() == request.String()
		}
	}
	require.True(t, named, "the error has the request id of its attempt: %v", got[2].Err)
	require.ErrorIs(t, got[3].Err, peer.ErrLeftOut)
	require.Equal(t, codes.Internal, status.Code(got[4].Err))
	require.NotContains(t, got[4].Err.Error(), "SQL")
	require.ErrorIs(t, got[5].Err, peer.ErrLeftOut, "nothing is stored for a validation")
	require.Equal(t, codes.InvalidArgument, status.Code(got[6].Err))

	req.Attempts = make([]*schemav1.EstablishReferencesRequest_Attempt, wire.MaxAttempts+1)
	_, err = s.EstablishReferences(asDeployment(t, other), req)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// An attempt of a person without the right to refer is not established, and its neighbours are.
func TestAnAttemptWithoutTheRightToReferIsLeftOutOfTheCall(t *testing.T) {
	t.Parallel()
	env := peers.New(self, nil)
	env.Update(&schema.Environment{Rights: &schema.Rights{Deny: true}})
	rights := access.New(access.Config{Deployment: self, Environments: env, Logger: zap.NewNop()})
	mine, denied := newAttempt(t), newAttempt(t)
	s := newSchemaService(
		&schemaStore{establish: func(_ schema.DeploymentID, a peer.AttemptID,
			_ []peer.EstablishReference,
		) (*peer.Established, error) {
			require.Equal(t, mine, a)
			return &peer.Established{UIDs: []uuid.UUID{uid(2)}, Epoch: uid(9)}, nil
		}})
	req := &schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{
		establishRequest(denied), establishRequest(mine),
	}}
	req.Attempts[0].Person = &schemav1.EstablishReferencesRequest_Person{Identity: "user/bob"}
	out, err := rights.Unary(asDeployment(t, other), req,
		&grpc.UnaryServerInfo{FullMethod: schemav1.SchemaService_EstablishReferences_FullMethodName},
		func(ctx context.Context, req any) (any, error) {
			return s.EstablishReferences(ctx, req.(*schemav1.EstablishReferencesRequest))
		})
	require.NoError(t, err)
	outcomes := out.(*schemav1.EstablishReferencesResponse).GetOutcomes()
	require.Equal(t, codes.PermissionDenied, status.Code(wire.EstablishOutcome(outcomes[0]).Err))
	require.NoError(t, wire.EstablishOutcome(outcomes[1]).Err)
}

// An attempt of a person who has written too much is refused, beside others, and is not established; a
// refused attempt counts nothing, nor does one that is only validated.
func TestTheReferencesOfAPersonAreCounted_I20(t *testing.T) {
	t.Parallel()
	var established int
	s := newSchemaService(
		&schemaStore{establishTogether: func(_ context.Context, _ schema.DeploymentID,
			attempts []peer.EstablishAttempt,
		) []peer.EstablishOutcome {
			established += len(attempts)
			return make([]peer.EstablishOutcome, len(attempts))
		}})
	s.written = costs.NewWritten(1<<10, nil)
	of := func(person string) *schemav1.EstablishReferencesRequest_Attempt {
		a := establishRequest(newAttempt(t))
		a.Person = &schemav1.EstablishReferencesRequest_Person{Identity: person}
		return a
	}
	validated := of("user/ann")
	validated.ValidateOnly = true
	require.NoError(t, s.counted(other, validated))
	invalid := of("user/ann")
	invalid.References = slices.Repeat(invalid.GetReferences(), 20_000)
	require.Error(t, s.establish(t.Context(), other, []*schemav1.EstablishReferencesRequest_Attempt{invalid})[0].Err)
	out := s.establish(t.Context(), other, []*schemav1.EstablishReferencesRequest_Attempt{
		of("user/ann"),
		of("user/ann"), of("user/bob"),
	})
	require.NoError(t, out[0].Err)
	require.Equal(t, "TOO_MUCH_WRITTEN", reasonOf(t, out[1].Err))
	require.NoError(t, out[2].Err)
	require.Equal(t, 2, established)
}
