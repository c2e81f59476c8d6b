package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// EventType is the kind of an Event.
type EventType int

// The types of events.
const (
	// Upserted: a resource was created or changed.
	Upserted EventType = iota + 1
	// Deleted: a resource was removed, or no longer matches the filter.
	Deleted
	// Synced: all resources were delivered, as they were at one moment. It comes once after the start, and
	// again after a reset.
	Synced
	// Bookmark: each transaction is entirely among the events before it, or entirely after it. Event.Token
	// says the same of another event, once all resources were delivered. Only with WatchQuery.Bookmarks.
	Bookmark
)

var eventTypes = map[EventType]string{Upserted: "upserted", Deleted: "deleted", Synced: "synced", Bookmark: "bookmark"}

func (t EventType) String() string { return eventTypes[t] }

// Event is a change of one resource, or Synced, or a Bookmark.
type Event struct {
	Type EventType
	// Resource is the whole resource, of Deleted only its name, kind, uid and revision; nil with Synced and
	// Bookmark.
	Resource *resourcev1.Resource
	// Token resumes the watch after this event, when it is not empty.
	Token string
}

// WatchQuery selects resources. Its zero value selects all of a deployment, from a snapshot on.
type WatchQuery struct {
	// Kind and Filter are as in Query.
	Kind, Filter string
	// Token of an earlier event, and Known, the relative names of the resources of that moment with their
	// versions, resume an earlier watch. The token alone is enough until the deployment cannot resume it:
	// then the watch fails with ErrReset.
	Token string
	Known map[string]Version
	// Bookmarks are delivered as well.
	Bookmarks bool
	// Interrupted is called with the reason when the watch can receive no more and tries again, and with nil
	// when it goes on: once a change, not once a try. It must not block.
	Interrupted func(err error)
}

// Watch delivers the resources of a deployment, then Synced, then every change in order. It goes on after
// lost connections, in any region of the service. When the deployment cannot resume it, after a failover for
// example, it reads a new snapshot and delivers the difference to the delivered state: changed resources, and
// a Deleted for each missing resource. It keeps the name and the version of each resource for that. It ends
// with ctx, without an error, or with a definite error.
func (c *Client) Watch(ctx context.Context, id schema.DeploymentID, q WatchQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := &watcher{client: c, id: id, query: q, known: map[string]Version{}, yield: yield, whole: q.Token == "" ||
			q.Known != nil}
		for name, version := range q.Known {
			w.known[name] = version
		}
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
			yield(Event{}, err)
		}
	}
}

// errStopped: the reader of the events ended its loop.
var errStopped = errors.New("stopped")

// watcher is one call of Watch.
type watcher struct {
	client *Client
	id     schema.DeploymentID
	query  WatchQuery // with the newest token
	yield  func(Event, error) bool
	// known are the delivered resources; whole: no other resource was delivered before.
	known map[string]Version
	whole bool
	// present are the names in the snapshot that is being read; nil outside of one.
	present     map[string]bool
	interrupted bool
}

// interrupt tells the caller when the watch is interrupted (err is not nil), or goes on.
func (w *watcher) interrupt(err error) {
	if changed := w.interrupted != (err != nil); changed && w.query.Interrupted != nil {
		w.query.Interrupted(err)
	}
	w.interrupted = err != nil
}

// run opens streams until ctx or the reader ends, or an error is definite.
func (w *watcher) run(ctx context.Context) error {
	pauses := retry.Backoff{First: 20 * time.Millisecond, Max: 2 * time.Second}
	for n := 0; ; n++ {
		began := time.Now()
		err := retry.Watch(ctx, func(ctx context.Context, heard func()) error { return w.stream(ctx, n, heard) })
		switch {
		case errors.Is(err, errStopped), ctx.Err() != nil:
			return err
		case errors.Is(err, ErrReset) && w.query.Token != "":
			if !w.whole {
				return fmt.Errorf(
					"the watch cannot be resumed, and the resources that were known before are not in WatchQuery.Known: %w", err)
			}
			w.query.Token = ""
		case isDefinite(err):
			return err
		default:
			w.interrupt(err)
		}
		if time.Since(began) > retry.Stable {
			pauses.Reset()
		}
		if err := pauses.Wait(ctx); err != nil {
			return err
		}
		w.client.forgetEnvironment()
	}
}

// stream reads one stream, through the n-th door, until it ends.
func (w *watcher) stream(ctx context.Context, n int, heard func()) error {
	doors, err := w.client.doors(ctx, w.id)
	if err != nil {
		return err
	}
	at := doors[n%len(doors)]
	door, err := w.client.Resources(ctx, at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := door.WatchResources(ctx, &resourcev1.WatchResourcesRequest{
		Kind: w.query.Kind, Filter: w.query.Filter, ResumeToken: w.query.Token, Region: w.id.Region, AllowBatches: true,
	})
	if err != nil {
		return errorOf(err, at)
	}
	w.present = nil
	if w.query.Token == "" {
		w.present = map[string]bool{}
	}
	for {
		received, err := stream.Recv()
		if err != nil {
			return errorOf(err, at)
		}
		heard()
		w.interrupt(nil)
		if err := w.take(received); err != nil {
			return err
		}
	}
}

// take delivers one message of the stream.
func (w *watcher) take(received *resourcev1.WatchResourcesResponse) error {
	token := received.GetResumeToken()
	if changes := received.GetChanges(); len(changes) > 0 {
		return w.takeAll(changes, token)
	}
	switch e := received.GetEvent().(type) {
	case *resourcev1.WatchResourcesResponse_Upsert:
		return w.upsert(e.Upsert, token)
	case *resourcev1.WatchResourcesResponse_Delete:
		return w.remove(e.Delete, token)
	case *resourcev1.WatchResourcesResponse_EndOfSnapshot_:
		return w.synced(e.EndOfSnapshot.GetResumeToken())
	case *resourcev1.WatchResourcesResponse_Bookmark_:
		return w.bookmark(e.Bookmark.GetResumeToken())
	}
	return w.bookmark(token) // an event of a later version: its token may end a transaction
}

// takeAll delivers several changes. The token is that behind the last one.
func (w *watcher) takeAll(changes []*resourcev1.WatchResourcesResponse_Change, token string) error {
	for i, c := range changes {
		behind := ""
		if i == len(changes)-1 {
			behind = token
		}
		var err error
		switch c := c.GetChange().(type) {
		case *resourcev1.WatchResourcesResponse_Change_Upsert:
			err = w.upsert(c.Upsert, behind)
		case *resourcev1.WatchResourcesResponse_Change_Delete:
			err = w.remove(c.Delete, behind)
		default:
			err = w.bookmark(behind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// upsert delivers a resource that is new, or another version than the delivered one.
func (w *watcher) upsert(r *resourcev1.Resource, token string) error {
	version := Version{UID: r.GetUid(), Revision: r.GetRevision()}
	if w.present != nil {
		w.present[r.GetName()] = true
	}
	if w.known[r.GetName()] == version {
		return w.bookmark(token)
	}
	w.known[r.GetName()] = version
	return w.deliver(Event{Type: Upserted, Resource: r, Token: token})
}

// remove delivers the removal of a resource; the removal of an earlier incarnation than the delivered one
// says nothing new.
func (w *watcher) remove(r *resourcev1.Resource, token string) error {
	known, delivered := w.known[r.GetName()]
	if (delivered || w.whole) && known.UID != r.GetUid() {
		return w.bookmark(token)
	}
	delete(w.known, r.GetName())
	delete(w.present, r.GetName())
	gone := &resourcev1.Resource{
		Name: r.GetName(), Kind: r.GetKind(), Uid: r.GetUid(), Revision: r.GetRevision(),
		Deployment: w.id.String(),
	}
	// not r: a channel inside the process shares it
	return w.deliver(Event{Type: Deleted, Resource: gone, Token: token})
}

// bookmark takes a token without a change.
func (w *watcher) bookmark(token string) error {
	if token == "" || w.present != nil || !w.query.Bookmarks {
		w.resumeAt(token)
		return nil
	}
	return w.deliver(Event{Type: Bookmark, Token: token})
}

// synced delivers the removals of the resources that are missing in the snapshot, and Synced.
func (w *watcher) synced(token string) error {
	for name, version := range w.known {
		if w.present[name] {
			continue
		}
		delete(w.known, name)
		missing := &resourcev1.Resource{
			Name: name, Uid: version.UID, Revision: version.Revision,
			Deployment: w.id.String(),
		}
		if err := w.deliver(Event{Type: Deleted, Resource: missing}); err != nil {
			return err
		}
	}
	w.present = nil
	return w.deliver(Event{Type: Synced, Token: token})
}

// deliver delivers an event. Within a snapshot it has no token: a watch that is resumed there would miss
// removals.
func (w *watcher) deliver(e Event) error {
	if w.present != nil {
		e.Token = ""
	}
	w.resumeAt(e.Token)
	if !w.yield(e, nil) {
		return errStopped
	}
	return nil
}

// resumeAt notes the token after the last delivered event. A snapshot that was cut off is read again from its
// start: only its end tells which resources are missing.
func (w *watcher) resumeAt(token string) {
	if token != "" && w.present == nil {
		w.query.Token = token
	}
}
