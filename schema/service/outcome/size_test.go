package outcome

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// fits fails unless an error is as short as clients of other languages accept it: the text, the details, and
// the headers with both.
func fits(t *testing.T, err error) *status.Status {
	t.Helper()
	st := status.Convert(err)
	encoded, details := 0, 0
	for _, b := range []byte(st.Message()) {
		if encoded++; b < ' ' || b > '~' || b == '%' {
			encoded += 2
		}
	}
	for _, d := range st.Proto().GetDetails() {
		details += proto.Size(d)
	}
	require.LessOrEqual(t, encoded, 1<<10, st.Message())
	require.LessOrEqual(t, details, 4<<10)
	require.LessOrEqual(t, encoded+(proto.Size(st.Proto())+2)/3*4+200, 8<<10)
	return st
}

// Every kind of error, with the longest names and lists.
func TestEveryRefusalFitsIntoTheHeadersOfStockClients(t *testing.T) {
	t.Parallel()
	long := schema.FullName{Deployment: schema.DeploymentID{
		Service: strings.Repeat("s", 200) + ".example.com",
		Region:  "eastus2",
	}, Name: strings.Repeat("n", schema.MaxNameBytes)}
	for _, n := range []int{1, 5, 6, 30, 200, 10_000} {
		var holders []peer.Holder
		var names []schema.FullName
		var problems schema.Problems
		var away []schema.DeploymentID
		for range n {
			holders = append(holders, peer.Holder{Name: long, Path: strings.Repeat("p", 300)})
			names = append(names, long)
			problems = append(problems, schema.Problem{Message: strings.Repeat("ü", 500)})
			away = append(away, long.Deployment)
		}
		samples := map[string]error{
			"blocked":     &peer.BlockedError{Name: long.Name, Holders: holders, Total: n},
			"undecided":   &peer.BlockedError{Name: long.Name, Holders: holders, Total: n, Undecided: true},
			"protected":   &peer.ProtectedError{Name: long.Name, By: names},
			"unavailable": &peer.UnavailableError{Deployments: away, Err: errors.New(strings.Repeat("x", n))},
			"problems":    problems,
			"invalid": &peer.InvalidError{Resource: strings.Repeat("ä", n), Err: fmt.Errorf("%q fits no kind",
				strings.Repeat("%", n))},
			"fault": errors.New(strings.Repeat("x", n)),
		}
		for _, o := range outcomes {
			samples[o.reason] = fmt.Errorf("%s: %w", strings.Repeat("\n", n), o.err)
		}
		for _, reason := range peer.Reasons() {
			e := &peer.RefusedError{}
			for i := range n {
				e.Refusals = append(e.Refusals, peer.Refusal{
					Holder: fmt.Sprintf("%s%05d", long.Name[5:], i), Path: "p",
					Target: long, Reason: reason, Detail: strings.Repeat("d", 300),
				})
			}
			samples["refused "+string(reason)] = e
		}
		for name, err := range samples {
			st := fits(t, Status(zap.NewNop(), err))
			list, total, named := 0, "", ""
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					total, named = d.GetMetadata()["total"], d.GetMetadata()["named"]
				case *errdetails.PreconditionFailure:
					list = len(d.GetViolations())
				case *schemav1.ReferencesRefused:
					list = len(d.GetRefusals())
				}
			}
			if _, lists := err.(interface{ Total() int }); lists || name == "blocked" || name == "protected" {
				require.Positive(t, list, name)
				if list < n {
					require.Equal(t, strconv.Itoa(n), total, name)
					require.Equal(t, strconv.Itoa(list), named, name)
				} else {
					require.Empty(t, total, name)
				}
			}
		}
	}
}

// A refusal that passes is listed first when not all have room: calling deployments and clients decide by it.
func TestTheRefusalThatDecidesIsNamed(t *testing.T) {
	t.Parallel()
	target := schema.FullName{Deployment: schema.DeploymentID{Service: "a.example.com", Region: "us"}, Name: "ts/t"}
	e := &peer.RefusedError{}
	for i := range 500 {
		e.Refusals = append(e.Refusals, peer.Refusal{
			Holder: fmt.Sprintf("hs/h%03d", i), Path: "p", Target: target,
			Reason: peer.TargetMissing,
		})
	}
	e.Refusals[400].Reason = peer.UnknownKind
	err := Status(zap.NewNop(), e)
	require.Equal(t, codes.Unavailable, status.Code(err))
	var got *peer.RefusedError
	require.ErrorAs(t, FromStatus(err), &got)
	require.False(t, peer.Definite(got))
	require.Equal(t, 500, got.Total())
	require.Equal(t, peer.UnknownKind, got.Deciding().Reason)
}

// The server shortens every error of a handler, also one without a list of refusals.
func TestServersShortenEveryError(t *testing.T) {
	t.Parallel()
	st, err := status.New(codes.FailedPrecondition, strings.Repeat("é", 5000)).WithDetails(
		&errdetails.ErrorInfo{Reason: "BLOCKED"}, &errdetails.DebugInfo{Detail: strings.Repeat("x", 9000)})
	require.NoError(t, err)
	_, err = BoundedUnary(context.Background(), nil, nil, func(context.Context, any) (any, error) {
		return nil, st.Err()
	})
	got := fits(t, err)
	require.Equal(t, codes.FailedPrecondition, got.Code())
	require.Len(t, got.Details(), 1)
	require.Contains(t, got.Message(), "(shortened)")
	for _, s := range []string{"", "short", strings.Repeat("x", 1024), strings.Repeat("x", 1000) + "é"} {
		require.Equal(t, s, shortText(s))
	}
	for _, s := range []string{
		strings.Repeat("x", 1025), strings.Repeat("é", 171), strings.Repeat("%", 342),
		strings.Repeat("\xff", 400),
	} {
		short := shortText(s)
		require.NotEqual(t, s, short)
		fits(t, status.Error(codes.Internal, short))
	}
}

func TestAStreamsErrorIsShortenedToo(t *testing.T) {
	t.Parallel()
	long := status.Error(codes.Internal, string(make([]byte, 5000)))
	err := BoundedStream(nil, nil, nil, func(any, grpc.ServerStream) error { return long })
	fits(t, err)
	require.Equal(t, codes.Internal, status.Code(err))
	plain := errors.New("not a status")
	require.Equal(t, plain, BoundedStream(nil, nil, nil, func(any, grpc.ServerStream) error { return plain }))
	require.NoError(t, BoundedStream(nil, nil, nil, func(any, grpc.ServerStream) error { return nil }))
}
