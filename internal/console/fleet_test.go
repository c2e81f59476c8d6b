package console

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// fleet is Deployments without processes: the test sets the answers of each deployment.
type fleet struct {
	asked atomic.Int64

	mu    sync.Mutex
	env   *schema.Environment
	at    map[schema.DeploymentID]*answers
	fails error // of the environment
	did   []string
}

// answers of one deployment.
type answers struct {
	adminv1.AdminServiceClient
	resourcev1.ResourceServiceClient

	id        schema.DeploymentID
	fleet     *fleet
	dark      bool
	refuses   error         // Status; nil: nothing
	slow      chan struct{} // closed when it answers; nil: at once
	status    *adminv1.StatusResponse
	stuck     *adminv1.ListStuckResponse
	deletions []*adminv1.Deletion
}

const (
	root   = "//iam.example.com/us-west2/projects/acme"
	holder = "//devices.example.com/eastus2/fleets/north"

	endedID = "01a226b2-9991-7465-a0a7-6dce752cb2da"
)

// described are the services of a fleet that have kinds.
const described = `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
    references: [{ path: account, targets: [ServiceAccount], behaviour: UNSET }]
  - kind: ServiceAccount
    patterns: ["projects/{project}/serviceAccounts/{account}"]
    parents: [{ kind: Project, behaviour: CASCADE_DELETE }]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Fleet
    patterns: ["fleets/{fleet}"]
    references: [{ path: project, targets: [iam.example.com/Project], behaviour: BLOCK }]
  - kind: Device
    patterns: ["fleets/{fleet}/devices/{device}"]
    parents: [{ kind: Fleet, behaviour: CASCADE_DELETE }]
`

// newFleet has deployments of services in regions: two of each name the services of the project's examples.
func newFleet(services, regions int) *fleet {
	file, err := schema.ParseFile("services.yaml", strings.NewReader(described))
	if err != nil {
		panic(err)
	}
	f := &fleet{env: &schema.Environment{Services: file.Services}, at: map[schema.DeploymentID]*answers{}}
	for s := range services {
		for r := range regions {
			id := schema.DeploymentID{Service: nth(s, "iam.example.com", "devices.example.com",
				"service-%d.example.com"), Region: nth(r, "us-west2", "eastus2", "region-%d")}
			f.env.Deployments = append(f.env.Deployments, schema.Deployment{
				DeploymentID: id, Version: "v1",
				Address: "127.0.0.1:1", Generation: 1,
			})
		}
	}
	for _, d := range f.env.Deployments {
		f.at[d.DeploymentID] = &answers{id: d.DeploymentID, fleet: f, status: f.atRest(d)}
	}
	return f
}

func nth(i int, first, second, pattern string) string {
	switch i {
	case 0:
		return first
	case 1:
		return second
	}
	return fmt.Sprintf(pattern, i)
}

// atRest is the status of a healthy deployment, which watches its service in other regions and
// iam.example.com.
func (f *fleet) atRest(d schema.Deployment) *adminv1.StatusResponse {
	now := timestamppb.Now()
	s := &adminv1.StatusResponse{
		Deployment: d.String(), Version: d.Version, Generation: 1, Database: "57ba52b9-394a-4f2b-8fbe-2e24165dbc3a",
		Epoch: &adminv1.StatusResponse_Epoch{Ordinal: 1, Since: now},
	}
	for p := range 2 {
		process := &adminv1.StatusResponse_Process{
			Name: fmt.Sprintf("host-%d:7001", p+1), JoinTime: now,
			ExpireTime: timestamppb.New(time.Now().Add(time.Hour)),
		}
		for shard := p; shard < schema.RingSize; shard += 2 {
			process.Shards = append(process.Shards, uint32(shard))
		}
		s.Processes = append(s.Processes, process)
	}
	for _, other := range f.env.Deployments {
		if other.Service == d.Service || other.Service == "iam.example.com" {
			s.Watches = append(s.Watches, &adminv1.StatusResponse_Watch{
				Name: "deletions", Deployment: other.String(),
				Primed: true, HeardTime: timestamppb.New(time.Now().Add(time.Hour)),
			})
		}
	}
	return s
}

// change sets the next answers of a deployment.
func (f *fleet) change(id schema.DeploymentID, how func(*answers)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how(f.at[id])
}

// darken takes a region away: its deployments do not answer, watches of them are late, a deletion waits.
func (f *fleet) darken(region string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, a := range f.at {
		a.dark = id.Region == region
		for _, w := range a.status.GetWatches() {
			if of, err := schema.ParseDeploymentID(w.GetDeployment()); err == nil && of.Region == region {
				w.HeardTime = timestamppb.New(time.Now().Add(-40 * time.Second))
			}
		}
		if !a.dark {
			a.status.Outstanding = []*adminv1.StatusResponse_Outstanding{{
				Group:      "notices",
				Deployment: "devices.example.com/" + region, Count: 12,
				OldestTime: timestamppb.New(time.Now().Add(-time.Minute)),
			}}
			a.status.Failures = []*adminv1.Failure{{
				Handler: "confirm", Deployment: "devices.example.com/" + region,
				Error: "devices.example.com/" + region + " cannot be reached: connection refused",
				Time:  timestamppb.Now(),
			}}
		}
	}
}

// block makes n resources of a deployment wait, and lets a deletion run.
func (f *fleet) block(id schema.DeploymentID, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.at[id]
	a.stuck = &adminv1.ListStuckResponse{Work: []*adminv1.ListStuckResponse_Work{{
		Group:      "release",
		Deployment: "devices.example.com/eastus2", Count: 3, Since: timestamppb.New(time.Now().Add(-time.Hour)),
		LastError: "connection refused",
	}}}
	for i := range n { // most for one reason, with blockers of their own
		reasons := []string{
			fmt.Sprintf("BLOCKED by %s/devices/d%d (account)", holder, i),
			"WAITING for devices.example.com/eastus2",
		}
		switch {
		case i%10 == 7:
			reasons = []string{"WAITING for devices.example.com/region-2 to cascade or unset"}
		case i%40 == 9:
			reasons = []string{"WAITING for the finalizer billing of devices.example.com"}
		}
		a.stuck.Resources = append(a.stuck.Resources, &adminv1.ListStuckResponse_Resource{
			Name: fmt.Sprintf("%s/serviceAccounts/robot-%03d", root, i), Kind: "iam.example.com/ServiceAccount",
			Since:   timestamppb.New(time.Now().Add(-time.Duration(i) * time.Minute)),
			Reasons: reasons,
		})
	}
	for at, found := range map[schema.DeploymentID]int64{id: int64(n), {
		Service: "devices.example.com",
		Region:  "eastus2",
	}: 40} {
		d := &adminv1.Deletion{
			Id: "0193e0a0-0000-7000-8000-000000000001", Root: root, Found: found, Removed: found / 4,
			Unset: 2, Expected: 4 * found, ExpectedUnset: 60, Left: durationpb.New(95 * time.Second),
			StartTime: timestamppb.New(time.Now().Add(-time.Minute)), UpdateTime: timestamppb.Now(),
		}
		f.at[at].deletions, f.at[at].status.Deletions = []*adminv1.Deletion{d}, []*adminv1.Deletion{d}
		f.at[at].status.Outstanding = []*adminv1.StatusResponse_Outstanding{{
			Group:      "deletions",
			Deployment: at.String(), Count: found, OldestTime: timestamppb.New(time.Now().Add(-time.Minute)),
		}}
	}
}

func (f *fleet) Environment(context.Context) (*schema.Environment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.env, f.fails
}

func (f *fleet) Admin(_ context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error) {
	return f.of(id)
}

func (f *fleet) Resources(_ context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error) {
	return f.of(id)
}

func (f *fleet) of(id schema.DeploymentID) (*answers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked.Add(1)
	a := f.at[id]
	if a == nil || a.dark {
		return nil, status.Error(codes.Unavailable, id.String()+" cannot be reached")
	}
	return a, nil
}

// did records an action, and refuses one without a reason.
func (a *answers) did(what, about, of, reason string) error {
	defer a.lock()()
	if reason == "" {
		return status.Error(codes.InvalidArgument, "reason: want 1 to 1000 characters")
	}
	a.fleet.did = append(a.fleet.did, fmt.Sprintf("%s %s %s %s %s", what, a.id, about, of, reason))
	return nil
}

func (a *answers) Pause(_ context.Context, req *adminv1.PauseRequest,
	_ ...grpc.CallOption,
) (*adminv1.PauseResponse, error) {
	err := a.did("pause", req.GetHandler(), req.GetOf(), req.GetReason())
	if err == nil {
		of := req.GetOf()
		if of == "" {
			of = a.id.String()
		}
		defer a.lock()()
		changed, _ := proto.Clone(a.status).(*adminv1.StatusResponse)
		changed.Pauses = append(changed.Pauses, &adminv1.Pause{
			Of: of, Handler: req.GetHandler(),
			Reason: req.GetReason(), Actor: "operator/eve", Time: timestamppb.Now(),
		})
		a.status = changed
	}
	return &adminv1.PauseResponse{}, err
}

func (a *answers) Resume(_ context.Context, req *adminv1.ResumeRequest,
	_ ...grpc.CallOption,
) (*adminv1.ResumeResponse, error) {
	return &adminv1.ResumeResponse{}, a.did("resume", req.GetHandler(), req.GetOf(), req.GetReason())
}

func (a *answers) Retry(_ context.Context, req *adminv1.RetryRequest,
	_ ...grpc.CallOption,
) (*adminv1.RetryResponse, error) {
	return &adminv1.RetryResponse{}, a.did("retry", req.GetName(), req.GetOf(), req.GetReason())
}

func (a *answers) DeleteResource(_ context.Context, req *resourcev1.DeleteResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.DeleteResourceResponse, error) {
	defer a.lock()()
	a.fleet.did = append(a.fleet.did, fmt.Sprintf("delete %s %s %s", a.id, req.GetName(),
		req.GetRetention().AsDuration()))
	return &resourcev1.DeleteResourceResponse{}, nil
}

// ListResources answers with two pages, the second of which has a hidden resource.
func (a *answers) ListResources(_ context.Context, req *resourcev1.ListResourcesRequest,
	_ ...grpc.CallOption,
) (*resourcev1.ListResourcesResponse, error) {
	created := timestamppb.New(time.Now().Add(-time.Hour))
	page := &resourcev1.ListResourcesResponse{
		NextPageToken: "second",
		Resources: []*resourcev1.Resource{{
			Name: "projects/acme", Kind: "Project",
			State: resourcev1.Resource_STATE_ACTIVE, CreateTime: created,
		}},
	}
	if req.GetPageToken() == "second" {
		page.NextPageToken, page.Resources[0].Name, page.Resources[0].PurgeTime = "", "projects/old",
			timestamppb.New(time.Now().Add(time.Hour))
	}
	if req.GetFilter() != "" {
		page.Resources[0].Kind = req.GetFilter()
	}
	return page, nil
}

func (a *answers) PlanDeletion(_ context.Context, req *resourcev1.PlanDeletionRequest,
	_ ...grpc.CallOption,
) (*resourcev1.PlanDeletionResponse, error) {
	there := "devices.example.com/eastus2"
	plan := &resourcev1.PlanDeletionResponse{Accepted: true, Groups: []*resourcev1.PlanDeletionResponse_Group{
		{
			Parent: -1, Deployment: a.id.String(), Kind: "Project", Count: 1,
			Samples: []string{"//" + a.id.String() + "/" + req.GetName()},
		},
		{
			Parent: 0, Deployment: there, Kind: "Fleet", Path: "project", Count: 12,
			Samples: []string{"//" + there + "/fleets/north"}, Finalizers: []string{"drain"},
		},
		{Parent: 1, Deployment: there, Kind: "Device", Path: "fleet", Count: 3, Unset: true},
	}}
	if req.GetName() == "projects/blocked" {
		plan.Accepted, plan.Refusal = false, "projects/blocked cannot be deleted: it is referred to by "+holder+
			" (account)"
		plan.Blockers = []*resourcev1.PlanDeletionResponse_Blocker{{
			Holder: holder, Path: "account",
			Target: "//" + a.id.String() + "/projects/blocked", Refuses: true,
		}}
		plan.TotalBlockers = 1
	}
	return plan, nil
}

func (a *answers) UndeleteResource(_ context.Context, req *resourcev1.UndeleteResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	defer a.lock()()
	a.fleet.did = append(a.fleet.did, fmt.Sprintf("undelete %s %s", a.id, req.GetName()))
	return &resourcev1.Resource{}, nil
}

func (a *answers) UpdateResource(_ context.Context, req *resourcev1.UpdateResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	defer a.lock()()
	without := ""
	if _, has := req.GetResource().GetBody().AsMap()["account"]; !has {
		without = " without account"
	}
	a.fleet.did = append(a.fleet.did, fmt.Sprintf("update %s %s %s%s", a.id, req.GetResource().GetName(),
		strings.Join(req.GetUpdateMask().GetPaths(), ","), without))
	return &resourcev1.Resource{}, nil
}

// lock returns with the answers fixed.
func (a *answers) lock() func() {
	a.fleet.mu.Lock()
	return a.fleet.mu.Unlock
}

func (a *answers) Status(_ context.Context, _ *adminv1.StatusRequest,
	_ ...grpc.CallOption,
) (*adminv1.StatusResponse, error) {
	unlock := a.lock()
	slow := a.slow
	unlock()
	if slow != nil {
		<-slow
	}
	defer a.lock()()
	return a.status, a.refuses
}

func (a *answers) ListStuck(context.Context, *adminv1.ListStuckRequest,
	...grpc.CallOption,
) (*adminv1.ListStuckResponse, error) {
	defer a.lock()()
	return proto.CloneOf(a.stuck), nil // as from the wire
}

func (a *answers) ListDeletions(_ context.Context, req *adminv1.ListDeletionsRequest,
	_ ...grpc.CallOption,
) (*adminv1.ListDeletionsResponse, error) {
	defer a.lock()()
	out := &adminv1.ListDeletionsResponse{}
	if ended := a.ended(); ended != nil && (req.GetEnded() || req.GetDeletion() == endedID) {
		out.Deletions = []*adminv1.Deletion{ended}
		return out, nil
	}
	for _, d := range a.deletions {
		if d.GetId() == req.GetDeletion() {
			out.Deletions = append(out.Deletions, d)
		}
	}
	return out, nil
}

// ended is a deletion an hour ago that two deployments took part in.
func (a *answers) ended() *adminv1.Deletion {
	began := time.Now().Add(-time.Hour).Truncate(time.Hour)
	ended := &adminv1.Deletion{
		Id: endedID, Root: root, Found: 700, Removed: 700, Unset: 4, ExpectedUnset: 4,
		StartTime: timestamppb.New(began), UpdateTime: timestamppb.New(began.Add(30 * time.Second)),
	}
	switch a.id.String() {
	case "iam.example.com/us-west2":
	case "devices.example.com/eastus2":
		ended.StartTime, ended.UpdateTime = timestamppb.New(began.Add(20*time.Second)),
			timestamppb.New(began.Add(90*time.Second))
	default:
		return nil
	}
	return ended
}

func (a *answers) Explain(_ context.Context, req *adminv1.ExplainRequest,
	_ ...grpc.CallOption,
) (*adminv1.ExplainResponse, error) {
	defer a.lock()()
	out := &adminv1.ExplainResponse{
		Name: root, Kind: "iam.example.com/Project",
		Uid: "01a207e8-d939-75fe-b09f-14939602e904", State: "ACTIVE", UpdateTime: timestamppb.Now(),
	}
	if len(a.deletions) > 0 {
		out.State, out.Deletion = "DELETING", a.deletions[0]
		out.Reasons = []*adminv1.ExplainResponse_Reason{{
			Type: "BLOCKED", Message: "by " + holder + " (project)",
			Since: timestamppb.New(time.Now().Add(-time.Minute)),
		}}
	}
	if req.GetName() != "projects/acme" {
		return nil, status.Error(codes.NotFound, req.GetName()+" does not exist")
	}
	for _, w := range a.stuck.GetWork() {
		if w.GetGroup() == "acknowledge" {
			out.WaitsFor = append(out.WaitsFor, w.GetDeployment())
		}
	}
	return out, nil
}

func (a *answers) ListRemovals(context.Context, *adminv1.ListRemovalsRequest,
	...grpc.CallOption,
) (*adminv1.ListRemovalsResponse, error) {
	return nil, status.Error(codes.PermissionDenied, "only operators may list removals")
}

func (a *answers) GetResource(_ context.Context, req *resourcev1.GetResourceRequest,
	_ ...grpc.CallOption,
) (*resourcev1.Resource, error) {
	if strings.HasSuffix(holder, "/"+req.GetName()) {
		body, err := structpb.NewStruct(map[string]any{"account": "//" + west.String() + "/projects/blocked"})
		return &resourcev1.Resource{Name: req.GetName(), Body: body}, err
	}
	if req.GetName() != "projects/acme" {
		return nil, status.Error(codes.NotFound, req.GetName()+" does not exist")
	}
	body, err := structpb.NewStruct(map[string]any{
		"title":   "<img src=x onerror=alert(1)>",
		"account": root + "/serviceAccounts/robot",
	})
	return &resourcev1.Resource{Name: root, Kind: "iam.example.com/Project", Body: body}, err
}

func (a *answers) ListReferrers(_ context.Context, req *resourcev1.ListReferrersRequest,
	_ ...grpc.CallOption,
) (*resourcev1.ListReferrersResponse, error) {
	out := &resourcev1.ListReferrersResponse{TargetUid: "01a207e8-d939-75fe-b09f-14939602e904"}
	if req.GetTargetUid() == "" {
		out.Deployments = []string{"devices.example.com/eastus2"}
		return out, nil
	}
	if req.GetTarget() == holder {
		for i := range 12 {
			out.Referrers = append(out.Referrers,
				&resourcev1.ListReferrersResponse_Referrer{
					Holder: fmt.Sprintf("%s/devices/device-%d", holder, i),
					Path:   "fleet", Behaviour: schemav1.Behaviour_BEHAVIOUR_CASCADE_DELETE,
				})
		}
		return out, nil
	}
	out.Referrers = []*resourcev1.ListReferrersResponse_Referrer{{
		Holder: holder, Kind: "devices.example.com/Fleet",
		Path: "project", Behaviour: schemav1.Behaviour_BEHAVIOUR_BLOCK,
	}}
	return out, nil
}

// withRegistry are deployments whose registry has two changes.
type withRegistry struct{ *fleet }

func (withRegistry) Registry() registryv1.RegistryServiceClient { return revisions{} }

type revisions struct {
	registryv1.RegistryServiceClient
}

func (revisions) ListRevisions(context.Context, *registryv1.ListRevisionsRequest,
	...grpc.CallOption,
) (*registryv1.ListRevisionsResponse, error) {
	return &registryv1.ListRevisionsResponse{NextPageToken: "1", Revisions: []*registryv1.Revision{
		{
			Revision: 8, Time: timestamppb.New(time.Unix(1_700_000_000, 0)), Actor: "operator/olga",
			Proof: "certificate", Method: "Apply", RequestId: "01a226b2-9991-7465-a0a7-6dce752cb2da",
			Changes: []string{
				"service devices.example.com@v2: changed\n  kinds[Device].references[account].behaviour: BLOCK → CASCADE_DELETE", "rights: changed\n  group team-a gains read, write on devices.example.com/Device at and below projects/acme\n  user/ann loses delete on devices.example.com/Device at and below projects/acme",
			},
		},
		{
			Revision: 7, Time: timestamppb.New(time.Unix(1_699_900_000, 0)), Actor: "operator/omar",
			Proof:  "certificate",
			Method: "DecommissionDeployment", Reason: "sold, ticket 4711",
			Changes: []string{"deployment billing.example.com/eastus2: decommissioned"},
		},
	}}, nil
}
