package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Failure is the last one of a handler for a deployment.
type Failure struct {
	Handler    string
	Deployment schema.DeploymentID
	Error      string
	Time       time.Time
}

// admin is the AdminService of one deployment.
type admin struct {
	adminv1.UnimplementedAdminServiceServer
	resources *resources
	store     *shadow.Store
	failures  func() []Failure
	log       *zap.Logger
}

func (a *admin) Status(ctx context.Context, _ *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	version, generation, derivations, err := a.store.Status(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	outstanding, err := a.store.Outstanding(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	out := &adminv1.StatusResponse{Deployment: a.store.Deployment().String(), Version: version, Generation: generation}
	now := time.Now()
	for _, o := range outstanding {
		out.Outstanding = append(out.Outstanding, &adminv1.StatusResponse_Outstanding{
			Group: o.Group, Deployment: o.Deployment, Count: o.Count, OldestTime: timestamppb.New(now.Add(-time.Duration(o.Oldest * float64(time.Second)))),
		})
	}
	for _, d := range derivations {
		out.Derivations = append(out.Derivations, &adminv1.StatusResponse_Derivation{Kind: d.Kind, Done: d.Done, Total: d.Total, SetAside: d.SetAside})
	}
	kept, err := a.store.Kept(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	for _, k := range kept {
		out.Kept = append(out.Kept, &adminv1.StatusResponse_Kept{Kind: k.Kind, Resources: k.Resources, Sample: k.Sample})
	}
	members, err := a.store.Members(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	for _, m := range members {
		out.Processes = append(out.Processes, &adminv1.StatusResponse_Process{
			Name: m.Name, Shards: m.Shards, JoinTime: timestamppb.New(m.JoinedAt), ExpireTime: timestamppb.New(m.ExpiresAt),
		})
	}
	epoch, err := a.store.Epoch(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	out.Epoch = &adminv1.StatusResponse_Epoch{
		Id: epoch.ID.String(), Ordinal: epoch.Ordinal, Since: timestamppb.New(epoch.Since), Unconfirmed: deploymentNames(epoch.Unconfirmed), AwaitingRegistry: epoch.Awaiting,
	}
	out.DanglingReferences = epoch.Dangling
	gone, err := a.store.Decommissioned(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	for _, d := range gone {
		out.Decommissioned = append(out.Decommissioned, decommissionedProto(d))
	}
	out.Database = a.store.Database().String()
	words, err := a.store.Words(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	for _, w := range words {
		out.Words = append(out.Words, &adminv1.Word{Deployment: w.Deployment.String(), What: w.What, Reason: w.Reason, SaidBy: w.By, SaidTime: timestamppb.New(w.At)})
	}
	for _, s := range a.store.Strangers() {
		out.Failures = append(out.Failures, &adminv1.Failure{Handler: "database", Deployment: s.Err.Deployment.String(), Error: s.Err.Error(), Time: timestamppb.New(s.At)})
	}
	for _, f := range a.failures() {
		out.Failures = append(out.Failures, &adminv1.Failure{Handler: f.Handler, Deployment: f.Deployment.String(), Error: f.Error, Time: timestamppb.New(f.Time)})
	}
	return out, nil
}

func (a *admin) Explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	name, err := a.resources.ownName(req.GetName())
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	e, err := a.store.Explain(ctx, name)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	out := &adminv1.ExplainResponse{
		Name: schema.FullName{Deployment: a.store.Deployment(), Name: e.Name}.String(), Kind: e.Kind, Pending: e.Pending,
		State: map[shadow.State]string{shadow.Active: "ACTIVE", shadow.Deleting: "DELETING"}[e.State], UpdateTime: timestamppb.New(e.UpdatedAt),
	}
	if e.UID != uuid.Nil {
		out.Uid = e.UID.String()
	}
	failures := a.failures()
	for _, r := range e.Reasons {
		reason := &adminv1.ExplainResponse_Reason{Type: r.Type, Message: r.Message, LastError: r.Error}
		if !r.Since.IsZero() {
			reason.Since = timestamppb.New(r.Since)
		}
		for _, f := range failures {
			if reason.GetLastError() == "" && f.Deployment == r.Deployment {
				reason.LastError = f.Error
			}
		}
		out.Reasons = append(out.Reasons, reason)
	}
	return out, nil
}

func (a *admin) Decommission(ctx context.Context, req *adminv1.DecommissionRequest) (*adminv1.DecommissionResponse, error) {
	id, err := schema.ParseDeploymentID(req.GetDeployment())
	if err != nil {
		return nil, toStatus(a.log, &shadow.InvalidError{Resource: "deployment", Err: err})
	}
	blocking, err := schema.ParseBehaviour(cmp.Or(req.GetBlocking(), schema.Unset.String()))
	if err != nil {
		return nil, toStatus(a.log, &shadow.InvalidError{Resource: "blocking", Err: err})
	}
	by, err := identity.FromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if err := a.store.Decommission(ctx, shadow.Decommissioned{Deployment: id, Blocking: blocking, Reason: req.GetReason(), By: by.String()}); err != nil {
		return nil, toStatus(a.log, err)
	}
	all, err := a.store.Decommissioned(ctx)
	if err != nil {
		return nil, toStatus(a.log, err)
	}
	for _, d := range all {
		if d.Deployment == id {
			return &adminv1.DecommissionResponse{Decommissioned: decommissionedProto(d)}, nil
		}
	}
	return nil, toStatus(a.log, errors.New("what was said is not there"))
}

func (a *admin) AcceptDatabase(ctx context.Context, req *adminv1.AcceptDatabaseRequest) (*adminv1.AcceptDatabaseResponse, error) {
	id, by, err := a.wordOf(ctx, req.GetDeployment())
	if err != nil {
		return nil, err
	}
	database, err := uuid.Parse(req.GetDatabase())
	if err != nil {
		return nil, toStatus(a.log, &shadow.InvalidError{Resource: "database", Err: err})
	}
	epoch, err := uuid.Parse(req.GetEpoch())
	if err == nil {
		_, err = epochOf(epoch[:])
	}
	if err != nil {
		return nil, toStatus(a.log, &shadow.InvalidError{Resource: "epoch", Err: err})
	}
	err = a.store.AcceptDatabase(ctx, shadow.AcceptedDatabase{Deployment: id, Database: database, Epoch: epoch, Reason: req.GetReason(), By: by})
	return &adminv1.AcceptDatabaseResponse{}, toStatus(a.log, err)
}

func (a *admin) WaiveComparison(ctx context.Context, req *adminv1.WaiveComparisonRequest) (*adminv1.WaiveComparisonResponse, error) {
	id, by, err := a.wordOf(ctx, req.GetDeployment())
	if err != nil {
		return nil, err
	}
	return &adminv1.WaiveComparisonResponse{}, toStatus(a.log, a.store.WaiveComparison(ctx, id, req.GetReason(), by))
}

// wordOf reads of which deployment somebody says something, and who.
func (a *admin) wordOf(ctx context.Context, deployment string) (schema.DeploymentID, string, error) {
	id, err := schema.ParseDeploymentID(deployment)
	if err != nil {
		return id, "", toStatus(a.log, &shadow.InvalidError{Resource: "deployment", Err: err})
	}
	by, err := identity.FromContext(ctx)
	if err != nil {
		return id, "", status.Error(codes.Unauthenticated, err.Error())
	}
	return id, by.String(), nil
}

func decommissionedProto(d shadow.Decommissioned) *adminv1.Decommissioned {
	return &adminv1.Decommissioned{
		Deployment: d.Deployment.String(), Blocking: d.Blocking.String(), Reason: d.Reason, SaidBy: d.By, SaidTime: timestamppb.New(d.At), Working: d.Working,
	}
}
