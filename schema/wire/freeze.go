package wire

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// FreezeProto is the message of an atomic deletion in a question of its coordinator.
func FreezeProto(f *peer.Freeze) *schemav1.PlanDeletionRequest_Freeze {
	out := &schemav1.PlanDeletionRequest_Freeze{
		Epoch: f.Epoch[:], Deletion: f.Deletion[:], Root: f.Root,
		For: durationpb.New(f.For),
	}
	if f.ParticipantEpoch != uuid.Nil {
		out.ParticipantEpoch = f.ParticipantEpoch[:]
	}
	return out
}

// ScheduledProto are the messages of scheduled deletions.
func ScheduledProto(all []peer.Scheduled) (out []*schemav1.ConfirmBlockadesRequest_ScheduledDeletion) {
	for _, d := range all {
		out = append(out, &schemav1.ConfirmBlockadesRequest_ScheduledDeletion{
			Deletion: d.Deletion[:], DeleteTime: timestamppb.New(d.Deleted), PurgeTime: timestamppb.New(d.Purge),
		})
	}
	return out
}

// Scheduled reads the messages of a coordinator.
func Scheduled(all []*schemav1.ConfirmBlockadesRequest_ScheduledDeletion) (out []peer.Scheduled, err error) {
	for i, d := range all {
		s := peer.Scheduled{Deleted: d.GetDeleteTime().AsTime(), Purge: d.GetPurgeTime().AsTime()}
		if s.Deletion, err = UID(d.GetDeletion()); err != nil {
			return nil, fmt.Errorf("[%d].deletion: %w", i, err)
		}
		if d.GetDeleteTime().CheckValid() != nil || d.GetPurgeTime().CheckValid() != nil {
			return nil, fmt.Errorf("[%d]: want a delete_time and a purge_time", i)
		}
		out = append(out, s)
	}
	return out, nil
}

// Freeze reads the message of a coordinator.
func Freeze(coordinator schema.DeploymentID, f *schemav1.PlanDeletionRequest_Freeze) (out *peer.Freeze, err error) {
	out = &peer.Freeze{Coordinator: coordinator, Root: f.GetRoot(), For: f.GetFor().AsDuration()}
	if out.Epoch, err = UID(f.GetEpoch()); err != nil {
		return nil, fmt.Errorf("epoch: %w", err)
	}
	if out.Deletion, err = UID(f.GetDeletion()); err != nil {
		return nil, fmt.Errorf("deletion: %w", err)
	}
	if raw := f.GetParticipantEpoch(); len(raw) > 0 {
		if out.ParticipantEpoch, err = UID(raw); err != nil {
			return nil, fmt.Errorf("participant_epoch: %w", err)
		}
	}
	_, root := schema.ParseFullName(schema.FullName{Deployment: coordinator, Name: out.Root}.String())
	switch {
	case out.Deletion.Version() != 7:
		return nil, errors.New("deletion: want a UUID of version 7")
	case root != nil:
		return nil, fmt.Errorf("root: %w", root)
	case out.For <= 0:
		return nil, errors.New("for: want the time until the coordinator is asked")
	}
	return out, nil
}
