package service

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Callers of ListDeletions need the right to delete.
func (a *admin) ListDeletions(ctx context.Context,
	req *adminv1.ListDeletionsRequest,
) (*adminv1.ListDeletionsResponse, error) {
	out, err := a.listDeletions(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) listDeletions(ctx context.Context,
	req *adminv1.ListDeletionsRequest,
) (*adminv1.ListDeletionsResponse, error) {
	id, err := optionalUUID("deletion", req.GetDeletion())
	if err != nil {
		return nil, err
	}
	var found []shadow.DeletionProgress
	out := &adminv1.ListDeletionsResponse{}
	switch {
	case id != uuid.Nil:
		found, err = a.progress.DeletionProgress(ctx, id)
		out.TotalSize = int64(len(found))
	case req.GetEnded():
		found, out.NextPageToken, err = a.progress.EndedDeletions(ctx, req.GetPageToken(), pageSize(req.GetPageSize()))
	default:
		found, err = a.runningDeletions(ctx, req, out)
	}
	for _, d := range found {
		out.Deletions = append(out.Deletions, deletionProto(d))
	}
	return out, err
}

func (a *admin) runningDeletions(ctx context.Context, req *adminv1.ListDeletionsRequest,
	out *adminv1.ListDeletionsResponse,
) (found []shadow.DeletionProgress, err error) {
	if found, out.NextPageToken, err = a.progress.ListDeletions(ctx, req.GetPageToken(),
		pageSize(req.GetPageSize())); err != nil {
		return nil, err
	}
	left, err := a.progress.DeletionsLeft(ctx)
	out.TotalSize = left.Running
	return found, err
}

func deletionProto(d shadow.DeletionProgress) *adminv1.Deletion {
	out := &adminv1.Deletion{
		Id: d.ID.String(), Root: d.Root, Found: d.Found, Removed: d.Removed, Unset: d.Unset, Expected: d.Expected,
		ExpectedUnset: d.ExpectedUnset,
		StartTime:     timestamppb.New(d.StartedAt), UpdateTime: timestamppb.New(d.UpdatedAt),
	}
	if d.Left > 0 {
		out.Left = durationpb.New(d.Left)
	}
	return out
}

// deletionOf returns the progress of the deletion of a resource; nil if nothing is recorded.
func (a *admin) deletionOf(ctx context.Context, e *shadow.Explanation) (*adminv1.Deletion, error) {
	removals, _, err := a.inspector.Removals(ctx, shadow.RemovalQuery{Name: e.Name, UID: e.UID}, "", 1)
	if err != nil || len(removals) == 0 || removals[0].Cause == nil {
		return nil, err
	}
	found, err := a.progress.DeletionProgress(ctx, removals[0].Cause.ID)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return deletionProto(found[0]), nil
}

// deletionsShown is the number of running deletions in a status.
const deletionsShown = 20

func (a *admin) addDeletions(ctx context.Context, out *adminv1.StatusResponse) error {
	running, err := a.progress.RunningDeletions(ctx, deletionsShown)
	if err != nil {
		return err
	}
	for _, d := range running {
		out.Deletions = append(out.Deletions, deletionProto(d))
	}
	left, err := a.progress.DeletionsLeft(ctx)
	if err != nil {
		return err
	}
	out.DeletionsTotal = left.Running
	scheduled, total, err := a.scheduled.ListScheduled(ctx, deletionsShown)
	if err != nil {
		return err
	}
	out.ScheduledTotal = total
	for _, d := range scheduled {
		out.Scheduled = append(out.Scheduled, &adminv1.StatusResponse_ScheduledDeletion{
			Root: d.Root, Resources: d.Resources, DeleteTime: timestamppb.New(d.DeletedAt),
			PurgeTime: timestamppb.New(d.PurgeAt), Actor: d.Actor, Reason: d.Reason,
		})
	}
	return nil
}
