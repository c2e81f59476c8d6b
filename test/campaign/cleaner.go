package campaign

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// finalizer is the finalizer of chains and leaves; cleanerIdentity holds it.
const finalizer = "tidy"

var cleanerIdentity = identity.Identity{Role: identity.RoleUser, Name: "cleaner"}

// finalized maps the collections of kinds with the finalizer to the first names of the kinds.
var finalized = map[string]string{"chains": "Chain", "leaves": "Leaf"}

// Cleaner is the holder of the finalizer: controllers that clean up late, fail before and after they have
// cleaned up, and die in the middle of it. No resource of their kinds is removed before a clean-up for its
// uid has ended (I33).
type Cleaner struct {
	c *Coverage
	n func(format string, args ...any) // the journal

	mu      sync.Mutex
	rand    *rand.Rand      // guarded by mu
	cleaned map[string]bool // guarded by mu; uids
}

// newCleaner runs a cleaner of all deployments until the test ends.
func newCleaner(p *Player) *Cleaner {
	k := &Cleaner{c: p.c, n: p.note, rand: rand.New(rand.NewPCG(p.g.Uint64(), 7)), cleaned: map[string]bool{}}
	c, err := client.New(client.File{Registry: p.w.RegistryAddress, Certs: p.w.cleaner}, "")
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, id := range deployments {
		for _, kind := range finalized {
			running.Go(func() { k.keepRunning(ctx, c, controller.Kind{Deployment: id, Name: kind}) })
		}
	}
	p.t.Cleanup(func() {
		cancel()
		running.Wait()
		c.Close()
	})
	return k
}

// keepRunning runs a controller of one kind. Now and then it dies, and another one takes its place.
func (k *Cleaner) keepRunning(ctx context.Context, c *client.Client, kind controller.Kind) {
	nothing := controller.Func(func(context.Context, controller.Request, *controller.View) (controller.Result, error) {
		return controller.Result{}, nil
	})
	for ctx.Err() == nil {
		life, die := context.WithTimeout(ctx, k.upTo(8*time.Second))
		err := controller.New(c, kind).Finalizer(finalizer, c, k.cleanUp).Workers(4).Backoff(20*time.Millisecond,
			500*time.Millisecond).Run(life, nothing)
		die()
		if k.c.add("holder of finalizers ended", 1); err != nil { // the registry may be away
			k.n("  the controller of %s ended: %v", kind, err)
		}
		pause(ctx, 100*time.Millisecond)
	}
}

var errWhileCleaning = errors.New("the clean-up failed")

// cleanUp fails in one of four calls before it has cleaned up, and in one of four afterwards.
func (k *Cleaner) cleanUp(ctx context.Context, r *controller.Resource, _ *controller.View) error {
	if pause(ctx, k.upTo(400*time.Millisecond)); ctx.Err() != nil {
		return ctx.Err()
	}
	if r.GetState() != resourcev1.Resource_STATE_DELETING || !slices.Contains(r.GetFinalizers(), finalizer) {
		k.n("  WRONG: %s is to be cleaned up after, and is %s with %v", r.GetName(), r.GetState(), r.GetFinalizers())
		return errWhileCleaning // it never comes to rest
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rand.IntN(4) == 0 {
		return errWhileCleaning
	}
	if k.cleaned[r.GetUid()] {
		k.c.add("cleaned up again", 1)
	} else {
		k.c.add("cleaned up after", 1)
	}
	if k.cleaned[r.GetUid()] = true; k.rand.IntN(4) == 0 {
		return errWhileCleaning
	}
	return nil
}

func (k *Cleaner) upTo(most time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Duration(k.rand.Int64N(int64(most)) + 1)
}

// hasCleaned reports whether a resource may be gone.
func (k *Cleaner) hasCleaned(r *resourcev1.Resource) bool {
	collection, _, _ := strings.Cut(r.GetName(), "/")
	k.mu.Lock()
	defer k.mu.Unlock()
	return finalized[collection] == "" || k.cleaned[r.GetUid()]
}

// issueCleaner makes the certificate of the cleaner.
func (w *World) issueCleaner() {
	dir, err := w.Issue(cleanerIdentity)
	require.NoError(w.t, err)
	w.cleaner = dir
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
