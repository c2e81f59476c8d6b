package peers

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// WatchShadows delivers the outstanding work of this deployment, over the in-process channel that does not
// copy messages. It returns when the stream ends or deliver fails.
func (p *Peers) WatchShadows(ctx context.Context, shards []uint32,
	deliver func(schema.Event[schema.Work]) error,
) error {
	stream, err := p.shared().WatchResourceShadows(ctx, &schemav1.WatchResourceShadowsRequest{Shards: shards})
	if err != nil {
		return err
	}
	known := map[string]schema.DeploymentID{} // a few deployments occur in many items: each is parsed and stored once
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		event, err := wire.WorkEvent(msg, known)
		if err != nil {
			return err
		}
		if err := deliver(event); err != nil {
			return err
		}
	}
}

// WatchDeletions delivers the deletions at a deployment that this one has to act upon. It returns when the
// stream ends or deliver fails.
func (p *Peers) WatchDeletions(ctx context.Context, from schema.DeploymentID,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	client := p.shared()
	if from != p.self {
		var err error
		if client, err = p.Client(from); err != nil {
			return err
		}
	}
	// The watch of an unreachable deployment begins as soon as there is a connection, and not after a
	// back-off.
	kept, err := p.keptPosition(ctx, from)
	if err != nil {
		return err
	}
	defer kept.end()
	req := &schemav1.WatchImportedServiceDeletionsRequest{KeptToken: kept.token}
	stream, err := client.WatchImportedServiceDeletions(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		event, err := wire.DeletionEvent(msg)
		if err != nil {
			return fmt.Errorf("deletions of %s: %w", from, err)
		}
		if err := kept.replace(ctx, event.Token); err != nil {
			return err
		}
		if err := deliver(event); err != nil {
			return err
		}
	}
}
