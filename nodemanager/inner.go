package nodemanager

import (
	"context"
	"strconv"
	"sync"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

// newInner makes the nodes of one version and answers the loop that runs them. Node i has the shards that are i modulo
// the number of nodes, and the subscriptions whose deployment's name falls into them: each deployment's deletions are
// acted upon, and acknowledged, by one node.
func newInner(cfg Config, subscriptions <-chan []constraint.Subscription) (func(context.Context), error) {
	type running struct {
		node Runner
		// Unbuffered: sent by the loop below, received by the node until it ends.
		subscriptions chan []constraint.Subscription
	}
	nodes := make([]running, cfg.Nodes)
	for i := range nodes {
		nodes[i].subscriptions = make(chan []constraint.Subscription)
		share := Share{Name: strconv.Itoa(i), Subscriptions: nodes[i].subscriptions, First: i == 0}
		for shard := range uint32(schema.RingSize) {
			if int(shard)%cfg.Nodes == i {
				share.Shards = append(share.Shards, shard)
			}
		}
		var err error
		if nodes[i].node, err = cfg.NewNode(share); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, n := range nodes {
			wg.Go(func() {
				if err := n.node.Run(ctx); err != nil {
					cfg.Logger.Error("a node ended", zap.Error(err))
				}
			})
		}
		for {
			select {
			case <-ctx.Done():
				return
			case set := <-subscriptions:
				for i, n := range nodes {
					select {
					case n.subscriptions <- mine(set, i, len(nodes)):
					case <-ctx.Done():
						return
					}
				}
			}
		}
	}, nil
}

func mine(set []constraint.Subscription, i, n int) []constraint.Subscription {
	var out []constraint.Subscription
	for _, s := range set {
		if int(schema.Shard(s.String()))%n == i {
			out = append(out, s)
		}
	}
	return out
}
