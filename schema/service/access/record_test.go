package access_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/test/wait"
)

// lines is a sink in memory, which can fail.
type lines struct {
	mu  sync.Mutex
	all []byte
	err error
}

func (l *lines) Last() (auditlog.Chain, error) { return auditlog.Chain{}, nil }
func (l *lines) Close() error                  { return nil }

func (l *lines) Write(batch [][]byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	l.all = append(l.all, bytes.Join(batch, nil)...)
	return len(batch), nil
}

// take returns the events since the last call.
func (l *lines) take(t *testing.T) (out []auditlog.Event) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for decoder := json.NewDecoder(bytes.NewReader(l.all)); decoder.More(); {
		var e auditlog.Event
		require.NoError(t, decoder.Decode(&e))
		out = append(out, e)
	}
	l.all = nil
	return out
}

func recorded(t *testing.T, classes ...auditlog.Class) (*access.Access, *lines) {
	t.Helper()
	sink := &lines{}
	log, err := auditlog.Open(auditlog.Config{
		Source: self.String(), Sink: sink, Classes: classes, Required: true,
		Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() })
	a, _ := newAccess(t, declared, func(c *access.Config) { c.AuditLog = log })
	sink.take(t)
	return a, sink
}

// Each call has a line of its class before it is carried out, a failure has a second one, a denial its own; a
// class that is not recorded has none.
func TestCallsAreRecordedByTheirClass(t *testing.T) {
	t.Parallel()
	calls := map[string]struct {
		who   context.Context
		req   any
		class auditlog.Class
	}{
		resourcev1.ResourceService_GetResource_FullMethodName: {
			as(t, identity.RoleUser, "ann"),
			&resourcev1.GetResourceRequest{Name: "things/ann-1"}, auditlog.Reads,
		},
		resourcev1.ResourceService_PlanDeletion_FullMethodName: {
			as(t, identity.RoleUser, "ann"),
			&resourcev1.PlanDeletionRequest{Name: "things/ann-1"}, auditlog.Reads,
		},
		adminv1.AdminService_ListRemovals_FullMethodName: {
			as(t, identity.RoleOperator, "olga"),
			&adminv1.ListRemovalsRequest{}, auditlog.Reads,
		},
		resourcev1.ResourceService_PutResource_FullMethodName: {
			as(t, identity.RoleUser, "ann"),
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: "things/ann-1"}}, auditlog.Writes,
		},
		resourcev1.ResourceService_AcquireDelegations_FullMethodName: {
			as(t, identity.RoleUser, "ann"),
			&resourcev1.AcquireDelegationsRequest{}, auditlog.References,
		},
		resourcev1.ResourceService_DeleteResource_FullMethodName: {
			as(t, identity.RoleUser, "ann"),
			&resourcev1.DeleteResourceRequest{Name: "things/ann-1"}, auditlog.Deletes,
		},
		resourcev1.ResourceService_SetBlockDeletion_FullMethodName: {
			as(t, identity.RoleUser, "sam", "sre"),
			&resourcev1.SetBlockDeletionRequest{Name: "things/ops"}, auditlog.Operate,
		},
		adminv1.AdminService_ForceRelease_FullMethodName: {
			as(t, identity.RoleOperator, "olga"),
			&adminv1.ForceReleaseRequest{}, auditlog.Operate,
		},
		schemav1.SchemaService_EstablishReferences_FullMethodName: {
			identity.NewContext(t.Context(), identity.Deployment(other)),
			&schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{
				{References: []*schemav1.EstablishReferencesRequest_Reference{
					{Target: &schemav1.ResourceRef{Name: "things/ann-1"}},
				}},
			}}, auditlog.References,
		},
	}
	a, sink := recorded(t, auditlog.Classes...)
	for method, c := range calls {
		if c.class == auditlog.Reads { // before its answer is sent
			_, err := call(a, c.who, method, c.req, func(context.Context, any) (any, error) {
				require.Empty(t, sink.take(t))
				return nil, nil
			})
			require.NoError(t, err)
			events := sink.take(t)
			require.Len(t, events, 1, method)
			require.Equal(t, auditlog.Allowed, events[0].Outcome)
			require.Equal(t, c.class, events[0].Class, method)
			continue
		}
		before := 0
		_, _ = call(a, c.who, method, c.req, func(context.Context, any) (any, error) {
			events := sink.take(t)
			before = len(events)
			require.Len(t, events, 1, "%s: before it is carried out", method)
			require.Equal(t, auditlog.Allowed, events[0].Outcome)
			require.Equal(t, c.class, events[0].Class, method)
			require.Equal(t, method, events[0].Method)
			require.NotEmpty(t, events[0].Identity)
			require.NotEmpty(t, events[0].RequestID)
			return nil, status.Error(codes.NotFound, "x")
		})
		require.Equal(t, 1, before, method)
		var after []auditlog.Event
		require.Eventually(t, func() bool {
			after = append(after, sink.take(t)...)
			return len(after) > 0
		}, wait.Limit, time.Millisecond, method)
		require.Len(t, after, 1, method)
		require.Equal(t, auditlog.Failed, after[0].Outcome, method)
		require.Equal(t, codes.NotFound.String(), after[0].Code)
		sink.take(t)
		only, quiet := recorded(t, func() auditlog.Class {
			if c.class == auditlog.Reads {
				return auditlog.Writes
			}
			return auditlog.Reads
		}())
		_, _ = call(only, c.who, method, c.req, func(context.Context, any) (any, error) { return nil, errors.New("x") })
		require.Empty(t, quiet.take(t), method)
	}
	_, err := call(a, as(t, identity.RoleUser, "ann"), resourcev1.ResourceService_DeleteResource_FullMethodName,
		&resourcev1.DeleteResourceRequest{Name: "things/secret"}, fine)
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	var events []auditlog.Event
	require.Eventually(t, func() bool {
		events = append(events, sink.take(t)...)
		return len(events) > 0
	}, wait.Limit, time.Millisecond)
	require.Len(t, events, 1)
	require.Equal(t, auditlog.Denied, events[0].Outcome)
	require.Equal(t, []string{"//a.example.com/us-west2/things/secret"}, events[0].Names)
}

// Of several attempts of a deployment the failed ones have failures; each line names the person who writes.
func TestFailedAttemptsToReferAreRecorded(t *testing.T) {
	t.Parallel()
	a, sink := recorded(t, auditlog.References)
	attempt := func(person, target string) *schemav1.EstablishReferencesRequest_Attempt {
		return &schemav1.EstablishReferencesRequest_Attempt{
			Person:     &schemav1.EstablishReferencesRequest_Person{Identity: person},
			References: []*schemav1.EstablishReferencesRequest_Reference{{Target: &schemav1.ResourceRef{Name: target}}},
		}
	}
	req := &schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{
		attempt("user/ann", "things/ann-1"), attempt("user/bob", "things/b"), attempt("user/ann", "things/ann-2"),
		attempt("user/ann", "things/busy"),
	}}
	type outcome = schemav1.EstablishReferencesResponse_Outcome
	_, err := call(a, identity.NewContext(t.Context(), identity.Deployment(other)),
		schemav1.SchemaService_EstablishReferences_FullMethodName, req, func(context.Context, any) (any, error) {
			return &schemav1.EstablishReferencesResponse{Outcomes: []*outcome{
				{Outcome: &schemav1.EstablishReferencesResponse_Outcome_Established{}},
				{Outcome: &schemav1.EstablishReferencesResponse_Outcome_Failure{
					Failure: &schemav1.EstablishReferencesResponse_Failure{Code: int32(codes.PermissionDenied)},
				}},
				{Outcome: &schemav1.EstablishReferencesResponse_Outcome_Established{}},
				{Outcome: &schemav1.EstablishReferencesResponse_Outcome_LeftOut{LeftOut: &emptypb.Empty{}}},
			}}, nil
		})
	require.NoError(t, err)
	var got []string
	require.Eventually(t, func() bool {
		for _, e := range sink.take(t) {
			got = append(got, fmt.Sprintln(e.Outcome, e.Person, e.Names, e.Code))
		}
		return len(got) >= 4
	}, wait.Limit, time.Millisecond)
	at := "//" + self.String() + "/things/"
	require.Equal(t, []string{
		fmt.Sprintln(auditlog.Allowed, "user/ann", []string{at + "ann-1", at + "ann-2", at + "busy"}, ""),
		fmt.Sprintln(auditlog.Allowed, "user/bob", []string{at + "b"}, ""),
		fmt.Sprintln(auditlog.Failed, "user/bob", []string{at + "b"}, codes.PermissionDenied),
		fmt.Sprintln(auditlog.Failed, "user/ann", []string{at + "busy"}, codes.Aborted),
	}, got)
}

// An identity that reads missing names has ten lines, and then a count; other identities have lines of their
// own.
func TestMissesOfOneIdentityAreBounded(t *testing.T) {
	t.Parallel()
	a, sink := recorded(t, auditlog.Reads)
	miss := func(who string) {
		_, _ = call(a, as(t, identity.RoleOperator, who), resourcev1.ResourceService_GetResource_FullMethodName,
			&resourcev1.GetResourceRequest{Name: "things/x"},
			func(context.Context, any) (any, error) { return nil, status.Error(codes.NotFound, "x") })
	}
	for range 1000 {
		miss("olga")
	}
	miss("omar")
	lines := map[string]int{}
	require.Eventually(t, func() bool {
		for _, e := range sink.take(t) {
			lines[e.Identity]++
		}
		return lines["operator/omar"] > 0
	}, wait.Limit, time.Millisecond)
	require.LessOrEqual(t, lines["operator/olga"], 13)
	require.Equal(t, 1, lines["operator/omar"])
}

// People whom a deployment makes up share the lines of that deployment.
func TestMadeUpPeopleOfADeploymentHideNoOthers(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	a, _ := newAccess(t, declared, func(c *access.Config) { c.Logger = zap.New(core) })
	for i := range 1000 {
		who, err := access.Believe(t.Context(), nil, other, access.Person{Identity: fmt.Sprintf("/user/x%d", i)})
		require.NoError(t, err)
		_, err = call(a, identity.NewCallerContext(t.Context(), who),
			resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{Name: "things/x"},
			fine)
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	}
	require.LessOrEqual(t, logged.Len(), 13)
}

// A call whose line cannot be written is not carried out.
func TestWithoutItsLineACallIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	a, sink := recorded(t, auditlog.Deletes)
	sink.mu.Lock()
	sink.err = errors.New("no space left")
	sink.mu.Unlock()
	ctx, cancel := context.WithTimeout(as(t, identity.RoleUser, "ann"), 1)
	defer cancel()
	_, err := call(a, ctx, resourcev1.ResourceService_DeleteResource_FullMethodName,
		&resourcev1.DeleteResourceRequest{Name: "things/ann-1"},
		func(context.Context, any) (any, error) { t.Error("it was carried out"); return nil, nil })
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "the audit log cannot be written")
	_, err = call(a, as(t, identity.RoleUser, "ann"), resourcev1.ResourceService_GetResource_FullMethodName,
		&resourcev1.GetResourceRequest{Name: "things/ann-1"}, fine)
	require.NoError(t, err, "a class that is not recorded needs no line")
}

// A call that panics, or whose line came too late, has a failure: an allowed call without one took effect. A
// batch has all of its names.
func TestWhatDidNotTakeEffectHasAFailure(t *testing.T) {
	t.Parallel()
	a, sink := recorded(t, auditlog.Deletes)
	req, method := &resourcev1.DeleteResourceRequest{Name: "things/ann-1"},
		resourcev1.ResourceService_DeleteResource_FullMethodName
	outcomes := func(n int) (out []auditlog.Outcome) {
		require.Eventually(t, func() bool {
			for _, e := range sink.take(t) {
				out = append(out, e.Outcome)
			}
			return len(out) >= n
		}, wait.Limit, time.Millisecond)
		return out
	}
	require.Panics(t, func() {
		_, _ = call(a, as(t, identity.RoleUser, "ann"), method, req, func(context.Context, any) (any, error) {
			panic("x")
		})
	})
	require.Equal(t, []auditlog.Outcome{auditlog.Allowed, auditlog.Failed}, outcomes(2))
	sink.mu.Lock()
	sink.err = errors.New("no space left")
	sink.mu.Unlock()
	ctx, cancel := context.WithCancel(as(t, identity.RoleUser, "ann"))
	cancel()
	_, err := call(a, ctx, method, req, fine)
	require.Equal(t, codes.Unavailable, status.Code(err))
	sink.mu.Lock()
	sink.err = nil
	sink.mu.Unlock()
	require.Equal(t, []auditlog.Outcome{auditlog.Allowed, auditlog.Failed}, outcomes(2))

	batch := &resourcev1.BatchDeleteResourcesRequest{}
	for range 45 {
		batch.Requests = append(batch.Requests, &resourcev1.DeleteResourceRequest{Name: "things/ann-1"})
	}
	_, err = call(a, as(t, identity.RoleUser, "ann"), resourcev1.ResourceService_BatchDeleteResources_FullMethodName,
		batch, fine)
	require.NoError(t, err)
	names := 0
	for _, e := range sink.take(t) {
		names += len(e.Names)
	}
	require.Equal(t, 45, names)
}
