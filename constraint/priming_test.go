package constraint_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const services = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references: [{ path: next, targets: [Target], behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: target, targets: [a.example.com/Target], behaviour: ASYNC_CASCADE_DELETE }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
`

// staged gives a node the snapshot of the deletions at a deployment in the order that a test wants, with a
// pause in the middle.
type staged struct {
	stages [2][]schema.Event[schema.Deletion]
	resume chan struct{}
}

func (s *staged) WatchShadows(ctx context.Context, _ []uint32, deliver func(schema.Event[schema.Work]) error) error {
	if err := deliver(schema.Event[schema.Work]{EndOfSnapshot: true, Token: "w"}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *staged) WatchDeletions(ctx context.Context, _ schema.DeploymentID,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	for i, stage := range s.stages {
		for _, e := range stage {
			if err := deliver(e); err != nil {
				return err
			}
		}
		if i == 0 {
			<-s.resume
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// acknowledging is the other deployment, which removes the notices that are acknowledged.
type acknowledging struct {
	store *shadow.Store
	self  schema.DeploymentID
	once  sync.Once
	first chan struct{} // closed after the first time
}

func (a *acknowledging) Acknowledge(ctx context.Context, _ schema.DeploymentID, _ uuid.UUID, position string,
	except []uuid.UUID,
) error {
	err := a.store.Targets.Acknowledge(ctx, a.self, uuid.Nil, position, except)
	a.once.Do(func() { close(a.first) })
	return err
}

// primed lets a real node of the holders' deployment act on forty deletions whose snapshot comes in two
// halves, the end in the order of the test. It returns the problems that the audit finds at rest.
func primed(t *testing.T, order func(half, rest, end schema.Event[schema.Deletion]) [2][]schema.Event[schema.Deletion],
	early bool,
) (problems []string) {
	a, b := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
	box := harness.NewBox(t, services, nil, a.String(), b.String())
	for i := range 40 {
		target := fmt.Sprintf("//%s/targets/t%d", a, i)
		box.MustPut(target, nil)
		box.MustPut(fmt.Sprintf("//%s/holders/h%d", b, i), harness.Body{"target": target})
	}
	box.Settle()
	for i := range 40 {
		box.MustDelete(fmt.Sprintf("//%s/targets/t%d", a, i))
	}
	deletions, position := box.Seen(b, a)
	require.Len(t, deletions, 40)
	s := &staged{resume: make(chan struct{}), stages: order(
		schema.Event[schema.Deletion]{Items: deletions[:20]}, schema.Event[schema.Deletion]{Items: deletions[20:]},
		schema.Event[schema.Deletion]{EndOfSnapshot: true, Token: position},
	)}
	ack := &acknowledging{store: box.Stores[a], self: b, first: make(chan struct{})}
	subscriptions, r := make(chan []schema.Subscription), &recorder{}
	node, err := constraint.New(constraint.Config{
		Name: "0", Deployment: b, Subscriptions: subscriptions, Watches: s, Observer: r, Logger: zap.NewNop(),
		Handlers: constraint.Handlers{
			Owned: ownedHandler{r}, Resolver: resolveHandler{r},
			Subscribed: &handlers.SubscribedDeleting{
				Store: box.Stores[b].Follow, Epoch: box.Stores[b].Gate,
				Peers: ack,
			},
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- node.Run(ctx) }()
	subscriptions <- []schema.Subscription{{DeploymentID: a}}
	if early { // in the pause
		<-ack.first
		_, err := box.Do(a, schema.Finalise)
		require.NoError(t, err)
		problems = harness.AuditDatabases(t, box.Pools)
	} else {
		select {
		case <-ack.first:
			t.Error("acted on half of a snapshot")
		case <-time.After(300 * time.Millisecond):
			require.Equal(t, 40, box.Count(b.String(), "resource"))
		}
	}
	close(s.resume)
	if !early {
		<-ack.first
	}
	cancel()
	require.NoError(t, <-done)
	box.Settle()
	return append(problems, harness.AuditDatabases(t, box.Pools)...)
}

// A node that acts on a half-filled cache acknowledges deletions that it has not seen yet, with the position
// of the whole snapshot: their targets are removed, and their holders stay. The audit finds that when the end
// of the snapshot comes in its middle, as for a node without priming.
func TestAHalfFilledCacheIsNeverActedUpon(t *testing.T) {
	t.Parallel()
	require.Empty(t, primed(t, func(half, rest, end schema.Event[schema.Deletion]) [2][]schema.Event[schema.Deletion] {
		return [2][]schema.Event[schema.Deletion]{{half}, {rest, end}}
	}, false))
	require.NotEmpty(t,
		primed(t, func(half, rest, end schema.Event[schema.Deletion]) [2][]schema.Event[schema.Deletion] {
			return [2][]schema.Event[schema.Deletion]{{half, end}, {rest}}
		}, true), "without priming")
}

// stored is the watch of a real store.
type stored struct {
	*staged
	store *shadow.Store
	self  schema.DeploymentID
}

func (w *stored) WatchDeletions(ctx context.Context, _ schema.DeploymentID,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	return w.store.Read.WatchDeletions(ctx, w.self, "", func(e schema.Event[schema.Deletion]) error {
		if len(e.Items) > 0 {
			e.Token = "" // the token comes with the next bookmark, and the acknowledgement waits for it
		}
		return deliver(e)
	})
}

// A holder is confirmed after its target was marked, and after a node has acted on that for another holder:
// the target comes again, and is acted upon again before it is acknowledged (I4).
func TestADeletionThatComesAgainIsActedUponAgain_I4(t *testing.T) {
	t.Parallel()
	a, east, b := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}, schema.DeploymentID{
			Service: "b.example.com",
			Region:  "us-west2",
		}
	box := harness.NewBox(t, services, nil, a.String(), east.String(), b.String())
	target, middle := "//"+a.String()+"/targets/t", "//"+east.String()+"/targets/m"
	box.MustPut(target, nil)
	box.MustPut(middle, harness.Body{"next": target})
	box.MustPut("//"+b.String()+"/holders/h1", harness.Body{"cascade": middle})
	box.Settle()
	box.MustDelete(target)

	subscriptions, r := make(chan []schema.Subscription), &recorder{}
	node, err := constraint.New(constraint.Config{
		Name: "0", Deployment: b, Subscriptions: subscriptions, Watches: &stored{&staged{}, box.Stores[east], b},
		Observer: r, Logger: zap.NewNop(),
		Handlers: constraint.Handlers{
			Owned: ownedHandler{r}, Resolver: resolveHandler{r},
			Subscribed: &handlers.SubscribedDeleting{
				Store: box.Stores[b].Follow, Epoch: box.Stores[b].Gate,
				Peers: &acknowledging{store: box.Stores[east], self: b, first: make(chan struct{})},
			},
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- node.Run(ctx) }()
	subscriptions <- []schema.Subscription{{DeploymentID: east}}
	box.AfterEstablish = func() { // the second holder is established, and commits after this function
		box.AfterEstablish = nil
		_, err := box.Act(east, a)
		require.NoError(t, err)
		require.Equal(t, peer.Deleting, box.Get(middle).State)
		require.Eventually(t, func() bool {
			return box.Count(b.String(), "resource") == 0
		}, wait.Limit, 10*time.Millisecond, "the first goes")
	}
	box.MustPut("//"+b.String()+"/holders/h2", harness.Body{"cascade": middle})
	_, err = box.Do(b, schema.Confirm)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return box.Count(east.String(), "notice") == 0
	}, wait.Limit, 50*time.Millisecond, "acknowledged")
	cancel()
	require.NoError(t, <-done)
	require.Zero(t, box.Count(b.String(), "resource"))
	box.Settle()
	box.Audit()
}
