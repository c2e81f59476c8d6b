package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// owners reads owner references; relative names are of the deployment itself.
func owners(self schema.DeploymentID, in []*resourcev1.OwnerReference) ([]shadow.OwnerReference, error) {
	var out []shadow.OwnerReference
	for i, p := range in {
		field := fmt.Sprintf("owner_references[%d]", i)
		name, err := schema.ResolveName(self, p.GetName())
		if err != nil {
			return nil, invalid(field+".name", err)
		}
		if p.GetKind() == "" {
			return nil, invalid(field+".kind", errors.New("say of which kind the owner is"))
		}
		o := shadow.OwnerReference{
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

// prune leaves only what a read mask names (AIP-157): fields of the resource, labels.<key>, body.<field>... What
// identifies the resource is always there.
func prune(p *resourcev1.Resource, mask *fieldmaskpb.FieldMask) error {
	paths := mask.GetPaths()
	if p == nil || len(paths) == 0 || slices.Contains(paths, "*") {
		return nil
	}
	if err := shadow.CheckMask(paths); err != nil {
		return invalid("read_mask", err)
	}
	in := p.ProtoReflect()
	fields := in.Descriptor().Fields()
	keep := map[string]bool{"name": true, "kind": true, "uid": true}
	labels, body := map[string]string{}, map[string]*structpb.Value{}
	for _, path := range paths {
		field, rest, deeper := strings.Cut(path, ".")
		if fields.ByName(protoreflect.Name(field)) == nil || deeper && field != "labels" && field != "body" {
			return invalid("read_mask", fmt.Errorf("unknown field %q", path))
		}
		switch {
		case !deeper:
			keep[field] = true
		case field == "labels":
			if value, ok := p.GetLabels()[rest]; ok {
				labels[rest] = value
			}
		default:
			pick(p.GetBody().GetFields(), body, strings.Split(rest, "."))
		}
	}
	if !keep["labels"] {
		p.Labels = labels
	}
	if !keep["body"] {
		p.Body = nil
		if len(body) > 0 {
			p.Body = &structpb.Struct{Fields: body}
		}
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if name := string(f.Name()); !keep[name] && name != "labels" && name != "body" {
			in.Clear(f)
		}
	}
	return nil
}

// pick copies the field at a path.
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

func (r *resources) proto(in *shadow.Resource) (*resourcev1.Resource, error) {
	out := &resourcev1.Resource{
		Name: in.Name, Kind: in.Kind, Uid: in.UID.String(), Revision: int64(in.Revision), Generation: in.Generation, Labels: in.Labels,
		CreateTime: timestamppb.New(in.CreatedAt), UpdateTime: timestamppb.New(in.UpdatedAt), Deployment: r.store.Deployment().String(),
		BlockDeletion: in.BlockDeletion,
	}
	for _, o := range in.Owners {
		ref := &resourcev1.OwnerReference{
			Name: o.Owner.String(), Kind: o.Kind, Version: o.Version,
			Controller: o.Controller, RequiresOwnerReference: o.Requires, UnsetOnDelete: o.UnsetOnDelete,
		}
		if o.UID != uuid.Nil {
			ref.Uid = o.UID.String()
		}
		out.OwnerReferences = append(out.OwnerReferences, ref)
	}
	switch in.State {
	case shadow.Active:
		out.State = resourcev1.Resource_STATE_ACTIVE
	case shadow.Deleting:
		out.State = resourcev1.Resource_STATE_DELETING
	case shadow.Gone:
	}
	if in.Body == nil {
		return out, nil
	}
	var body map[string]any
	if err := json.Unmarshal(in.Body, &body); err != nil {
		return nil, fmt.Errorf("the stored body of %s: %w", in.Name, err)
	}
	var err error
	out.Body, err = structpb.NewStruct(body)
	return out, err
}
