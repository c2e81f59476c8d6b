package service

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// keptReader counts the resources that only an earlier version has a kind or a pattern for.
type keptReader interface {
	Kept(ctx context.Context) ([]shadow.Kept, error)
}

// delegationCounter counts the rights of other deployments.
type delegationCounter interface {
	Delegations(ctx context.Context) ([]shadow.Delegations, error)
}

// rowCounter counts the deleted rows of attached tables that wait.
type rowCounter interface {
	Waiting(ctx context.Context) (waiting, incomplete int64, err error)
}

// processStatus lists the processes of a deployment.
type processStatus interface {
	Members(ctx context.Context) ([]peer.Member, error)
}

// databases has the identity of the deployment's database, the deployments that use another database than the
// known one, and the decommissioned deployments.
type databases interface {
	Database() uuid.UUID
	DatabaseMismatches() []shadow.DatabaseMismatch
	AcceptDatabase(ctx context.Context, d shadow.AcceptedDatabase) error
	Decommissioned(ctx context.Context) ([]shadow.Decommissioned, error)
}

// Status is put together from several transactions, so its parts can be of slightly different moments.
func (a *admin) Status(ctx context.Context, _ *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	out := &adminv1.StatusResponse{Deployment: a.self.String()}
	for _, add := range []func(context.Context, *adminv1.StatusResponse) error{
		a.addWork, a.addPauses, a.addDeletions, a.addKept, a.addDelegations, a.addAttached, a.addProcesses,
		a.addDatabase, a.addOperatorActions,
	} {
		if err := add(ctx, out); err != nil {
			return nil, outcome.Status(a.log, err)
		}
	}
	for _, n := range a.notReady() {
		out.NotReady = append(out.NotReady, &adminv1.StatusResponse_NotReady{Check: n.Check, Reason: n.Reason})
	}
	a.addFailures(out)
	a.addWatches(out)
	return out, nil
}

func (a *admin) addWork(ctx context.Context, out *adminv1.StatusResponse) error {
	version, generation, derivations, err := a.inspector.Status(ctx)
	if err != nil {
		return err
	}
	outstanding, err := a.administrator.Outstanding(ctx)
	if err != nil {
		return err
	}
	out.Version, out.Generation = version, generation
	now := time.Now()
	for _, o := range outstanding {
		out.Outstanding = append(out.Outstanding, &adminv1.StatusResponse_Outstanding{
			Group: o.Group, Deployment: o.Deployment, Count: o.Count,
			OldestTime: timestamppb.New(now.Add(-time.Duration(o.Oldest * float64(time.Second)))), Problem: o.Problem,
		})
	}
	for _, d := range derivations {
		out.Derivations = append(out.Derivations, &adminv1.StatusResponse_Derivation{
			Kind: d.Kind, Done: d.Done,
			Total: d.Total, SetAside: d.SetAside,
		})
	}
	return nil
}

func (a *admin) addKept(ctx context.Context, out *adminv1.StatusResponse) error {
	kept, err := a.kept.Kept(ctx)
	for _, k := range kept {
		out.Kept = append(out.Kept, &adminv1.StatusResponse_Kept{
			Kind: k.Kind, Resources: k.Resources,
			Sample: k.Sample,
		})
	}
	return err
}

func (a *admin) addDelegations(ctx context.Context, out *adminv1.StatusResponse) error {
	all, err := a.delegations.Delegations(ctx)
	for _, d := range all {
		out.Delegations = append(out.Delegations, &adminv1.StatusResponse_Delegations{
			Deployment: d.Deployment.String(),
			ActingHeld: d.ActingHeld, BlockHeld: d.BlockHeld,
		})
	}
	return err
}

func (a *admin) addAttached(ctx context.Context, out *adminv1.StatusResponse) error {
	waiting, incomplete, err := a.rows.Waiting(ctx)
	if waiting+incomplete > 0 {
		out.AttachedRows = &adminv1.StatusResponse_AttachedRows{Waiting: waiting, Incomplete: incomplete}
	}
	return err
}

func (a *admin) addProcesses(ctx context.Context, out *adminv1.StatusResponse) error {
	members, err := a.processes.Members(ctx)
	for _, m := range members {
		out.Processes = append(out.Processes, &adminv1.StatusResponse_Process{
			Name: m.Name, Shards: m.Shards, JoinTime: timestamppb.New(m.JoinedAt),
			ExpireTime: timestamppb.New(m.ExpiresAt),
		})
	}
	return err
}

func (a *admin) addDatabase(ctx context.Context, out *adminv1.StatusResponse) error {
	epoch, err := a.inspector.Epoch(ctx)
	if err != nil {
		return err
	}
	out.Epoch = &adminv1.StatusResponse_Epoch{
		Id: epoch.ID.String(), Ordinal: epoch.Ordinal, Since: timestamppb.New(epoch.Since),
		Unconfirmed: wire.DeploymentNames(epoch.Unconfirmed), AwaitingRegistry: epoch.Awaiting,
	}
	out.DanglingReferences = epoch.Dangling
	out.DatabaseTime, out.ProcessTime = timestamppb.New(epoch.Now), timestamppb.Now()
	out.Database = a.databases.Database().String()
	server, err := a.inspector.Server(ctx)
	if err != nil {
		return err
	}
	out.Postgresql = &adminv1.StatusResponse_PostgreSQL{
		Version: server.Version, SizeBytes: server.Size, Fsync: server.Fsync, FullPageWrites: server.FullPageWrites,
		// below max_connections
		Connections: int32(server.Connections), MaxConnections: int32(server.Most), Standbys: int32(server.Standbys),
		Archives: server.Archives, ArchivingFails: server.ArchiveFails,
		ArchivedTime: optionalTime(server.Archived), OldestTransactionTime: optionalTime(server.OldestTransaction),
		OldestPreparedTime: optionalTime(server.OldestPrepared),
	}
	return nil
}

func (a *admin) addOperatorActions(ctx context.Context, out *adminv1.StatusResponse) error {
	decommissioned, err := a.databases.Decommissioned(ctx)
	if err != nil {
		return err
	}
	for _, d := range decommissioned {
		out.Decommissioned = append(out.Decommissioned, decommissionedProto(d))
	}
	words, err := a.decisions.OperatorDecisions(ctx)
	for _, w := range words {
		out.Words = append(out.Words, &adminv1.Word{
			Deployment: w.Deployment.String(), What: w.What, Reason: w.Reason,
			SaidBy: w.By, SaidTime: timestamppb.New(w.At),
		})
	}
	return err
}

func (a *admin) addFailures(out *adminv1.StatusResponse) {
	for _, s := range a.databases.DatabaseMismatches() {
		out.Failures = append(out.Failures, &adminv1.Failure{
			Handler: "database", Deployment: s.Err.Deployment.String(),
			Error: s.Err.Error(), Time: timestamppb.New(s.At),
		})
	}
	for _, f := range a.failures() {
		out.Failures = append(out.Failures, &adminv1.Failure{
			Handler: f.Handler, Deployment: f.Deployment.String(), Error: f.Error, Time: timestamppb.New(f.Time),
			NextTime: optionalTime(f.Next),
		})
	}
}

func (a *admin) addWatches(out *adminv1.StatusResponse) {
	for _, w := range a.watches() {
		out.Watches = append(out.Watches, &adminv1.StatusResponse_Watch{
			Name: w.Name, Deployment: w.Deployment,
			Primed: w.Primed, HeardTime: optionalTime(w.Heard), Lost: w.Lost,
		})
	}
}
