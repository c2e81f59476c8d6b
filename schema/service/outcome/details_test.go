package outcome

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/violation"
)

// Each error has the reason and the code of the table in docs/guarantees.md.
func TestEveryErrorHasItsReason(t *testing.T) {
	t.Parallel()
	refusal := func(reasons ...peer.Reason) error {
		e := &peer.RefusedError{}
		for _, r := range reasons {
			e.Refusals = append(e.Refusals, peer.Refusal{
				Holder: "hs/h", Path: "p",
				Target: schema.FullName{Deployment: other, Name: "ts/t"}, Reason: r,
			})
		}
		return e
	}
	for _, c := range []struct {
		err    error
		reason string
		code   codes.Code
	}{
		{peer.ErrNotFound, "NOT_FOUND", codes.NotFound},
		{peer.ErrExists, "ALREADY_EXISTS", codes.AlreadyExists},
		{peer.ErrRequestReused, "REQUEST_REUSED", codes.AlreadyExists},
		{peer.ErrDeleting, "DELETING", codes.FailedPrecondition},
		{peer.ErrAborted, "ABORTED", codes.Aborted},
		{peer.ErrReset, "RESET", codes.OutOfRange},
		{peer.ErrPosition, "POSITION", codes.FailedPrecondition},
		{shadow.ErrSlow, "SLOW_READER", codes.Aborted},
		{shadow.ErrCostly, "COSTLY", codes.ResourceExhausted},
		{peer.ErrUnknown, "OUTCOME_UNKNOWN", codes.Unknown},
		{ErrTooManyCalls, "TOO_MANY_CALLS", codes.ResourceExhausted},
		{context.DeadlineExceeded, "DEADLINE_EXCEEDED", codes.DeadlineExceeded},
		{context.Canceled, "CANCELED", codes.Canceled},
		{&peer.InvalidError{Resource: "name", Err: errors.New("bad")}, "INVALID", codes.InvalidArgument},
		{schema.Problems{{Message: "bad"}}, "INVALID", codes.InvalidArgument},
		{&peer.BlockedError{Name: "ts/t"}, "BLOCKED", codes.FailedPrecondition},
		{&peer.BlockedError{Name: "ts/t", Undecided: true}, "UNDECIDED", codes.Aborted},
		{&peer.ProtectedError{Name: "ts/t"}, "BLOCK_DELETION", codes.FailedPrecondition},
		{&peer.KeptError{Table: "orders", Constraint: "lines_order"}, "ROW_KEPT", codes.FailedPrecondition},
		{&peer.DatabaseError{Deployment: other}, "ANOTHER_DATABASE", codes.Unavailable},
		{&peer.UnavailableError{Err: errors.New("no answer")}, "UNAVAILABLE", codes.Unavailable},
		{refusal(peer.TargetMissing), string(peer.TargetMissing), codes.FailedPrecondition},
		{refusal(peer.QuotaExceeded), string(peer.QuotaExceeded), codes.ResourceExhausted},
		{refusal(peer.TargetDecommissioned), string(peer.TargetDecommissioned), codes.PermissionDenied},
		{refusal("OF_A_NEWER_VERSION"), "OF_A_NEWER_VERSION", codes.Unavailable},
		{&pgconn.PgError{Code: "57P01"}, "DATABASE_UNAVAILABLE", codes.Unavailable},
		{&pgconn.PgError{Code: "53100"}, "DATABASE_FULL", codes.Unavailable},
		{&pgconn.PgError{Code: "55P03"}, "DATABASE_BUSY", codes.Unavailable},
		{errors.New("a fault"), "INTERNAL", codes.Internal},
		// Of two sentinels in one error the one that decides more counts.
		{fmt.Errorf("%w: %w", peer.ErrUnknown, context.DeadlineExceeded), "OUTCOME_UNKNOWN", codes.Unknown},
		{fmt.Errorf("%w: %w", shadow.ErrCostly, context.DeadlineExceeded), "COSTLY", codes.ResourceExhausted},
	} {
		for _, err := range []error{c.err, fmt.Errorf("while testing: %w", c.err)} {
			got := Status(zap.NewNop(), err)
			require.Equal(t, c.reason, reasonOf(t, got), "%v", err)
			require.Equal(t, c.code, status.Code(got), "%v", err)
			require.Equal(t, c.code, codeFor(c.reason), "one code for each reason")
		}
	}
}

// A status of another deployment, or of an interceptor, is passed on as it is.
func TestAStatusStaysAsItIs(t *testing.T) {
	t.Parallel()
	st := status.Error(codes.Unauthenticated, "who are you")
	require.Equal(t, st, Status(zap.NewNop(), st))
	refused := detailed(codes.NotFound, "NOT_FOUND", errors.New("devices/d: not found"))
	require.Equal(t, refused, Status(zap.NewNop(), refused))
}

// The text of a fault can contain SQL or values: it is in the log, and not in the answer.
func TestOnlyFaultsAreLogged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		level  zapcore.Level
		logged int
	}{
		{errors.New("relation secret does not exist"), zapcore.ErrorLevel, 1},
		{&pgconn.PgError{Code: "57P01", Message: "secret"}, zapcore.WarnLevel, 1},
		{&pgconn.PgError{Code: "55P03", Message: "secret"}, zapcore.WarnLevel, 1},
		{peer.ErrNotFound, 0, 0},
		{&peer.InvalidError{Err: errors.New("bad")}, 0, 0},
		{&peer.UnavailableError{Err: errors.New("no answer")}, 0, 0},
		{nil, 0, 0},
	} {
		core, logs := observer.New(zapcore.DebugLevel)
		_, err := requestid.Unary(zap.NewNop())(t.Context(), nil, &grpc.UnaryServerInfo{},
			func(context.Context, any) (any, error) {
				return nil, Status(zap.New(core), c.err)
			})
		require.Equal(t, c.logged, logs.Len(), "%v", c.err)
		if c.logged > 0 {
			require.Equal(t, c.level, logs.All()[0].Level)
			require.NotContains(t, err.Error(), "secret")
		}
	}
}

func TestInvalidFieldsAreInTheDetails(t *testing.T) {
	t.Parallel()
	fields := func(err error) (out []string) {
		for _, d := range status.Convert(Status(zap.NewNop(), err)).Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok {
				for _, v := range bad.GetFieldViolations() {
					out = append(out, v.GetField()+": "+v.GetDescription())
				}
			}
		}
		return out
	}
	require.Equal(t, []string{"uid: not a UUID"}, fields(Invalid("uid", errors.New("not a UUID"))))
	invalid := &peer.InvalidError{
		Resource: "devices/d1",
		Err:      violation.Under("spec", violation.UnderIndex(2, violation.Errorf("is wrong"))),
	}
	require.Equal(t, []string{"body.spec[2]: is wrong"}, fields(invalid))
	require.Equal(t, []string{"devices/d1: is wrong"},
		fields(&peer.InvalidError{Resource: "devices/d1", Err: errors.New("is wrong")}))
	require.Equal(t, []string{"a: 1", "b: 2"},
		fields(violation.InFields(invalid, violation.Field{Path: "a", Problem: "1"},
			violation.Field{Path: "b", Problem: "2"})))
	require.Equal(t, []string{"kinds[A]: bad", "kinds[B]: worse"}, fields(schema.Problems{
		{Pos: schema.Pos{Path: "kinds[A]"}, Message: "bad", Remedy: "mend it"}, {
			Pos:     schema.Pos{Path: "kinds[B]"},
			Message: "worse",
		},
	}))
}

func TestBlockersAreInTheDetails(t *testing.T) {
	t.Parallel()
	violations := func(err error) (out []string) {
		for _, d := range status.Convert(Status(zap.NewNop(), err)).Details() {
			if f, ok := d.(*errdetails.PreconditionFailure); ok {
				for _, v := range f.GetViolations() {
					out = append(out, strings.TrimSpace(v.GetType()+" "+v.GetSubject()+" "+v.GetDescription()))
				}
			}
		}
		return out
	}
	holder := peer.Holder{
		Name: schema.FullName{Deployment: other, Name: "hs/h"}, Path: "spec.x",
		Target: schema.FullName{Deployment: self, Name: "ts/t"},
	}
	want := "//b.example.com/us-west2/hs/h refers to //a.example.com/us-west2/ts/t in spec.x"
	require.Equal(t, []string{"BLOCKED " + want},
		violations(&peer.BlockedError{Name: "ts/t", Deployment: self, Holders: []peer.Holder{holder}, Total: 1}))
	require.Equal(t, []string{"UNDECIDED " + want},
		violations(&peer.BlockedError{
			Name: "ts/t", Deployment: self, Holders: []peer.Holder{holder}, Total: 1,
			Undecided: true,
		}))
	require.Equal(t, []string{"BLOCK_DELETION //b.example.com/us-west2/hs/h"},
		violations(&peer.ProtectedError{Name: "ts/t", By: []schema.FullName{holder.Name}}))
}

// When a list of refusals has no room, the rest can be read with the page token in the metadata.
func TestALongListOfRefusalsHasAPageToken(t *testing.T) {
	t.Parallel()
	refusals := func(n int) *peer.RefusedError {
		e := &peer.RefusedError{}
		for i := range n {
			e.Refusals = append(e.Refusals, peer.Refusal{
				Holder: fmt.Sprintf("hs/h%04d", i), Path: "p",
				Target: schema.FullName{Deployment: other, Name: "ts/t"}, Reason: peer.TargetMissing,
			})
		}
		return e
	}
	info := func(err error) *errdetails.ErrorInfo {
		for _, d := range status.Convert(err).Details() {
			if i, ok := d.(*errdetails.ErrorInfo); ok {
				return i
			}
		}
		return nil
	}
	short := Status(zap.NewNop(), refusals(3))
	require.Empty(t, info(short).GetMetadata())
	require.Zero(t, notNamed(short))

	all := refusals(500)
	long := Status(zap.NewNop(), all)
	token := info(long).GetMetadata()["page_token"]
	require.NotEmpty(t, token)
	follows, err := peer.Follows(token)
	require.NoError(t, err)
	rest := 0
	for _, r := range all.Refusals {
		if follows(r) {
			rest++
		}
	}
	require.Equal(t, notNamed(long), rest, "the next page begins after the last listed refusal")
	var back *peer.RefusedError
	require.ErrorAs(t, FromStatus(long), &back)
	require.Equal(t, 500, back.Total())
	require.Len(t, back.Refusals, 500-rest)

	passedOn := refusals(500)
	passedOn.More = 1 // some of the refusals of another deployment were not listed
	require.Empty(t, info(Status(zap.NewNop(), passedOn)).GetMetadata()["page_token"])
}

func TestErrorsOfOtherDeploymentsBecomeErrorsOfTheStore(t *testing.T) {
	t.Parallel()
	late := FromStatus(status.Error(codes.DeadlineExceeded, "too late"))
	require.ErrorIs(t, late, context.DeadlineExceeded)
	require.ErrorContains(t, late, "too late")
	require.EqualError(t, FromStatus(status.Error(codes.Internal, "internal error")), "internal error")
	require.EqualError(t, FromStatus(errors.New("not a status")), "not a status")

	unreadable := Status(zap.NewNop(),
		&peer.RefusedError{Refusals: []peer.Refusal{{Holder: "hs/h", Reason: peer.TargetMissing}}})
	var refused *peer.RefusedError
	require.False(t, errors.As(FromStatus(unreadable), &refused), "a refusal without a target is not understood")
	require.Zero(t, notNamed(errors.New("no details")))
}

func TestDefiniteCodesRefuseForGood(t *testing.T) {
	t.Parallel()
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		want := map[codes.Code]bool{
			codes.FailedPrecondition: true, codes.NotFound: true, codes.AlreadyExists: true,
			codes.InvalidArgument: true, codes.PermissionDenied: true, codes.OutOfRange: true,
		}[c]
		require.Equal(t, want, definite(c), c)
	}
	require.Equal(t, codes.Unavailable, codeFor("OF_A_NEWER_VERSION"))
	seen := map[string]bool{}
	for _, a := range reasons {
		require.False(t, seen[a.reason], "%s is in the table twice", a.reason)
		seen[a.reason] = true
		require.NotEmpty(t, a.means)
		require.Contains(t, reasonTable(), "| `"+a.reason+"` |")
	}
}
