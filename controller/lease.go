package controller

import (
	"cmp"
	"context"
	"hash/fnv"
	"time"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Writer writes leases: a *client.Client.
type Writer interface {
	Create(ctx context.Context, r *Resource) (*Resource, error)
	Update(ctx context.Context, r *Resource, mask ...string) (*Resource, error)
	Delete(ctx context.Context, name string, only client.Version) (*resourcev1.DeleteResourceResponse, error)
}

// Sharing is how several processes share the resources of a controller. The leases are resources of a kind
// without references, such as
//
//   - { kind: Lease, patterns: ["leases/{lease}"] }
//
// in a deployment that all processes reach. No resource is reconciled by two processes at a time, as long as
// runs end with their contexts; see Term.Guard for runs that do not.
type Sharing struct {
	// Writer may create, update and delete the leases.
	Writer Writer
	// Kind of the leases, and the beginning of their names, which no other controller has: leases/devices-.
	Kind   Kind
	Prefix string
	// Shards is the number of parts of the resources; each part has one process at most (default 16). All
	// processes have the same number. Ten for each process spread the work well: shards are spread by hash,
	// and of few ones a process may get none.
	Shards int
	// Duration is the time after which a process that does not renew its lease is replaced (default 15 s).
	// All processes have the same.
	Duration time.Duration
}

// Share shares the resources with other processes that run the same controller. Each process watches
// everything, and reconciles the resources of the shards that it has.
func (c *Controller) Share(s Sharing) *Controller {
	s.Shards, s.Duration = cmp.Or(s.Shards, 16), cmp.Or(s.Duration, 15*time.Second)
	c.sharing = &s
	return c
}

// Term is the time for which a process has a shard. It is over before the shard has another one.
type Term struct {
	// Lease is the full name of the shard's lease, UID the incarnation of it that this process has made.
	Lease, UID string
}

type termKey struct{}

// TermOf returns the term of a run; false: the controller does not share its resources.
func TermOf(ctx context.Context) (Term, bool) {
	t, ok := ctx.Value(termKey{}).(Term)
	return t, ok
}

// Guard is a write for a Client.Batch at the deployment of the leases: it makes the batch fail when the term
// is over, and no other term of the shard begins before the batch is decided.
func (t Term) Guard() *client.Write { return client.UpdateOf(t.guard(), guardMask) }

func (t Term) guard() *Resource { return &Resource{Name: t.Lease, Uid: t.UID} }

// guardMask is a field that no lease has: an update of it changes nothing but the revision.
const guardMask = "labels.guard"

// tenure is a shard that this process has, or gives up.
type tenure struct {
	shard int
	term  Term
	// The context ends when the process may have lost the shard, and when it gives it up.
	ctx context.Context //nolint:containedctx // a tenure is its context
	end context.CancelFunc
	// seen: the watch has delivered the lease. If another one takes its place, or none, the term is over.
	seen bool
	// idle is closed when the loop runs nothing of it any more; nil until the shard is given up.
	idle chan struct{}
}

// handing gives a shard to the loop, or takes it back.
type handing struct {
	*tenure
	back chan struct{} // closed when nothing of it runs any more; nil: the shard is given
}

// shardOf returns the shard of a resource.
func (s *Sharing) shardOf(name schema.FullName) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name.String()))
	return int(mixed(h.Sum64()) % uint64(s.Shards)) //nolint:gosec // small and positive
}

// mixed spreads the differences of similar inputs over all bits (the finaliser of MurmurHash3).
func mixed(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// contextOf returns the context for a key; false: another process has the resource, or will have it, and
// reconciles it.
func (l *loop) contextOf(ctx context.Context, k key) (context.Context, bool) {
	if l.c.sharing == nil || k.does != reconcile {
		return ctx, true
	}
	t := l.tenures[l.c.sharing.shardOf(k.name)]
	if t == nil || t.ctx.Err() != nil {
		return ctx, false
	}
	return context.WithValue(t.ctx, termKey{}, t.term), true
}

// handed takes a shard, all of whose resources are reconciled, or gives it back.
func (l *loop) handed(h handing) {
	if h.back == nil {
		if l.tenures[h.shard] = h.tenure; l.phase == reconciling {
			l.enqueueAll()
		}
		return
	}
	delete(l.tenures, h.shard)
	l.returning = append(l.returning, h)
	l.giveBack()
}

// giveBack reports the shards of which nothing runs any more.
func (l *loop) giveBack() {
	var busy []handing
	for _, h := range l.returning {
		if l.runs(h.shard) {
			busy = append(busy, h)
		} else {
			close(h.back)
		}
	}
	l.returning = busy
}

// runs reports whether a resource of a shard is being reconciled.
func (l *loop) runs(shard int) bool {
	for k := range l.running {
		if k.does == reconcile && l.c.sharing.shardOf(k.name) == shard {
			return true
		}
	}
	return false
}
