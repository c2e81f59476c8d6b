// Package wire converts the types of packages schema and schema/peer to protobuf messages and back. It checks
// uids, behaviours, paths and causes; schema.Check and Environment.Check check descriptors and environments.
package wire

import (
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// UID parses 16 bytes.
func UID(b []byte) (uuid.UUID, error) {
	id, err := uuid.FromBytes(b)
	if err != nil {
		return uuid.Nil, fmt.Errorf("a uid has 16 bytes, got %d", len(b))
	}
	return id, nil
}

// OptionalUID parses 16 bytes, or none for the zero uid.
func OptionalUID(b []byte) (uuid.UUID, error) {
	if len(b) == 0 {
		return uuid.Nil, nil
	}
	return UID(b)
}

// UIDs parses a list of uids.
func UIDs(list [][]byte) ([]uuid.UUID, error) {
	out := make([]uuid.UUID, len(list))
	for i, b := range list {
		id, err := UID(b)
		if err != nil {
			return nil, err
		}
		out[i] = id
	}
	return out, nil
}

// Bytes returns the bytes of uids.
func Bytes(ids []uuid.UUID) [][]byte {
	out := make([][]byte, len(ids))
	for i := range ids {
		out[i] = ids[i][:]
	}
	return out
}

// Behaviour converts a behaviour, which has the same number.
func Behaviour(b schemav1.Behaviour) (schema.Behaviour, error) {
	if out := schema.Behaviour(b); out.Valid() {
		return out, nil
	}
	return 0, fmt.Errorf("unknown behaviour %d", b)
}

// Descriptor converts a service descriptor. schema.Check validates it.
func Descriptor(d *schemav1.ServiceDescriptor) *schema.Descriptor {
	at := schema.ServiceVersion{Service: d.GetService(), Version: d.GetVersion()}
	out := &schema.Descriptor{
		ServiceVersion: at, PatternsDropped: d.GetPatternsDropped(),
		Pos: schema.Pos{Path: at.String()},
	}
	for _, imp := range d.GetImports() {
		v := schema.ServiceVersion{Service: imp.GetService(), Version: imp.GetVersion()}
		out.Imports = append(out.Imports, schema.Import{
			ServiceVersion: v,
			Pos:            schema.Pos{Path: at.String() + ".imports[" + v.String() + "]"},
		})
	}
	for _, k := range d.GetKinds() {
		path := at.String() + ".kinds[" + k.GetKind() + "]"
		kind := schema.Kind{
			Name: k.GetKind(), PreviousName: k.GetPreviousName(), Patterns: k.GetPatterns(),
			HideWhileDeleting: k.GetHideWhileDeleting(), ConstraintsDisabled: k.GetConstraintsDisabled(),
			ReferableBy:    k.GetReferableBy(),
			DelegationNone: k.GetDelegationNone(), DeletesAtomically: k.GetDeletesAtomically(),
			Retention: k.GetRetention().AsDuration(), Key: k.GetKey(), Gone: k.GetGone(), Pos: schema.Pos{Path: path},
		}
		if s := k.GetSchema(); s != nil {
			kind.Schema = s.AsMap()
		}
		for _, f := range k.GetFields() {
			kind.Fields = append(kind.Fields, schema.Field{
				Path: f.GetPath(), Default: f.GetDefault().AsInterface(), Required: f.GetRequired(),
				Immutable: f.GetImmutable(),
				Pos:       schema.Pos{Path: path + ".fields[" + f.GetPath() + "]"},
			})
		}
		for _, f := range k.GetFinalizers() {
			kind.Finalizers = append(kind.Finalizers, schema.Finalizer{
				Name: f.GetName(), Holder: f.GetHolder(),
				Pos: schema.Pos{Path: path + ".finalizers[" + f.GetName() + "]"},
			})
		}
		if table := k.GetTable(); table != "" {
			kind.Table, _ = schema.ParseTableName(table) // Check reports a key without a table
		}
		for _, p := range k.GetParents() {
			kind.Parents = append(kind.Parents, schema.Parent{
				Kind: p.GetKind(), Behaviour: schema.Behaviour(p.GetBehaviour()), UntilRemoved: p.GetUntilRemoved(),
				Region: p.GetRegion(), RegionField: p.GetRegionField(),
				Pos: schema.Pos{Path: path + ".parents[" + p.GetKind() + "]"},
			})
		}
		for _, r := range k.GetReferences() {
			kind.References = append(kind.References, schema.Reference{
				Path: r.GetPath(), Targets: r.GetTargets(), Behaviour: schema.Behaviour(r.GetBehaviour()),
				UntilRemoved: r.GetUntilRemoved(),
				Columns:      r.GetColumns(), Region: schema.TargetRegion{
					Fixed:  r.GetRegion(),
					Column: r.GetRegionColumn(),
					Same:   r.GetSameRegion(),
				},
				Enforce: schema.Enforcement(r.GetEnforce()), Missing: schema.Missing(r.GetMissing()), None: r.GetNone(),
				When: schema.RowCondition{Column: r.GetWhenColumn(), Value: r.GetWhenValue()}, Unset: r.GetUnset(),
				UnsetToDefault: r.GetUnsetToDefault(), MatchFull: r.GetMatchFull(),
			})
			last := &kind.References[len(kind.References)-1]
			last.Pos = schema.Pos{Path: path + ".references[" + last.Field() + "]"}
		}
		out.Kinds = append(out.Kinds, kind)
	}
	return out
}

// DescriptorProto converts a service descriptor to its message.
func DescriptorProto(d *schema.Descriptor) *schemav1.ServiceDescriptor {
	out := &schemav1.ServiceDescriptor{Service: d.Service, Version: d.Version, PatternsDropped: d.PatternsDropped}
	for _, imp := range d.Imports {
		out.Imports = append(out.Imports, &schemav1.ServiceVersion{Service: imp.Service, Version: imp.Version})
	}
	for _, k := range d.Kinds {
		kind := &schemav1.KindDescriptor{
			Kind: k.Name, PreviousName: k.PreviousName, Patterns: k.Patterns,
			HideWhileDeleting: k.HideWhileDeleting, ConstraintsDisabled: k.ConstraintsDisabled,
			ReferableBy:    k.ReferableBy,
			DelegationNone: k.DelegationNone, DeletesAtomically: k.DeletesAtomically, Key: k.Key, Gone: k.Gone,
		}
		if k.Table != (schema.TableName{}) {
			kind.Table = k.Table.String()
		}
		if k.Retention > 0 {
			kind.Retention = durationpb.New(k.Retention)
		}
		if k.Schema != nil {
			kind.Schema, _ = structpb.NewStruct(k.Schema) // JSON values have no error
		}
		for _, f := range k.Fields {
			kind.Fields = append(kind.Fields, fieldProto(f))
		}
		for _, f := range k.Finalizers {
			kind.Finalizers = append(kind.Finalizers, &schemav1.FinalizerDescriptor{Name: f.Name, Holder: f.Holder})
		}
		for _, p := range k.Parents {
			kind.Parents = append(kind.Parents, &schemav1.ParentDescriptor{
				Kind:      p.Kind,
				Behaviour: schemav1.Behaviour(p.Behaviour), UntilRemoved: p.UntilRemoved, Region: p.Region,
				RegionField: p.RegionField,
			})
		}
		for _, r := range k.References {
			kind.References = append(kind.References, &schemav1.ReferenceDescriptor{
				Path: r.Path, Targets: r.Targets, Behaviour: schemav1.Behaviour(r.Behaviour),
				UntilRemoved: r.UntilRemoved,
				Columns:      r.Columns, Region: r.Region.Fixed, RegionColumn: r.Region.Column,
				SameRegion: r.Region.Same,
				Enforce:    string(r.Enforce), Missing: string(r.Missing), None: r.None,
				WhenColumn: r.When.Column, WhenValue: r.When.Value, Unset: r.Unset, UnsetToDefault: r.UnsetToDefault,
				MatchFull: r.MatchFull,
			})
		}
		out.Kinds = append(out.Kinds, kind)
	}
	return out
}

func fieldProto(f schema.Field) *schemav1.FieldDescriptor {
	out := &schemav1.FieldDescriptor{Path: f.Path, Required: f.Required, Immutable: f.Immutable}
	if f.Default != nil {
		out.Default, _ = structpb.NewValue(f.Default) // JSON values have no error
	}
	return out
}

// Deployment converts a deployment.
func Deployment(d *registryv1.Deployment) schema.Deployment {
	id := schema.DeploymentID{Service: d.GetService(), Region: d.GetRegion()}
	return schema.Deployment{
		DeploymentID: id, Address: d.GetAddress(), Version: d.GetVersion(), Generation: d.GetGeneration(),
		Disabled: d.GetDisabled(), Database: database(d.GetDatabase()),
		Pos: schema.Pos{Path: "deployments[" + id.String() + "]"},
	}
}

// DeploymentProto converts a deployment to its message.
func DeploymentProto(d schema.Deployment) *registryv1.Deployment {
	out := &registryv1.Deployment{
		Service: d.Service, Region: d.Region, Address: d.Address, Version: d.Version,
		Generation: d.Generation, Disabled: d.Disabled,
	}
	if d.Database != uuid.Nil {
		out.Database = d.Database.String()
	}
	return out
}

// database returns the identity of a database; uuid.Nil for none, and for text that is no identity.
func database(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil
	}
	return id
}

// Environment converts an environment.
func Environment(e *registryv1.Environment) *schema.Environment {
	out := &schema.Environment{Revision: e.GetRevision(), History: e.GetHistory(), Rights: Rights(e.GetRights())}
	for _, r := range e.GetRegions() {
		out.Regions = append(out.Regions, r.GetName())
	}
	for _, d := range e.GetServices() {
		out.Services = append(out.Services, Descriptor(d))
	}
	for _, d := range e.GetDeployments() {
		out.Deployments = append(out.Deployments, Deployment(d))
	}
	return out
}

// EnvironmentProto converts an environment to its message.
func EnvironmentProto(e *schema.Environment) *registryv1.Environment {
	out := &registryv1.Environment{Revision: e.Revision, History: e.History, Rights: RightsProto(e.Rights)}
	for _, r := range e.Regions {
		out.Regions = append(out.Regions, &registryv1.Region{Name: r})
	}
	for _, d := range e.Services {
		out.Services = append(out.Services, DescriptorProto(d))
	}
	for _, d := range e.Deployments {
		out.Deployments = append(out.Deployments, DeploymentProto(d))
	}
	return out
}
