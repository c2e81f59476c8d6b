package wire

import (
	"fmt"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// WorkEvent reads an event of outstanding work. A few deployments occur in many items: each is parsed once
// and stored in known.
func WorkEvent(msg *schemav1.WatchResourceShadowsResponse,
	known map[string]schema.DeploymentID,
) (out schema.Event[schema.Work], err error) {
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
			w := schema.Work{
				Seq: item.GetId(), Action: schema.Action(item.GetAction()), Deployment: deployment,
				CreatedAt: item.GetCreateTime().AsTime(),
			}
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

// maxKindBytes bounds the name of a kind, as schema.CheckKind does.
const maxKindBytes = 63

// DeletionEvent reads an event of deletions.
func DeletionEvent(msg *schemav1.WatchImportedServiceDeletionsResponse) (out schema.Event[schema.Deletion], err error) {
	switch e := msg.GetEvent().(type) {
	case *schemav1.WatchImportedServiceDeletionsResponse_Upsert:
		if len(e.Upsert.GetNotices()) != len(e.Upsert.GetResources()) {
			return out, fmt.Errorf("%d resources, but %d notices: want one notice for each resource",
				len(e.Upsert.GetResources()), len(e.Upsert.GetNotices()))
		}
		for i, r := range e.Upsert.GetResources() {
			d := schema.Deletion{Seq: e.Upsert.GetNotices()[i], Kind: r.GetKind(), Name: r.GetName()}
			if d.UID, err = UID(r.GetUid()); err != nil {
				return out, err
			}
			// they stay in memory until the deletion is acknowledged
			if len(d.Name) > schema.MaxNameBytes || len(d.Kind) > maxKindBytes {
				return out, fmt.Errorf("a name of %d bytes, a kind of %d: too long", len(d.Name), len(d.Kind))
			}
			out.Items = append(out.Items, d)
		}
		SetCauses(out.Items, e.Upsert.GetCauses(), e.Upsert.GetCauseOf())
	case *schemav1.WatchImportedServiceDeletionsResponse_EndOfSnapshot:
		out.EndOfSnapshot, out.Token = true, e.EndOfSnapshot.GetResumeToken()
	case *schemav1.WatchImportedServiceDeletionsResponse_Bookmark:
		out.Token = e.Bookmark.GetResumeToken()
	default:
		// A newer server may send other events, which are skipped.
	}
	return out, nil
}
