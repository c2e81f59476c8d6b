package service

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
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

// prune removes the fields that a read mask does not name (AIP-157): fields of the resource, labels.<key>, body.<field>...
// The fields that identify the resource stay.
func prune(p *resourcev1.Resource, mask *fieldmaskpb.FieldMask) error {
	paths := mask.GetPaths()
	if p == nil || len(paths) == 0 || slices.Contains(paths, "*") {
		return nil
	}
	if err := checkMask(mask); err != nil {
		return err
	}
	in := p.ProtoReflect()
	fields := in.Descriptor().Fields()
	keep := keptFields{whole: map[string]bool{"name": true, "kind": true, "uid": true}, labels: map[string]string{}, body: map[string]*structpb.Value{}}
	for _, path := range paths {
		if err := keep.add(p, fields, path); err != nil {
			return outcome.Invalid("read_mask", err)
		}
	}
	for i := range fields.Len() {
		if f := fields.Get(i); !keep.whole[string(f.Name())] {
			in.Clear(f)
		}
	}
	if !keep.whole["labels"] {
		p.Labels = keep.labels
	}
	if !keep.whole["body"] && len(keep.body) > 0 {
		p.Body = &structpb.Struct{Fields: keep.body}
	}
	return nil
}

// checkMask refuses a read mask that is too long, before it is looked at.
func checkMask(mask *fieldmaskpb.FieldMask) error {
	if slices.Contains(mask.GetPaths(), "*") {
		return nil
	}
	if err := shadow.CheckMask(mask.GetPaths()); err != nil {
		return outcome.Invalid("read_mask", err)
	}
	return nil
}

// keptFields are the fields that a read mask names: whole fields of the resource, and single labels and fields of the body.
type keptFields struct {
	whole  map[string]bool
	labels map[string]string
	body   map[string]*structpb.Value
}

func (k *keptFields) add(p *resourcev1.Resource, fields protoreflect.FieldDescriptors, path string) error {
	field, rest, nested := strings.Cut(path, ".")
	if fields.ByName(protoreflect.Name(field)) == nil || nested && field != "labels" && field != "body" {
		return fmt.Errorf("unknown field %q", path)
	}
	switch {
	case !nested:
		k.whole[field] = true
	case field == "labels":
		if value, ok := p.GetLabels()[rest]; ok {
			k.labels[rest] = value
		}
	default:
		pick(p.GetBody().GetFields(), k.body, strings.Split(rest, "."))
	}
	return nil
}

// pick copies the value at a path from one message to another.
func pick(from, to map[string]*structpb.Value, path []string) {
	value, ok := from[path[0]]
	if !ok {
		return
	}
	if len(path) == 1 {
		to[path[0]] = value
		return
	}
	below := value.GetStructValue()
	if below == nil {
		return
	}
	into := to[path[0]].GetStructValue()
	if into == nil {
		into = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		to[path[0]] = structpb.NewStructValue(into)
	}
	pick(below.GetFields(), into.GetFields(), path[1:])
}

var stateProto = map[peer.State]resourcev1.Resource_State{
	peer.Active:   resourcev1.Resource_STATE_ACTIVE,
	peer.Deleting: resourcev1.Resource_STATE_DELETING,
}

// resourceProto returns a message without a body; bodies adds it.
func resourceProto(self schema.DeploymentID, in *peer.Resource) *resourcev1.Resource {
	out := &resourcev1.Resource{
		Name: in.Name, Kind: in.Kind, Uid: in.UID.String(), Revision: int64(in.Revision), Generation: in.Generation, Labels: in.Labels,
		CreateTime: timestamppb.New(in.CreatedAt), UpdateTime: timestamppb.New(in.UpdatedAt), Deployment: self.String(),
		BlockDeletion: in.BlockDeletion, State: stateProto[in.State], Finalizers: in.Finalizers,
	}
	for _, o := range in.Owners {
		out.OwnerReferences = append(out.OwnerReferences, &resourcev1.OwnerReference{
			Name: o.Owner.String(), Kind: o.Kind, Uid: optionalText(o.UID), Version: o.Version,
			Controller: o.Controller, RequiresOwnerReference: o.Requires, UnsetOnDelete: o.UnsetOnDelete,
		})
	}
	return out
}
