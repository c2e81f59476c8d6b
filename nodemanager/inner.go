package nodemanager

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// innerManager runs the nodes of one version over the shards that this process has leased. Node i has the
// shards that are i modulo the number of nodes, and the subscriptions to the deployments whose names hash to
// them: so one node acts upon the deletions of a deployment, and acknowledges them.
type innerManager struct {
	cfg           Config
	subscriptions <-chan []schema.Subscription
	// joined is called when the process has leased its part of the shards, and it is known whether it leads
	// the deployment.
	joined func()
	log    *zap.Logger

	// Of the goroutine of run.
	set     []schema.Subscription
	member  uuid.UUID // zero: not joined
	renewed time.Time // the time before the last renewal that succeeded
	failing bool      // the last renewal failed
	leads   bool
	lead    leadership
	nodes   []*runningNode // by number; nil for nodes without shards
}

// runningNode is a node that runs under the present member.
type runningNode struct {
	shards []uint32
	// Unbuffered: sent by the inner manager, received by the node until it ends.
	subscriptions chan []schema.Subscription
	cancel        context.CancelFunc
	done          chan struct{} // closed when the node has returned
}

// renewals is the part of the TTL, in hundredths, after which a lease is renewed: by default a little less
// than a second, so that no look at the database is due beside those of the renewals.
const renewals = 19

func newInner(cfg Config, subscriptions <-chan []schema.Subscription, joined func()) *innerManager {
	return &innerManager{
		cfg: cfg, subscriptions: subscriptions, joined: joined, log: cfg.Logger,
		nodes: make([]*runningNode, cfg.Sharing.Nodes), lead: leadership{
			can: cfg.Sharing.CanLead,
			ttl: cfg.Sharing.TTL,
		},
	}
}

// run blocks until ctx ends and all nodes have returned; then the process has left.
func (i *innerManager) run(ctx context.Context) {
	defer i.leave(ctx)
	renew := time.NewTicker(i.cfg.Sharing.TTL * renewals / 100)
	defer renew.Stop()
	for {
		i.renew(ctx)
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
		case i.set = <-i.subscriptions:
			for _, n := range i.nodes {
				i.tell(ctx, n)
			}
		}
	}
}

// renew renews the lease, and runs the nodes of the shards that it grants.
func (i *innerManager) renew(ctx context.Context) {
	began := time.Now()
	asked, cancel := context.WithTimeout(ctx, i.cfg.Sharing.TTL)
	defer cancel()
	g, err := i.cfg.Sharing.Leases.Renew(asked, i.member, i.lead.takes(began))
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		i.notRenewed(err)
		return
	}
	i.member, i.renewed, i.failing = g.Member, began, false
	if leads := slices.Contains(g.Shards, schema.LeadShard); i.lead.stepsDown(began, leads &&
		len(g.Shards) < schema.RingSize) {
		i.log.Warn(
			"this process leads the deployment and cannot be registered: it leaves the lead to another process, if one takes it")
		g.Surplus = append(g.Surplus, schema.LeadShard)
	}
	held := slices.DeleteFunc(slices.Clone(g.Shards), func(s uint32) bool { return slices.Contains(g.Surplus, s) })
	i.divide(ctx, held)
	i.leading(slices.Contains(held, schema.LeadShard))
	i.joined()
	if len(g.Surplus) == 0 {
		return
	}
	i.log.Info("shards are released to other processes", zap.Uint32s("shards", g.Surplus))
	if err := i.cfg.Sharing.Leases.Release(asked, i.member, g.Surplus); err != nil {
		i.log.Warn("shards could not be released, it is tried again", zap.Error(err))
	}
}

// notRenewed handles a renewal that failed. Transactions of the nodes take no effect after the member has
// expired; until that is likely the nodes go on.
func (i *innerManager) notRenewed(err error) {
	level := zap.WarnLevel
	if i.failing {
		level = zap.DebugLevel // logged before
	}
	i.failing = true
	switch {
	case i.member == uuid.Nil:
		i.log.Log(level, "this process could not join, it is tried again", zap.Error(err))
	case errors.Is(err, schema.ErrFenced), time.Since(i.renewed) > i.cfg.Sharing.TTL:
		i.log.Warn("the lease of this process has expired: its nodes end, and it joins again", zap.Error(err))
		i.stop(nil)
		i.leading(false)
		i.member = uuid.Nil
	default:
		i.log.Log(level, "the lease could not be renewed, it is tried again", zap.Error(err))
	}
}

func (i *innerManager) leading(leads bool) {
	if i.leads != leads {
		i.leads = leads
		i.cfg.Sharing.Leads(leads)
	}
}

// divide divides the shards among the nodes. A node whose shards change is replaced: the old one ends first.
func (i *innerManager) divide(ctx context.Context, held []uint32) {
	shares := make([][]uint32, len(i.nodes))
	for _, s := range held {
		shares[int(s)%len(shares)] = append(shares[int(s)%len(shares)], s)
	}
	changed := func(n int) bool {
		running := i.nodes[n]
		return running == nil && len(shares[n]) > 0 || running != nil && !slices.Equal(running.shards, shares[n])
	}
	i.stop(func(n int) bool { return changed(n) })
	for n, shards := range shares {
		if i.nodes[n] == nil && len(shards) > 0 {
			i.start(ctx, n, shards)
		}
	}
}

// stop ends the nodes that the function selects, all nodes when it is nil, and waits for them.
func (i *innerManager) stop(which func(n int) bool) {
	var ending []*runningNode
	for n, running := range i.nodes {
		if running != nil && (which == nil || which(n)) {
			running.cancel()
			ending = append(ending, running)
			i.nodes[n] = nil
		}
	}
	for _, n := range ending {
		<-n.done
	}
}

func (i *innerManager) start(ctx context.Context, number int, shards []uint32) {
	ctx, cancel := context.WithCancel(ctx)
	n := &runningNode{
		shards: shards, subscriptions: make(chan []schema.Subscription), cancel: cancel,
		done: make(chan struct{}),
	}
	node, err := i.cfg.NewNode(Share{
		Name: strconv.Itoa(number), Member: i.member, Shards: shards, Subscriptions: n.subscriptions,
		First: slices.Contains(shards, schema.LeadShard),
	})
	if err != nil {
		cancel()
		i.log.Error("a node could not be made", zap.Error(err))
		return
	}
	i.nodes[number] = n
	go func() {
		defer close(n.done)
		if err := node.Run(ctx); err != nil {
			i.log.Error("a node ended", zap.Error(err))
		}
	}()
	i.tell(ctx, n)
}

// tell sends a node its part of the subscriptions.
func (i *innerManager) tell(ctx context.Context, n *runningNode) {
	if n == nil {
		return
	}
	select {
	case n.subscriptions <- mine(i.set, n.shards):
	case <-n.done:
	case <-ctx.Done():
	}
}

// leave ends the nodes, and releases the shards to other processes.
func (i *innerManager) leave(ctx context.Context) {
	i.stop(nil)
	i.leading(false)
	if i.member == uuid.Nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := i.cfg.Sharing.Leases.Release(ctx, i.member, nil); err != nil {
		i.log.Warn("the shards could not be released: other processes get them when the lease has expired",
			zap.Error(err))
	}
}

func mine(set []schema.Subscription, shards []uint32) []schema.Subscription {
	var out []schema.Subscription
	for _, s := range set {
		if slices.Contains(shards, schema.Shard(s.String())) {
			out = append(out, s)
		}
	}
	return out
}
