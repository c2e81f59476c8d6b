package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// NotReady is a check of readiness that fails.
type NotReady struct {
	Check  string
	Reason string
}

// Failure is the last failure of a handler for a deployment.
type Failure struct {
	Handler    string
	Deployment schema.DeploymentID
	Error      string
	Time       time.Time
	Next       time.Time // of the next try, which may be earlier; zero: unknown
}

// Watch is a watch of the process.
type Watch struct {
	Name       string
	Deployment string // that sends it
	Primed     bool
	Heard      time.Time // zero before its first message
	Lost       int64
}

// administrator decommissions other deployments, and counts the outstanding work.
type administrator interface {
	Decommission(ctx context.Context, d shadow.Decommissioned) error
	PlanDecommission(ctx context.Context, of schema.DeploymentID,
		blocking schema.Behaviour) (shadow.DecommissionPlan, error)
	Outstanding(ctx context.Context) ([]shadow.Outstanding, error)
}

// operatorDecisions pauses deletions and waives comparisons, and finds what waits for a decision.
type operatorDecisions interface {
	Pause(ctx context.Context, of schema.DeploymentID, handler schema.Handler, paused bool, reason, by string) error
	Pauses(ctx context.Context) ([]shadow.Pause, error)
	Stuck(ctx context.Context, longer time.Duration, token string, limit int) (shadow.StuckPage, error)
	WaiveComparison(ctx context.Context, of schema.DeploymentID, reason, by string) error
	OperatorDecisions(ctx context.Context) ([]shadow.OperatorDecision, error)
}

// inspector explains resources and removals. It has the version that the deployment runs, and the epoch and
// the server of its database.
type inspector interface {
	Explain(ctx context.Context, name string) (*shadow.Explanation, error)
	Removals(ctx context.Context, q shadow.RemovalQuery, token string,
		limit int) (found []shadow.Removal, next string, err error)
	Status(ctx context.Context) (version string, generation int64, derivations []shadow.Derivation, err error)
	Epoch(ctx context.Context) (shadow.EpochStatus, error)
	Server(ctx context.Context) (shadow.ServerStatus, error)
}

// referenceVerifier compares this deployment with the others.
type referenceVerifier interface {
	Verify(ctx context.Context, how shadow.Verification) (shadow.Verified, error)
}

// progressReader reads the progress of deletions.
type progressReader interface {
	DeletionProgress(ctx context.Context, id uuid.UUID) ([]shadow.DeletionProgress, error)
	RunningDeletions(ctx context.Context, limit int) ([]shadow.DeletionProgress, error)
	ListDeletions(ctx context.Context, token string,
		limit int) (found []shadow.DeletionProgress, next string, err error)
	EndedDeletions(ctx context.Context, token string,
		limit int) (found []shadow.DeletionProgress, next string, err error)
	DeletionsLeft(ctx context.Context) (shadow.DeletionsLeft, error)
}

// scheduledReader reads the deletions that are decided later.
type scheduledReader interface {
	ListScheduled(ctx context.Context, limit int) (found []shadow.ScheduledDeletion, total int64, err error)
}

// admin is the AdminService of one deployment.
type admin struct {
	adminv1.UnimplementedAdminServiceServer
	self schema.DeploymentID

	administrator administrator
	databases     databases
	decisions     operatorDecisions
	delegations   delegationCounter
	inspector     inspector
	kept          keptReader
	processes     processStatus
	progress      progressReader
	scheduled     scheduledReader
	purger        purger
	releaser      releaser
	rows          rowCounter
	verifier      referenceVerifier

	notReady func() []NotReady
	failures func() []Failure
	watches  func() []Watch
	log      *zap.Logger
}

func newAdmin(cfg Config) *admin {
	notReady := cfg.Process.NotReady
	if notReady == nil {
		notReady = func() []NotReady { return nil }
	}
	failures := cfg.Process.Failures
	if failures == nil {
		failures = func() []Failure { return nil }
	}
	watches := cfg.Process.Watches
	if watches == nil {
		watches = func() []Watch { return nil }
	}
	store := cfg.Store
	return &admin{
		self: store.Deployment(), administrator: store.Admin, databases: store.Gate, decisions: store.Operate,
		delegations: store.Targets,
		inspector:   store.Operate, kept: store.Read, processes: store, progress: store.Progress,
		scheduled: store.Deletions, purger: store.Operate, releaser: store.Operate, rows: store.DeletedRows,
		verifier: store.Verify,
		notReady: notReady, failures: failures, watches: watches, log: cfg.Logger,
	}
}

func (a *admin) Explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	out, err := a.explain(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	name, err := ownName(a.self, req.GetName())
	if err != nil {
		return nil, err
	}
	e, err := a.inspector.Explain(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &adminv1.ExplainResponse{
		Name: schema.FullName{Deployment: a.self, Name: e.Name}.String(), Kind: e.Kind, Uid: optionalText(e.UID),
		Pending: e.Pending,
		State:   stateNames[e.State], UpdateTime: timestamppb.New(e.UpdatedAt),
		WaitsFor: wire.DeploymentNames(e.WaitsFor),
	}
	if e.State == peer.Deleting {
		if out.Deletion, err = a.deletionOf(ctx, e); err != nil {
			return nil, err
		}
	}
	failures := a.failures()
	for _, r := range e.Reasons {
		out.Reasons = append(out.Reasons, reasonProto(r, failures))
	}
	paused, err := a.pausedReasons(ctx, e)
	out.Reasons = append(out.Reasons, paused...)
	return out, err
}

// pausedReasons are the pauses that keep a resource waiting: pauses of the whole deployment, and pauses for
// the deployments of its work.
func (a *admin) pausedReasons(ctx context.Context, e *shadow.Explanation) (out []*adminv1.ExplainResponse_Reason,
	err error,
) {
	if e.State != peer.Deleting && !e.Pending {
		return nil, nil
	}
	pauses, err := a.decisions.Pauses(ctx)
	for _, p := range pauses {
		work := func(r shadow.ExplainedReason) bool { return r.Deployment == p.Of }
		if p.Of != a.self && !slices.ContainsFunc(e.Reasons, work) {
			continue
		}
		what := "deletions"
		if p.Handler != "" {
			what = p.Handler.Text()
		}
		if p.Of != a.self {
			what += " for " + p.Of.String()
		}
		out = append(out, &adminv1.ExplainResponse_Reason{
			Type: "PAUSED", Message: fmt.Sprintf("%s has paused %s here: %s", p.By, what, p.Reason),
			Since: timestamppb.New(p.At),
		})
	}
	return out, err
}

// reasonProto adds to a reason without an error the last failure of a handler for its deployment.
func reasonProto(r shadow.ExplainedReason, failures []Failure) *adminv1.ExplainResponse_Reason {
	last := cmp.Or(r.Error, failureOf(failures, r.Type, r.Deployment.String()).Error)
	return &adminv1.ExplainResponse_Reason{
		Type: r.Type, Message: r.Message, LastError: last,
		Since: optionalTime(r.Since),
	}
}

// optionalText returns the text of a uid, none for the zero uid.
func optionalText(uid uuid.UUID) string {
	if uid == uuid.Nil {
		return ""
	}
	return uid.String()
}

func (a *admin) Decommission(ctx context.Context,
	req *adminv1.DecommissionRequest,
) (*adminv1.DecommissionResponse, error) {
	out, err := a.decommission(ctx, req)
	return out, outcome.Status(a.log, err)
}

func (a *admin) decommission(ctx context.Context,
	req *adminv1.DecommissionRequest,
) (*adminv1.DecommissionResponse, error) {
	id, by, err := operatorAction(ctx, req.GetDeployment())
	if err != nil {
		return nil, err
	}
	blocking, err := schema.ParseBehaviour(cmp.Or(req.GetBlocking(), schema.Unset.String()))
	if err != nil {
		return nil, outcome.Invalid("blocking", err)
	}
	if req.GetValidateOnly() {
		p, err := a.administrator.PlanDecommission(ctx, id, blocking)
		return &adminv1.DecommissionResponse{Plan: &adminv1.DecommissionResponse_Plan{
			Deleted: p.Deleted,
			Unset:   p.Unset, Dangling: p.Dangling, Owned: p.Owned, Released: p.Released,
		}}, err
	}
	if err := a.administrator.Decommission(ctx, shadow.Decommissioned{
		Deployment: id, Blocking: blocking,
		Reason: req.GetReason(), By: by,
	}); err != nil {
		return nil, err
	}
	all, err := a.databases.Decommissioned(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(d shadow.Decommissioned) bool { return d.Deployment == id })
	if i < 0 {
		return nil, fmt.Errorf("%s was decommissioned, and is not in the list of decommissioned deployments", id)
	}
	return &adminv1.DecommissionResponse{Decommissioned: decommissionedProto(all[i])}, nil
}

func (a *admin) AcceptDatabase(ctx context.Context,
	req *adminv1.AcceptDatabaseRequest,
) (*adminv1.AcceptDatabaseResponse, error) {
	return &adminv1.AcceptDatabaseResponse{}, outcome.Status(a.log, a.acceptDatabase(ctx, req))
}

func (a *admin) acceptDatabase(ctx context.Context, req *adminv1.AcceptDatabaseRequest) error {
	id, by, err := operatorAction(ctx, req.GetDeployment())
	if err != nil {
		return err
	}
	database, err := uuid.Parse(req.GetDatabase())
	if err != nil {
		return outcome.Invalid("database", err)
	}
	epoch, err := uuid.Parse(req.GetEpoch())
	if err != nil {
		return outcome.Invalid("epoch", err)
	}
	if _, err := epochOf(epoch[:]); err != nil {
		return err
	}
	return a.databases.AcceptDatabase(ctx, shadow.AcceptedDatabase{
		Deployment: id, Database: database, Epoch: epoch,
		Reason: req.GetReason(), By: by,
	})
}

func (a *admin) WaiveComparison(ctx context.Context,
	req *adminv1.WaiveComparisonRequest,
) (*adminv1.WaiveComparisonResponse, error) {
	id, by, err := operatorAction(ctx, req.GetDeployment())
	if err == nil {
		err = a.decisions.WaiveComparison(ctx, id, req.GetReason(), by)
	}
	return &adminv1.WaiveComparisonResponse{}, outcome.Status(a.log, err)
}

// operatorAction returns the deployment that an action is about, and the operator who calls it.
func operatorAction(ctx context.Context, deployment string) (schema.DeploymentID, string, error) {
	id, err := schema.ParseDeploymentID(deployment)
	if err != nil {
		return id, "", outcome.Invalid("deployment", err)
	}
	by, err := identity.CallerFromContext(ctx)
	if err != nil {
		return id, "", status.Error(codes.Unauthenticated, err.Error())
	}
	return id, by.Audited(), nil
}

func decommissionedProto(d shadow.Decommissioned) *adminv1.Decommissioned {
	return &adminv1.Decommissioned{
		Deployment: d.Deployment.String(), Blocking: d.Blocking.String(), Reason: d.Reason, SaidBy: d.By,
		SaidTime: timestamppb.New(d.At), Working: d.Working,
	}
}
