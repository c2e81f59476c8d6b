package constraint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

var (
	self = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
	near = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	far  = schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}
)

// streams are watches whose events a test sends. A stream that is cut ends with an error and is opened again.
type streams struct {
	mu        sync.Mutex
	work      chan schema.Event[schema.Work]
	deletions map[schema.DeploymentID]chan schema.Event[schema.Deletion]
	opened    map[string]int
}

func newStreams() *streams {
	return &streams{
		work: make(chan schema.Event[schema.Work]), opened: map[string]int{},
		deletions: map[schema.DeploymentID]chan schema.Event[schema.Deletion]{
			near: make(chan schema.Event[schema.Deletion]), far: make(chan schema.Event[schema.Deletion]),
		},
	}
}

var errCut = errors.New("cut")

func relay[T any](ctx context.Context, from chan schema.Event[T], deliver func(schema.Event[T]) error) error {
	alive := time.NewTicker(5 * time.Second)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			if err := deliver(schema.Event[T]{}); err != nil {
				return err
			}
		case e := <-from:
			switch e.Token {
			case "cut":
				return errCut
			case "silence":
				<-ctx.Done()
				return ctx.Err()
			}
			if err := deliver(e); err != nil {
				return err
			}
		}
	}
}

func (s *streams) count(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[name]++
}

func (s *streams) WatchShadows(ctx context.Context, _ []uint32, deliver func(schema.Event[schema.Work]) error) error {
	s.count("own")
	return relay(ctx, s.work, deliver)
}

func (s *streams) WatchDeletions(ctx context.Context, from schema.DeploymentID,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	s.count(from.String())
	return relay(ctx, s.deletions[from], deliver)
}

// recorder is all three handlers.
type recorder struct {
	mu      sync.Mutex
	log     []string
	handle  func(ctx context.Context, what string) error
	failed  map[uuid.UUID]error
	ran     constraint.HandlerRun // the last one
	expired []schema.DeploymentID
	looks   chan struct{}
	waiting map[int64]bool // work that is left each time
	paces   map[string]time.Duration
	ended   func(done <-chan error)
	running sync.Map
	bell    retry.Bell[schema.DeploymentID]
	watches map[string]constraint.Primed // the last message about each
}

func (r *recorder) left(work []schema.Work) (out []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range work {
		if r.waiting[w.Seq] {
			out = append(out, w.Seq)
		}
	}
	return out
}

func (r *recorder) did(ctx context.Context, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.log = append(r.log, what)
	r.mu.Unlock()
	// one run at a time for each deployment
	if handler, rest, _ := strings.Cut(what, " "); handler == "subscribed" || handler == "again" ||
		handler == "resolve" {
		key := handler + rest[:min(9, len(rest))]
		if _, running := r.running.LoadOrStore(key, true); running {
			panic("two runs at once: " + what)
		}
		defer r.running.Delete(key)
	}
	if r.handle != nil {
		return r.handle(ctx, what)
	}
	return nil
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

func seqs(work []schema.Work) (out []int64) {
	for _, w := range work {
		out = append(out, w.Seq)
	}
	return out
}

type ownedHandler struct{ *recorder }

// Task is the action's group, with a task of their own for owners.
func (h ownedHandler) Task(action schema.Action) string {
	switch action {
	case schema.Finalise:
		return "deleting"
	case schema.CheckOwners:
		return "pending owners"
	case schema.Confirm, schema.Release:
		return "pending"
	default:
		return ""
	}
}

func (h ownedHandler) Pace(task string) time.Duration { return h.paces[task] }

func (h ownedHandler) Handle(ctx context.Context, to schema.DeploymentID, work []schema.Work) ([]int64, error) {
	if h.Task(work[0].Action) == "deleting" {
		return h.left(work), h.did(ctx, "deleting %v", seqs(work))
	}
	return h.left(work), h.did(ctx, "pending %s %v", to.Region, seqs(work))
}

type resolveHandler struct{ *recorder }

func (h resolveHandler) Expired(context.Context) ([]schema.DeploymentID, error) {
	return h.expired, nil
}

func (h resolveHandler) Resolve(ctx context.Context, holder schema.DeploymentID) error {
	return h.did(ctx, "resolve %s", holder.Region)
}

type subscribedHandler struct{ *recorder }

func (h subscribedHandler) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	position string, earlier []uuid.UUID, again bool,
) (map[uuid.UUID]error, error) {
	var names []string
	failed := map[uuid.UUID]error{}
	h.mu.Lock()
	for _, d := range deletions {
		names = append(names, d.Name)
		if err := h.failed[d.UID]; err != nil {
			failed[d.UID] = err
		}
	}
	h.mu.Unlock()
	slices.Sort(names)
	what := "subscribed"
	if again {
		what = "again"
	}
	return failed, h.did(ctx, what+" %s %v %q except %d", from.Region, names, position, len(earlier))
}

func (r *recorder) WatchHeard(string, schema.DeploymentID) {}

func (r *recorder) HandlerRan(_ string, _ schema.DeploymentID, run constraint.HandlerRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran = run
}

func (r *recorder) WatchPrimed(watch string, d schema.DeploymentID, p constraint.Primed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watches == nil {
		r.watches = map[string]constraint.Primed{}
	}
	p.Took = 0
	r.watches[watch+" "+d.Region] = p
}

// look does the looks of the store, each second, which may have found expired blockades.
func (r *recorder) look(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		select {
		case r.looks <- struct{}{}:
		case <-ctx.Done():
		}
	}
}

func newNode(t *testing.T, watches constraint.Watches, r *recorder) (*constraint.Node, chan<- []schema.Subscription) {
	t.Helper()
	subscriptions := make(chan []schema.Subscription)
	node, err := constraint.New(constraint.Config{
		Name: "0", Deployment: self, Shards: []uint32{0}, Subscriptions: subscriptions, Watches: watches, Observer: r,
		Logger: zap.NewNop(), Expired: r.looks,
		Handlers: constraint.Handlers{
			Owned: ownedHandler{r}, Resolver: resolveHandler{r},
			Subscribed: subscribedHandler{r},
		}, Retries: r.bell.Listen,
	})
	require.NoError(t, err)
	return node, subscriptions
}

// inNode runs a node in a bubble of synctest, where time is the test's, and which fails when a goroutine is
// left.
func inNode(t *testing.T, test func(s *streams, r *recorder)) {
	t.Helper()
	inSubscribedNode(t, func(s *streams, r *recorder, _ chan<- []schema.Subscription) { test(s, r) })
}

// inSubscribedNode is inNode for tests that change the subscriptions.
func inSubscribedNode(t *testing.T, test func(s *streams, r *recorder, subscriptions chan<- []schema.Subscription)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, r := newStreams(), &recorder{looks: make(chan struct{})}
		node, subscriptions := newNode(t, s, r)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- node.Run(ctx) }()
		go r.look(ctx)
		subscriptions <- []schema.Subscription{{DeploymentID: near}, {DeploymentID: far}}
		test(s, r, subscriptions)
		cancel()
		if r.ended != nil {
			r.ended(done)
			return
		}
		require.NoError(t, <-done)
	})
}

func work(action schema.Action, to schema.DeploymentID, seqs ...int64) schema.Event[schema.Work] {
	e := schema.Event[schema.Work]{}
	for _, seq := range seqs {
		e.Items = append(e.Items, schema.Work{Seq: seq, Action: action, Deployment: to})
	}
	return e
}

func deletion(names ...string) schema.Event[schema.Deletion] {
	e := schema.Event[schema.Deletion]{}
	for _, name := range names {
		e.Items = append(e.Items, schema.Deletion{Seq: 1, Name: name, UID: uidOf(name)})
	}
	return e
}

func uidOf(name string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)) }

func endOfWork() schema.Event[schema.Work] {
	return schema.Event[schema.Work]{EndOfSnapshot: true, Token: "w"}
}

func endOfDeletions(token string) schema.Event[schema.Deletion] {
	return schema.Event[schema.Deletion]{EndOfSnapshot: true, Token: token}
}

func bookmark(token string) schema.Event[schema.Deletion] {
	return schema.Event[schema.Deletion]{Token: token}
}
