package service

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

func TestErrorsBecomeStatuses(t *testing.T) {
	refusal := func(reason shadow.Reason) *shadow.RefusedError {
		return &shadow.RefusedError{Refusals: []shadow.Refusal{{
			Holder: "hs/h", Path: "p", Reason: reason,
			Target: schema.FullName{Deployment: schema.DeploymentID{Service: "a.example.com", Region: "us"}, Name: "ts/t"},
		}}}
	}
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{shadow.ErrNotFound, codes.NotFound},
		{shadow.ErrExists, codes.AlreadyExists},
		{shadow.ErrMoved, codes.Aborted},
		{shadow.ErrUnknown, codes.Unknown},
		{shadow.ErrReset, codes.OutOfRange},
		{&shadow.InvalidError{Err: errors.New("bad")}, codes.InvalidArgument},
		{schema.Problems{{Message: "bad"}}, codes.InvalidArgument},
		{&shadow.BlockedError{Name: "ts/t"}, codes.FailedPrecondition},
		{&shadow.UnavailableError{Err: errors.New("away")}, codes.Unavailable},
		{refusal(shadow.TargetMissing), codes.FailedPrecondition},
		{refusal(shadow.TargetClosing), codes.Aborted},
		{refusal(shadow.NotImported), codes.PermissionDenied},
		{refusal(shadow.TargetUnreadable), codes.Unavailable},
		{&shadow.RefusedError{}, codes.Internal}, // no refusal at all is a mistake of ours, and no reason to end
		{errors.New(`ERROR: relation "secret" (SQLSTATE 42P01)`), codes.Internal},
	} {
		got := toStatus(zap.NewNop(), c.err)
		require.Equal(t, c.code, status.Code(got), "%T %v", c.err, c.err)
		require.NotContains(t, got.Error(), "SQLSTATE")
	}
	require.NoError(t, toStatus(zap.NewNop(), nil))

	var refused *shadow.RefusedError
	require.ErrorAs(t, fromStatus(toStatus(zap.NewNop(), refusal(shadow.TargetMissing))), &refused)
	require.Equal(t, refusal(shadow.TargetMissing), refused, "refusals survive the wire")
}
