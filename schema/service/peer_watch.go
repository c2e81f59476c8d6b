package service

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// WatchShadows delivers the outstanding work of this deployment, over the in-process channel that does not copy messages.
// It returns when the stream ends or deliver fails.
func (p *Peers) WatchShadows(ctx context.Context, shards []uint32, deliver func(schema.Event[schema.Work]) error) error {
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
		event, err := workEvent(msg, known)
		if err != nil {
			return err
		}
		if err := deliver(event); err != nil {
			return err
		}
	}
}

func workEvent(msg *schemav1.WatchResourceShadowsResponse, known map[string]schema.DeploymentID) (out schema.Event[schema.Work], err error) {
	switch e := msg.GetEvent().(type) {
	case *schemav1.WatchResourceShadowsResponse_Upsert:
		for _, item := range e.Upsert.GetItems() {
			deployment, ok := known[item.GetDeployment()]
			if !ok {
				if deployment, err = schema.ParseDeploymentID(item.GetDeployment()); err != nil {
					return out, err
				}
				known[item.GetDeployment()] = deployment
			}
			w := schema.Work{Seq: item.GetId(), Action: schema.Action(item.GetAction()), Deployment: deployment, CreatedAt: item.GetCreateTime().AsTime()}
			out.Items = append(out.Items, w)
		}
	case *schemav1.WatchResourceShadowsResponse_EndOfSnapshot:
		out.EndOfSnapshot, out.Token = true, e.EndOfSnapshot.GetResumeToken()
	case *schemav1.WatchResourceShadowsResponse_Bookmark:
		out.Token = e.Bookmark.GetResumeToken()
	default:
		// A newer server may send other events, which are skipped.
	}
	return out, nil
}

// WatchDeletions delivers the deletions at a deployment that this one has to act upon. It returns when the stream ends or
// deliver fails.
func (p *Peers) WatchDeletions(ctx context.Context, from schema.DeploymentID, deliver func(schema.Event[schema.Deletion]) error) error {
	client := p.shared()
	if from != p.self {
		var err error
		if client, err = p.Client(from); err != nil {
			return err
		}
	}
	// The watch of an unreachable deployment begins as soon as there is a connection, and not after a back-off.
	stream, err := client.WatchImportedServiceDeletions(ctx, &schemav1.WatchImportedServiceDeletionsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		event, err := deletionEvent(msg)
		if err != nil {
			return fmt.Errorf("deletions of %s: %w", from, err)
		}
		if err := deliver(event); err != nil {
			return err
		}
	}
}

func deletionEvent(msg *schemav1.WatchImportedServiceDeletionsResponse) (out schema.Event[schema.Deletion], err error) {
	switch e := msg.GetEvent().(type) {
	case *schemav1.WatchImportedServiceDeletionsResponse_Upsert:
		if len(e.Upsert.GetNotices()) != len(e.Upsert.GetResources()) {
			return out, fmt.Errorf("%d resources, but %d notices: want one notice for each resource", len(e.Upsert.GetResources()), len(e.Upsert.GetNotices()))
		}
		for i, r := range e.Upsert.GetResources() {
			d := schema.Deletion{Seq: e.Upsert.GetNotices()[i], Kind: r.GetKind(), Name: r.GetName()}
			if d.UID, err = wire.UID(r.GetUid()); err != nil {
				return out, err
			}
			out.Items = append(out.Items, d)
		}
		wire.SetCauses(out.Items, e.Upsert.GetCauses(), e.Upsert.GetCauseOf())
	case *schemav1.WatchImportedServiceDeletionsResponse_EndOfSnapshot:
		out.EndOfSnapshot, out.Token = true, e.EndOfSnapshot.GetResumeToken()
	case *schemav1.WatchImportedServiceDeletionsResponse_Bookmark:
		out.Token = e.Bookmark.GetResumeToken()
	default:
		// A newer server may send other events, which are skipped.
	}
	return out, nil
}
