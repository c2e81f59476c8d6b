package service

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// withBodies returns stored resources as messages, with the fields of their bodies that a mask names. They
// are encoded already where the answer will be: the messages have their bodies as unknown fields, which are
// sent as they are.
func withBodies(ctx context.Context, self schema.DeploymentID, in []peer.Resource,
	mask *fieldmaskpb.FieldMask,
) ([]*resourcev1.Resource, error) {
	bytes := int64(0)
	for i := range in {
		bytes += int64(len(in[i].Body)) + encodedCopies*budget.EncodedBytes(in[i].Body)
		if in[i].Status != nil {
			bytes += int64(len(in[i].Status)) + budget.DecodedBytes(in[i].Status)
		}
	}
	if err := budget.Convert(ctx, bytes); err != nil {
		return nil, err
	}
	out := make([]*resourcev1.Resource, len(in))
	for i := range in {
		p, err := withBody(self, &in[i], mask, identity.Received(ctx))
		if err != nil {
			return nil, err
		}
		out[i], in[i].Body, in[i].Status = p, nil, nil
	}
	return out, nil
}

// encodedCopies is the number of copies of an encoded body in memory: by itself, and in the answer.
const encodedCopies = 2

func withBody(self schema.DeploymentID, in *peer.Resource, mask *fieldmaskpb.FieldMask,
	encoded bool,
) (*resourcev1.Resource, error) {
	out, of := resourceProto(self, in), wire.PickedOf(mask.GetPaths())
	if err := setStatus(out, in); err != nil {
		return nil, fmt.Errorf("the stored status of %s: %s", in.Name, err.Error())
	}
	if in.Body == nil || of == nil {
		return out, nil
	}
	body, err := wire.Body(in.Body, of)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the stored body of %s: %s", in.Name, err.Error()) // no outage: not io.ErrUnexpectedEOF
	case encoded:
		out.ProtoReflect().SetUnknown(body)
		return out, nil
	}
	return out, proto.UnmarshalOptions{Merge: true}.Unmarshal(body, out)
}
