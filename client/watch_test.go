package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
	"github.com/db-controller/db-controller/test/wait"
)

// played is one stream: its messages, and its final error.
type played struct {
	sends []*resourcev1.WatchResourcesResponse
	ends  error
}

// watches plays one stream after the other; after the last one a stream stays open.
type watches struct {
	resourcev1.UnimplementedResourceServiceServer
	mu      sync.Mutex
	streams []played // guarded by mu
	tokens  []string // guarded by mu
}

func (w *watches) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream resourcev1.ResourceService_WatchResourcesServer,
) error {
	w.mu.Lock()
	w.tokens = append(w.tokens, req.GetResumeToken())
	if len(w.streams) == 0 {
		w.mu.Unlock()
		<-stream.Context().Done()
		return nil
	}
	next := w.streams[0]
	w.streams = w.streams[1:]
	w.mu.Unlock()
	for _, m := range next.sends {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return next.ends
}

func upsert(name, uid string, revision int64) *resourcev1.WatchResourcesResponse {
	r := &resourcev1.Resource{Name: name, Uid: uid, Revision: revision, Deployment: stub.Deployment.String()}
	return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: r}}
}

func removal(name, uid string) *resourcev1.WatchResourcesResponse {
	return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Delete{
		Delete: &resourcev1.Resource{Name: name, Uid: uid},
	}}
}

func endOfSnapshot(token string) *resourcev1.WatchResourcesResponse {
	return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
		EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: token},
	}}
}

func bookmark(token string) *resourcev1.WatchResourcesResponse {
	return &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
		Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: token},
	}}
}

// follow returns the first n events of a watch of the streams, and the tokens of the streams.
func follow(t *testing.T, q client.WatchQuery, n int, streams ...played) (events, tokens []string, err error) {
	t.Helper()
	server := &watches{streams: streams}
	c := open(t, stub.New(t, stub.Services{Resources: server}))
	var e client.Event
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	for e, err = range c.Watch(ctx, stub.Deployment, q) {
		if err != nil {
			break
		}
		text := map[client.EventType]string{
			client.Upserted: "+", client.Deleted: "-", client.Synced: "synced",
			client.Bookmark: "bookmark",
		}[e.Type]
		if e.Resource != nil {
			text += fmt.Sprint(e.Resource.GetName(), " ", e.Resource.GetUid(), e.Resource.GetRevision())
			require.Equal(t, stub.Deployment.String(), e.Resource.GetDeployment())
		}
		if events = append(events, text); len(events) == n {
			break
		}
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	return events, server.tokens, err
}

var away = status.Error(codes.Unavailable, "away")

func TestAWatchGoesOnFromItsLastToken(t *testing.T) {
	t.Parallel()
	events, tokens, err := follow(t, client.WatchQuery{}, 4,
		played{
			sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 1), endOfSnapshot("t1"), bookmark("t2")},
			ends:  away,
		},
		played{sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 2), removal("a", "u")}},
	)
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "synced", "+a u2", "-a u0"}, events)
	require.Equal(t, []string{"", "t2"}, tokens)
}

// A fault of a deployment is tried again for ever, and said once.
func TestAnInterruptionOfAWatchIsSaidOnce(t *testing.T) {
	t.Parallel()
	var said []string
	fault := status.Error(codes.Internal, "a fault")
	_, _, err := follow(t, client.WatchQuery{Interrupted: func(err error) { said = append(said, fmt.Sprint(err)) }}, 3,
		played{sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 1), endOfSnapshot("t1")}, ends: fault},
		played{ends: fault}, played{ends: away}, played{ends: fault},
		played{sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 2)}},
	)
	require.NoError(t, err)
	require.Len(t, said, 2)
	require.Contains(t, said[0], "a fault")
	require.Equal(t, "<nil>", said[1], "it goes on")
}

func TestAResetBecomesADifference(t *testing.T) {
	t.Parallel()
	events, tokens, err := follow(t, client.WatchQuery{}, 8,
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("same", "s", 1), upsert("changed", "c", 1),
			upsert("gone", "g", 1), endOfSnapshot("t1"),
		}, ends: away},
		played{ends: because(t, codes.OutOfRange, "RESET")},
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("same", "s", 1), upsert("changed", "c", 2),
			upsert("new", "n", 1), endOfSnapshot("t9"),
		}},
	)
	require.NoError(t, err)
	require.Equal(t, []string{
		"+same s1", "+changed c1", "+gone g1", "synced", "+changed c2", "+new n1", "-gone g1",
		"synced",
	}, events)
	require.Equal(t, []string{"", "t1", ""}, tokens)
}

// A resource of the first part of a snapshot that the second one lacks is removed; the others are not
// delivered twice.
func TestASnapshotThatIsCutOffIsReadAgain(t *testing.T) {
	t.Parallel()
	events, tokens, err := follow(t, client.WatchQuery{}, 5,
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("a", "u", 1), upsert("gone", "g", 1),
			bookmark("inside"),
		}, ends: away},
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("a", "u", 1), upsert("b", "u", 1),
			endOfSnapshot("t1"),
		}},
	)
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "+gone g1", "+b u1", "-gone g1", "synced"}, events)
	require.Equal(t, []string{"", ""}, tokens)
}

func TestTheRemovalOfAnEarlierIncarnationIsNotDelivered(t *testing.T) {
	t.Parallel()
	events, _, err := follow(t, client.WatchQuery{}, 3,
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("a", "second", 1), removal("a", "first"), removal("never", "n"), endOfSnapshot("t1"),
			upsert("z", "u", 1),
		}},
	)
	require.NoError(t, err)
	require.Equal(t, []string{"+a second1", "synced", "+z u1"}, events)
}

// Each token after the snapshot is an event, and none within it: a transaction is entirely before or after
// it.
func TestBookmarksAreDeliveredToThoseWhoAsk(t *testing.T) {
	t.Parallel()
	within := upsert("a", "u", 1)
	within.ResumeToken = "inside"
	known, changed := upsert("a", "u", 1), upsert("a", "u", 2)
	known.ResumeToken, changed.ResumeToken = "t3", "t4"
	sends := []*resourcev1.WatchResourcesResponse{
		bookmark("inside"), within, endOfSnapshot("t1"), bookmark("t2"),
		known, changed, removal("never", "n"), bookmark("t5"),
	}
	events, _, err := follow(t, client.WatchQuery{Bookmarks: true}, 6, played{sends: sends})
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "synced", "bookmark", "bookmark", "+a u2", "bookmark"}, events)
	server := &watches{streams: []played{{sends: sends}}}
	var tokens []string
	for e, err := range open(t, stub.New(t, stub.Services{Resources: server})).Watch(t.Context(), stub.Deployment,
		client.WatchQuery{Bookmarks: true}) {
		require.NoError(t, err)
		if tokens = append(tokens, e.Token); len(tokens) == 6 {
			break
		}
	}
	require.Equal(t, []string{"", "t1", "t2", "t3", "t4", "t5"}, tokens)
}

func TestAWatchResumesWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	reset := played{ends: because(t, codes.OutOfRange, "RESET")}
	_, _, err := follow(t, client.WatchQuery{Token: "old"}, 1, reset)
	require.ErrorIs(t, err, client.ErrReset, "nobody knows what is missing")

	known := map[string]client.Version{"gone": {UID: "g", Revision: 3}}
	events, tokens, err := follow(t, client.WatchQuery{Token: "old", Known: known}, 3, reset,
		played{sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 1), endOfSnapshot("t1")}})
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "-gone g3", "synced"}, events)
	require.Equal(t, []string{"old", ""}, tokens)
	require.Len(t, known, 1, "the caller's map stays as it is")
}

// Several changes of a message are events, one after the other. The position of the message is behind the
// last one.
func TestSeveralChangesOfAMessageAreEvents(t *testing.T) {
	t.Parallel()
	batch := func(token string, of ...*resourcev1.WatchResourcesResponse) *resourcev1.WatchResourcesResponse {
		out := &resourcev1.WatchResourcesResponse{ResumeToken: token}
		for _, e := range of {
			c := &resourcev1.WatchResourcesResponse_Change{Change: &resourcev1.WatchResourcesResponse_Change_Upsert{
				Upsert: e.GetUpsert(),
			}}
			if e.GetDelete() != nil {
				c.Change = &resourcev1.WatchResourcesResponse_Change_Delete{Delete: e.GetDelete()}
			}
			out.Changes = append(out.Changes, c)
		}
		return out
	}
	sends := []*resourcev1.WatchResourcesResponse{
		batch("", upsert("a", "u", 1), upsert("b", "u", 1)), endOfSnapshot("t1"),
		batch("t2", upsert("a", "u", 2), removal("b", "u"), upsert("c", "u", 1)),
		batch("", upsert("a", "u", 3), removal("never", "n")),
	}
	events, tokens, err := follow(t, client.WatchQuery{Bookmarks: true}, 7, played{sends: sends, ends: away}, played{})
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "+b u1", "synced", "+a u2", "-b u0", "+c u1", "+a u3"}, events)
	require.Equal(t, []string{""}, tokens)
	var behind []string
	server := &watches{streams: []played{{sends: sends, ends: away}}}
	for e, err := range open(t, stub.New(t, stub.Services{Resources: server})).Watch(t.Context(), stub.Deployment,
		client.WatchQuery{}) {
		require.NoError(t, err)
		if behind = append(behind, e.Token); len(behind) == 7 {
			break
		}
	}
	require.Equal(t, []string{"", "", "t1", "", "", "t2", ""}, behind)
	_, tokens, err = follow(t, client.WatchQuery{}, 8, played{sends: sends, ends: away},
		played{sends: []*resourcev1.WatchResourcesResponse{upsert("a", "u", 4)}})
	require.NoError(t, err)
	require.Equal(t, []string{"", "t2"}, tokens, "the changes behind it come again")
}

// An event of a type that a later version adds is skipped. The position behind it counts: it may end a
// transaction.
func TestAnUnknownEventIsSkipped(t *testing.T) {
	t.Parallel()
	unknown := &resourcev1.WatchResourcesResponse{ResumeToken: "t2"}
	events, _, err := follow(t, client.WatchQuery{Bookmarks: true}, 4,
		played{sends: []*resourcev1.WatchResourcesResponse{
			upsert("a", "u", 1), endOfSnapshot("t1"), upsert("a", "u", 2), unknown,
		}})
	require.NoError(t, err)
	require.Equal(t, []string{"+a u1", "synced", "+a u2", "bookmark"}, events)
}

func TestAWatchEndsWithADefiniteErrorOrItsContext(t *testing.T) {
	t.Parallel()
	_, _, err := follow(t, client.WatchQuery{Filter: "("}, 1,
		played{ends: because(t, codes.InvalidArgument, "INVALID")})
	require.ErrorIs(t, err, client.ErrInvalid)

	c := open(t,
		stub.New(t, stub.Services{
			Resources: &watches{
				streams: []played{{sends: []*resourcev1.WatchResourcesResponse{endOfSnapshot("t1")}}},
			},
		}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for e, err := range c.Watch(ctx, stub.Deployment, client.WatchQuery{}) {
		require.NoError(t, err)
		require.Equal(t, "t1", e.Token)
		cancel()
	}
	require.Error(t, ctx.Err())
}
