package client_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// ledger keeps the writes that it receives, and does not answer the first try of each.
type ledger struct {
	resourcev1.UnimplementedResourceServiceServer

	mu     sync.Mutex
	writes []string // guarded by mu: operations, with their request ids
	last   any      // guarded by mu; the last request
}

func (l *ledger) write(what, id string, req any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes, l.last = append(l.writes, what+" "+id), req
	if len(l.writes)%2 == 1 {
		return status.Error(codes.Unavailable, "the answer is lost")
	}
	return nil
}

func (l *ledger) CreateResource(_ context.Context,
	req *resourcev1.CreateResourceRequest,
) (*resourcev1.Resource, error) {
	return req.GetResource(), l.write("create", req.GetRequestId(), req)
}

func (l *ledger) UpdateResource(_ context.Context,
	req *resourcev1.UpdateResourceRequest,
) (*resourcev1.Resource, error) {
	return req.GetResource(), l.write("update", req.GetRequestId(), req)
}

func (l *ledger) BatchWriteResources(_ context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	return &resourcev1.BatchWriteResourcesResponse{Resources: make([]*resourcev1.Resource, len(req.GetWrites()))},
		l.write("batch", req.GetRequestId(), req)
}

func (l *ledger) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	return &resourcev1.DeleteResourceResponse{Removed: true}, l.write("delete", req.GetRequestId(), req)
}

// Every write is repeated under one request id after a lost answer, so that it takes effect once; two writes
// have different ids.
func TestEachWriteHasOneRequestID_I29(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	c := open(t, stub.New(t, stub.Services{Resources: l}))
	r := &resourcev1.Resource{Name: acme}
	for what, write := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { _, err := c.Create(ctx, r); return err },
		"update": func(ctx context.Context) error { _, err := c.Update(ctx, r, "labels"); return err },
		"batch": func(ctx context.Context) error {
			_, err := c.Batch(ctx, stub.Deployment, client.PutOf(r))
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := c.Delete(ctx, acme, client.Version{UID: "u1", Revision: 7})
			return err
		},
	} {
		l.writes = nil
		require.NoError(t, write(t.Context()), what)
		require.NoError(t, write(t.Context()), what)
		require.Len(t, l.writes, 4)
		require.True(t, strings.HasPrefix(l.writes[0], what+" "), l.writes[0])
		require.Greater(t, len(l.writes[0]), len(what)+30)
		require.Equal(t, l.writes[0], l.writes[1])
		require.Equal(t, l.writes[2], l.writes[3])
		require.NotEqual(t, l.writes[0], l.writes[2])

		const given = "7e57d004-2b97-0e7a-b45f-5387367791cd"
		require.NoError(t, write(client.WithRequestID(t.Context(), uuid.MustParse(given))), what)
		require.Equal(t, what+" "+given, l.writes[4], "an application that repeats a write after a crash gives its id")
	}
}

// A batch has writes of three kinds; a validation has no id, since nothing is stored.
func TestABatchHasCreatesPutsAndUpdates(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	c := open(t, stub.New(t, stub.Services{Resources: l}))
	r := &resourcev1.Resource{Name: acme}
	writes := []*client.Write{client.CreateOf(r), client.PutOf(r), client.UpdateOf(r, "labels", "body.title")}
	stored, err := c.Batch(t.Context(), stub.Deployment, writes...)
	require.NoError(t, err)
	require.Len(t, stored, 3)
	sent := l.last.(*resourcev1.BatchWriteResourcesRequest)
	require.False(t, sent.GetValidateOnly())
	require.Equal(t, acme, sent.GetWrites()[0].GetCreate().GetName())
	require.Equal(t, acme, sent.GetWrites()[1].GetPut().GetName())
	require.Equal(t, []string{"labels", "body.title"}, sent.GetWrites()[2].GetUpdate().GetUpdateMask().GetPaths())
	_, err = c.Validate(t.Context(), stub.Deployment, writes...)
	require.NoError(t, err)
	sent = l.last.(*resourcev1.BatchWriteResourcesRequest)
	require.True(t, sent.GetValidateOnly())
	require.Empty(t, sent.GetRequestId())
}

// A name that is not full is an error before anything is sent.
func TestARelativeNameIsNotSent(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	c := open(t, stub.New(t, stub.Services{Resources: l}))
	for _, call := range []func() error{
		func() error { _, err := c.Get(t.Context(), "projects/acme"); return err },
		func() error { _, err := c.Create(t.Context(), &resourcev1.Resource{Name: "projects/acme"}); return err },
		func() error { _, err := c.Delete(t.Context(), "projects/acme", client.Version{}); return err },
	} {
		require.ErrorContains(t, call(), "want //")
	}
	require.Empty(t, l.writes)
	require.Equal(t, acme, client.FullName(&resourcev1.Resource{
		Deployment: stub.Deployment.String(),
		Name:       "projects/acme",
	}))
}

// ending shows conditions that change, and then nothing.
type ending struct {
	resourcev1.UnimplementedResourceServiceServer

	mu     sync.Mutex
	states []*resourcev1.Resource // guarded by mu; nil: unavailable
}

func (e *ending) GetResource(context.Context, *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.states) == 0 {
		return nil, status.Error(codes.NotFound, "not found")
	}
	next := e.states[0]
	e.states = e.states[1:]
	if next == nil {
		return nil, status.Error(codes.Unavailable, "away")
	}
	return next, nil
}

// WaitGone reports each change of the reasons once, and no failure while a deployment is away for a moment.
func TestTheReasonsOfAWaitAreShownOnce(t *testing.T) {
	t.Parallel()
	because := func(message string) *resourcev1.Resource {
		return &resourcev1.Resource{
			Uid: "u1", State: resourcev1.Resource_STATE_DELETING,
			Conditions: []*resourcev1.Condition{{Type: "BLOCKED", Message: message}},
		}
	}
	e := &ending{states: []*resourcev1.Resource{
		because("a"), because("a"), nil, because("a"), because("b"),
		because("b"),
	}}
	c := open(t, stub.New(t, stub.Services{Resources: e}))
	var shown []string
	name := schema.FullName{Deployment: stub.Deployment, Name: "projects/acme"}
	require.NoError(t, c.WaitGone(t.Context(), name.String(), "u1", func(r *resourcev1.Resource) {
		shown = append(shown, r.GetConditions()[0].GetMessage())
	}))
	require.Equal(t, []string{"a", "b"}, shown)

	e.states = []*resourcev1.Resource{{Uid: "u2"}}
	require.NoError(t, c.WaitGone(t.Context(), name.String(), "u1", nil), "another resource of the name")
	forever := make([]*resourcev1.Resource, 100_000)
	e.states = forever
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.Error(t, c.WaitGone(ctx, name.String(), "u1", nil), "unavailable is not gone")
}
