package service

import (
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// owners reads owner references. A relative name is the name of a resource of this deployment.
func owners(self schema.DeploymentID, in []*resourcev1.OwnerReference) ([]peer.OwnerReference, error) {
	var out []peer.OwnerReference
	for i, p := range in {
		field := fmt.Sprintf("owner_references[%d]", i)
		name, err := schema.ResolveName(self, p.GetName())
		if err != nil {
			return nil, outcome.Invalid(field+".name", err)
		}
		if p.GetKind() == "" {
			return nil, outcome.Invalid(field+".kind", errors.New("is missing: give the kind of the owner"))
		}
		o := peer.OwnerReference{
			Owner: name, Kind: p.GetKind(),
			Controller: p.GetController(), Requires: p.GetRequiresOwnerReference(), UnsetOnDelete: p.GetUnsetOnDelete(),
		}
		if o.UID, err = optionalUUID(field+".uid", p.GetUid()); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

var stateProto = map[peer.State]resourcev1.Resource_State{
	peer.Active:   resourcev1.Resource_STATE_ACTIVE,
	peer.Deleting: resourcev1.Resource_STATE_DELETING,
}

// resourceProto returns a message without a body; bodies adds it.
func resourceProto(self schema.DeploymentID, in *peer.Resource) *resourcev1.Resource {
	out := &resourcev1.Resource{
		Name: in.Name, Kind: in.Kind, Uid: optionalText(in.UID), Revision: int64(in.Revision),
		Generation: in.Generation, Labels: in.Labels,
		CreateTime: optionalTime(in.CreatedAt), UpdateTime: optionalTime(in.UpdatedAt), Deployment: self.String(),
		BlockDeletion: in.BlockDeletion, State: stateProto[in.State], Finalizers: in.Finalizers,
		DeleteTime: optionalTime(in.DeletedAt), PurgeTime: optionalTime(in.PurgeAt),
	}
	for _, o := range in.Owners {
		out.OwnerReferences = append(out.OwnerReferences, &resourcev1.OwnerReference{
			Name: o.Owner.String(), Kind: o.Kind, Uid: optionalText(o.UID), Version: o.Version,
			Controller: o.Controller, RequiresOwnerReference: o.Requires, UnsetOnDelete: o.UnsetOnDelete,
		})
	}
	return out
}
