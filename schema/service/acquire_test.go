package service

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// acquiring is a rightAcquirer.
type acquiring func(caller string, rights []string) error

func (a acquiring) AcquireDelegations(_ context.Context, caller string, rights []string) error {
	return a(caller, rights)
}

// The store gets the lines as they are, and the identity of the caller in full: two long ones have their own
// shares.
func TestRightsAreAcquiredForTheCaller(t *testing.T) {
	t.Parallel()
	long := identity.Identity{Role: identity.RoleUser, Name: strings.Repeat("long", 30)}
	line := "BLOCK " + other.String() + "/customers/7"
	var fails error
	r := newResourceService(&resourceStore{})
	r.acquirer = acquiring(func(caller string, rights []string) error {
		require.Equal(t, long.String(), caller)
		require.Equal(t, []string{line}, rights)
		return fails
	})
	req := &resourcev1.AcquireDelegationsRequest{Rights: []string{line}}
	_, err := r.AcquireDelegations(as(t, long), req)
	require.NoError(t, err)
	for _, c := range []struct {
		fails  error
		code   codes.Code
		reason string
	}{
		{
			&peer.RefusedError{Refusals: []peer.Refusal{{Reason: peer.TargetMissing}}}, codes.FailedPrecondition,
			string(peer.TargetMissing),
		},
		{
			&peer.RefusedError{Refusals: []peer.Refusal{{Reason: peer.ReferDenied}}}, codes.PermissionDenied,
			string(peer.ReferDenied),
		},
		{&peer.UnavailableError{Err: context.DeadlineExceeded}, codes.Unavailable, "UNAVAILABLE"},
		{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
		{postgres.ErrTooMany, codes.ResourceExhausted, "TOO_MANY_CALLS"},
	} {
		fails = c.fails
		_, err := r.AcquireDelegations(as(t, long), req)
		require.Equal(t, c.code, status.Code(err), "%v", err)
		require.Equal(t, c.reason, outcome.ReasonOf(err))
	}
	_, err = r.AcquireDelegations(as(t, long),
		&resourcev1.AcquireDelegationsRequest{Rights: make([]string, MaxBatch+1)})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	_, err = r.AcquireDelegations(as(t, long), &resourcev1.AcquireDelegationsRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "rights: the list is empty")
	_, err = r.AcquireDelegations(t.Context(), req)
	require.Error(t, err, "nobody's call")
}
