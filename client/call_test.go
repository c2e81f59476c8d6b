package client_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/test/stub"
	"github.com/db-controller/db-controller/test/wait"
)

const acme = "//iam.example.com/us-west2/projects/acme"

// scripted answers each call with the next error of its script, and with a resource when that is nil or at
// its end.
type scripted struct {
	resourcev1.UnimplementedResourceServiceServer

	mu     sync.Mutex
	script []error         // guarded by mu
	ids    []string        // guarded by mu; request ids of the calls
	called func(times int) // nil, or called with each call, with mu locked
}

func (s *scripted) next(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
	if s.called != nil {
		s.called(len(s.ids))
	}
	if len(s.script) == 0 {
		return nil
	}
	err := s.script[0]
	if len(s.script) > 1 { // the last one repeats itself
		s.script = s.script[1:]
	}
	return err
}

func (s *scripted) requestIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids
}

func (s *scripted) PutResource(_ context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	return req.GetResource(), s.next(req.GetRequestId())
}

func (s *scripted) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{Name: req.GetName()}, s.next("")
}

func (s *scripted) RemoveFinalizer(context.Context, *resourcev1.RemoveFinalizerRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{}, s.next("")
}

func (s *scripted) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	return &resourcev1.DeleteResourceResponse{Removed: true}, s.next(req.GetRequestId())
}

func because(t *testing.T, code codes.Code, reason string, details ...protoadapt.MessageV1) error {
	t.Helper()
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "dbcontroller", Metadata: map[string]string{
		"total": "12",
		"named": "1",
	}}
	st, err := status.New(code, "text of "+reason).WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	require.NoError(t, err)
	return st.Err()
}

func TestAWriteIsRepeatedWithItsRequestIDUntilTheAnswerIsDefinite(t *testing.T) {
	t.Parallel()
	server := &scripted{script: []error{
		status.Error(codes.Unavailable, "away"), status.Error(codes.Internal, "fault"),
		nil,
	}}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	_, err := c.Put(t.Context(), &resourcev1.Resource{Name: acme})
	require.NoError(t, err)
	ids := server.requestIDs()
	require.Len(t, ids, 3)
	require.NotEmpty(t, ids[0])
	require.Equal(t, []string{ids[0], ids[0], ids[0]}, ids)
}

// slow needs more than twenty seconds for a write, by the deadline of the call.
type slow struct {
	resourcev1.UnimplementedResourceServiceServer

	tries atomic.Int64
}

func (s *slow) PutResource(ctx context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	s.tries.Add(1)
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < 20*time.Second {
		return nil, status.Error(codes.DeadlineExceeded, "the deadline of the call has passed")
	}
	return req.GetResource(), nil
}

// A write that takes longer than the first try has more time in the next ones, and ends.
func TestATryAfterOneThatRanOutOfTimeHasMore(t *testing.T) {
	t.Parallel()
	server := &slow{}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	_, err := c.Put(ctx, &resourcev1.Resource{Name: acme})
	require.NoError(t, err)
	require.Greater(t, server.tries.Load(), int64(1))
}

func TestADefiniteRefusalIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := &scripted{script: []error{because(t, codes.FailedPrecondition, "MOVED")}}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	_, err := c.Put(t.Context(), &resourcev1.Resource{Name: acme})
	require.ErrorIs(t, err, client.ErrConflict)
	require.Len(t, server.requestIDs(), 1)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
}

// A server refuses a request above its limit with RESOURCE_EXHAUSTED, as it refuses for reasons that pass:
// the client does not send it.
func TestARequestThatIsTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	server := &scripted{}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	large := &resourcev1.Resource{Name: acme, Labels: map[string]string{"k": strings.Repeat("x", 5<<20)}}
	_, err := c.Put(t.Context(), large)
	require.ErrorIs(t, err, client.ErrInvalid)
	require.ErrorContains(t, err, "a request has 4194304 bytes at most")
	require.Empty(t, server.requestIDs())
}

// expiring is a context whose deadline passes when done is closed, however fast the machine is.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e *expiring) Done() <-chan struct{} { return e.done }

func (e *expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestAnUnknownOutcomeSaysTheRequestID(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	ctx := &expiring{Context: client.WithRequestID(t.Context(), id), done: make(chan struct{})}
	server := &scripted{
		script: []error{because(t, codes.Unavailable, "DATABASE_UNAVAILABLE")},
		called: func(times int) {
			if times == 2 { // the answer to the first call has arrived
				close(ctx.done)
			}
		},
	}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	_, err := c.Delete(ctx, acme, client.Version{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "repeat the request with the request id "+id.String())
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, id.String(), e.RequestID)
	require.Equal(t, "DATABASE_UNAVAILABLE", e.Reason, "the last answer, not the end of the context")
	require.Equal(t, []schema.DeploymentID{stub.Deployment}, e.Deployments)
	require.False(t, e.Definite())
	require.Contains(t, server.requestIDs(), id.String())
}

func TestAnotherRegionIsTheDoorWhileOneDoesNotAnswer(t *testing.T) {
	t.Parallel()
	away, up := &scripted{script: []error{status.Error(codes.Unavailable, "away")}}, &scripted{}
	c := open(t,
		stub.New(t, stub.Services{Resources: away, Beside: map[string]resourcev1.ResourceServiceServer{"eastus2": up}}))
	_, err := c.Put(t.Context(), &resourcev1.Resource{Name: acme})
	require.NoError(t, err)
	require.Equal(t, away.requestIDs(), up.requestIDs(), "one request")
}

func TestThePreferredRegionIsTheDoor(t *testing.T) {
	t.Parallel()
	home, preferred := &scripted{}, &scripted{}
	i := stub.New(t,
		stub.Services{Resources: home, Beside: map[string]resourcev1.ResourceServiceServer{
			"eastus2": preferred,
			"a":       &scripted{},
		}})
	c, err := client.New(client.File{Registry: i.RegistryAddress, Certs: i.Certs, Region: "eastus2"}, "")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, err = c.Get(t.Context(), acme)
	require.NoError(t, err)
	require.Empty(t, home.requestIDs())
	require.Len(t, preferred.requestIDs(), 1)
	// An operator has the rights of a user by way of another region.
	require.NoError(t, c.RemoveFinalizer(t.Context(), acme, uuid.NewString(), "badge"))
	require.Len(t, home.requestIDs(), 1)
	require.Len(t, preferred.requestIDs(), 1)
}

func TestAnUnknownDeploymentIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	c := open(t, stub.New(t, stub.Services{Resources: &scripted{}}))
	_, err := c.Get(t.Context(), "//iam.example.com/moon/projects/acme")
	var e *client.UnregisteredError
	require.ErrorAs(t, err, &e)
	_, err = c.Get(t.Context(), "projects/acme")
	require.Error(t, err)
}

func TestAClientOverConnectionsHasNoRegistry(t *testing.T) {
	t.Parallel()
	_, err := client.Over(&schema.Environment{}, nil).Registry().GetEnvironment(t.Context(),
		&registryv1.GetEnvironmentRequest{})
	require.ErrorIs(t, err, client.ErrNoRegistry)
}

func TestErrorsHaveClassesAndDetails(t *testing.T) {
	t.Parallel()
	refusals := &schemav1.ReferencesRefused{Refusals: []*schemav1.ReferencesRefused_Refusal{
		{
			Holder: "projects/acme", Path: "parent", Target: "//iam.example.com/eastus2/projects/p",
			Reason: "TARGET_MISSING",
		},
	}}
	target := schema.FullName{
		Deployment: schema.DeploymentID{Service: "iam.example.com", Region: "eastus2"},
		Name:       "projects/p",
	}
	holders := &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
		{Type: "BLOCKED", Subject: target.String(), Description: "refers to projects/acme in parent"},
	}}
	protected := &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
		{Type: "BLOCK_DELETION", Subject: target.String()},
	}}
	fields := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
		Field:       "body.size",
		Description: "is too large",
	}}}
	for _, test := range []struct {
		err   error
		class error
		want  client.Error
	}{
		{
			because(t, codes.FailedPrecondition, "TARGET_MISSING", refusals), client.ErrRefused,
			client.Error{Refusals: []client.Refusal{{
				Holder: "projects/acme", Path: "parent", Target: target,
				Reason: "TARGET_MISSING",
			}}},
		},
		{
			because(t, codes.FailedPrecondition, "BLOCKED", holders), client.ErrBlocked,
			client.Error{Holders: []client.Holder{{Name: target, Text: "refers to projects/acme in parent"}}},
		},
		{
			because(t, codes.FailedPrecondition, "BLOCK_DELETION", protected), client.ErrBlocked,
			client.Error{Protected: []schema.FullName{target}},
		},
		{
			because(t, codes.InvalidArgument, "INVALID", fields), client.ErrInvalid,
			client.Error{Fields: []client.Field{{Path: "body.size", Problem: "is too large"}}},
		},
		{because(t, codes.NotFound, "NOT_FOUND"), client.ErrNotFound, client.Error{}},
		{because(t, codes.AlreadyExists, "ALREADY_EXISTS"), client.ErrExists, client.Error{}},
		{because(t, codes.AlreadyExists, "REQUEST_REUSED"), client.ErrInvalid, client.Error{}},
		{because(t, codes.FailedPrecondition, "DELETING"), client.ErrDeleting, client.Error{}},
		{because(t, codes.PermissionDenied, "DENIED"), client.ErrDenied, client.Error{}},
		{
			because(t, codes.PermissionDenied, "DECOMMISSIONED", refusals), client.ErrRefused,
			client.Error{Refusals: []client.Refusal{{
				Holder: "projects/acme", Path: "parent", Target: target,
				Reason: "TARGET_MISSING",
			}}},
		},
	} {
		c := open(t, stub.New(t, stub.Services{Resources: &scripted{script: []error{test.err}}}))
		_, err := c.Delete(t.Context(), acme, client.Version{})
		require.ErrorIs(t, err, test.class)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.True(t, e.Definite())
		require.Equal(t, 12, e.Total)
		require.Equal(t, test.want.Refusals, e.Refusals)
		require.Equal(t, test.want.Holders, e.Holders)
		require.Equal(t, test.want.Protected, e.Protected)
		require.Equal(t, test.want.Fields, e.Fields)
	}
}

func TestAnUnavailableTargetNamesItsDeployment(t *testing.T) {
	t.Parallel()
	refusals := &schemav1.ReferencesRefused{Refusals: []*schemav1.ReferencesRefused_Refusal{
		{
			Holder: "projects/acme", Path: "parent", Target: "//devices.example.com/eastus2/devices/d",
			Reason: "UNAVAILABLE",
		},
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := open(t, stub.New(t, stub.Services{Resources: &scripted{
		script: []error{because(t, codes.Unavailable, "UNAVAILABLE", refusals)},
		called: func(times int) {
			if times == 2 { // the answer to the first call has arrived
				cancel()
			}
		},
	}}))
	_, err := c.Put(ctx, &resourcev1.Resource{Name: acme})
	require.ErrorIs(t, err, client.ErrUnavailable)
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []schema.DeploymentID{{Service: "devices.example.com", Region: "eastus2"}}, e.Deployments)
}

// A call of a client that is closed fails at once.
func TestAClosedClientAnswersAtOnce(t *testing.T) {
	t.Parallel()
	c := open(t, stub.New(t, stub.Services{Resources: &scripted{}}))
	_, err := c.Get(t.Context(), acme)
	require.NoError(t, err)
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	_, err = c.Get(ctx, acme)
	require.ErrorIs(t, err, client.ErrClosed)
	require.NoError(t, ctx.Err(), "%v", err)
	for _, err := range c.Watch(ctx, stub.Deployment, client.WatchQuery{}) {
		require.ErrorIs(t, err, client.ErrClosed)
	}
	require.NoError(t, ctx.Err())
}
