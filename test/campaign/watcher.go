package campaign

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Watcher follows a deployment's resources as a user's cache would, resumes with its token after each
// interruption, and checks the events.
type Watcher struct {
	w  *World
	id schema.DeploymentID
	c  *Coverage
	// cleaner has cleaned up after each resource with a finalizer that is gone.
	cleaner *Cleaner

	mu       sync.Mutex
	known    map[string]*resourcev1.Resource // guarded by mu; by name
	revision map[string]int64                // guarded by mu; the last of each uid
	deleting map[string]bool                 // guarded by mu; uids that were seen in DELETING
	gone     map[string]bool                 // guarded by mu; uids that were seen gone
	wrong    []string                        // guarded by mu
	ended    bool                            // guarded by mu; the end of the snapshot was received
	fresh    map[string]bool                 // guarded by mu; names in the present snapshot
	opened   int                             // the number of streams so far
}

// Watch watches until ctx ends.
func Watch(ctx context.Context, w *World, id schema.DeploymentID, c *Coverage,
	cleaner *Cleaner,
) (watcher *Watcher, done <-chan struct{}) {
	watcher = &Watcher{
		w: w, id: id, c: c, cleaner: cleaner, known: map[string]*resourcev1.Resource{}, revision: map[string]int64{},
		deleting: map[string]bool{}, gone: map[string]bool{},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		token := ""
		for ctx.Err() == nil {
			var err error
			token, err = watcher.once(ctx, token)
			if status.Code(err) == codes.OutOfRange {
				token = ""
				c.add("watch reset", 1)
			}
			c.add("watch opened", 1)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return watcher, ended
}

func (w *Watcher) once(ctx context.Context, token string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(8*time.Second, cancel) // its server sends every five seconds
	defer silent.Stop()
	w.opened++ // a stream in batches goes on where one without has ended, and the other way round
	stream, err := w.w.resources(ctx, w.id).WatchResources(ctx, &resourcev1.WatchResourcesRequest{
		ResumeToken:  token,
		AllowBatches: w.opened%2 == 0,
	})
	if err != nil {
		return token, err
	}
	w.begin(token)
	resumed := token != ""
	var heard []*resourcev1.WatchResourcesResponse // since the last token: an interrupted watch delivers it again
	for {
		e, err := stream.Recv()
		if err != nil {
			return token, err
		}
		silent.Reset(8 * time.Second)
		heard = append(heard, e)
		for _, t := range []string{
			e.GetResumeToken(), e.GetBookmark().GetResumeToken(),
			e.GetEndOfSnapshot().GetResumeToken(),
		} {
			if t != "" {
				token = t
				w.take(heard)
				heard = nil
				if resumed {
					w.c.add("watch resumed", 1)
					resumed = false
				}
			}
		}
	}
}

func (w *Watcher) begin(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended, w.fresh = token != "", nil; token == "" {
		w.fresh = map[string]bool{}
	}
}

func (w *Watcher) report(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf("watch of %s: ", w.id)+fmt.Sprintf(format, args...))
}

func (w *Watcher) take(events []*resourcev1.WatchResourcesResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if n := len(e.GetChanges()); n > 0 {
			w.c.add("watch batches", 1)
			w.c.add("watch events", n)
		} else {
			w.c.add("watch events", 1)
		}
		for _, c := range e.GetChanges() {
			one := &resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
				Upsert: c.GetUpsert(),
			}}
			if c.GetDelete() != nil {
				one.Event = &resourcev1.WatchResourcesResponse_Delete{Delete: c.GetDelete()}
			}
			w.takeOne(one)
		}
		w.takeOne(e)
	}
}

func (w *Watcher) takeOne(e *resourcev1.WatchResourcesResponse) {
	switch r := e.GetUpsert(); {
	case e.GetEndOfSnapshot() != nil:
		if w.ended {
			w.report("a second end of snapshot")
		}
		w.ended = true
		for name := range w.known {
			if !w.fresh[name] {
				w.goes(w.known[name])
			}
		}
		w.fresh = nil
	case r != nil:
		uid := r.GetUid()
		if k := w.known[r.GetName()]; w.ended && k != nil && k.GetUid() != uid {
			w.report("%s %s replaces %s without an event of its removal (I23)", r.GetName(), uid, k.GetUid())
		}
		switch last := w.revision[uid]; {
		case w.gone[uid] && !w.mayReturn(r):
			w.report("%s %s is delivered after its removal (I12)", r.GetName(), uid)
		case r.GetRevision() < last, w.ended && r.GetRevision() == last:
			w.report("%s: revision %d comes after %d (I23)", r.GetName(), r.GetRevision(), last)
		}
		if w.deleting[uid] && r.GetState() != resourcev1.Resource_STATE_DELETING {
			w.report("%s is %s after DELETING (I12)", r.GetName(), r.GetState())
		}
		w.deleting[uid] = r.GetState() == resourcev1.Resource_STATE_DELETING
		w.revision[uid] = r.GetRevision()
		w.known[r.GetName()] = r
		if w.fresh != nil {
			w.fresh[r.GetName()] = true
		}
	case e.GetDelete() != nil:
		d := e.GetDelete()
		if !w.ended {
			w.report("%s is deleted within a snapshot", d.GetName())
		}
		known := w.known[d.GetName()]
		if known == nil || known.GetUid() != d.GetUid() {
			w.report("%s %s is deleted, and was unknown (I23)", d.GetName(), d.GetUid())
		}
		w.gone[d.GetUid()] = true
		if known != nil {
			w.goes(known)
		}
	}
}

// goes takes a resource that is gone.
func (w *Watcher) goes(r *resourcev1.Resource) {
	if !w.cleaner.hasCleaned(r) && !w.mayReturn(r) {
		w.report("%s %s is gone, and nobody has cleaned up after it (I33)", r.GetName(), r.GetUid())
	}
	w.gone[r.GetUid()] = true
	delete(w.known, r.GetName())
}

// mayReturn reports whether a scheduled deletion may have hidden a resource.
func (w *Watcher) mayReturn(r *resourcev1.Resource) bool {
	return w.w.mayBeHidden("//"+w.id.String()+"/"+r.GetName(), r.GetUid())
}

// Check returns all violations, and the differences between the watched state and a list.
func (w *Watcher) Check(listed map[string]*resourcev1.Resource) []string {
	var wrong []string
	for began := time.Now(); ; {
		w.mu.Lock()
		wrong = append([]string{}, w.wrong...)
		here := 0
		for full, r := range listed {
			name, err := schema.ParseFullName(full)
			if err != nil || name.Deployment != w.id {
				continue
			}
			here++
			k := w.known[name.Name]
			if k == nil || k.GetRevision() != r.GetRevision() || k.GetUid() != r.GetUid() ||
				k.GetState() != r.GetState() || !proto.Equal(k.GetBody(), r.GetBody()) {
				wrong = append(wrong, fmt.Sprintf("watch of %s: %s is known as %v, and is %v", w.id, name.Name, k, r))
			}
		}
		if here != len(w.known) {
			wrong = append(wrong, fmt.Sprintf("watch of %s: %d are known, and %d exist", w.id, len(w.known), here))
		}
		bad := len(w.wrong) > 0
		w.mu.Unlock()
		if len(wrong) == 0 || bad || time.Since(began) > 20*time.Second {
			return wrong
		}
		<-time.After(10 * time.Millisecond)
	}
}
