package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/controller"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

var (
	here     = schema.DeploymentID{Service: "devices.example.com", Region: "eu"}
	devices  = controller.Kind{Deployment: here, Name: "Device"}
	jobs     = controller.Kind{Deployment: here, Name: "Job"}
	elsehere = schema.DeploymentID{Service: "devices.example.com", Region: "us"}
)

const descriptor = `
service: devices.example.com
version: v1
kinds:
  - { kind: Device, patterns: ["devices/{device}"], finalizers: [{ name: badge, holder: user/badges }] }
  - { kind: Job, patterns: ["jobs/{job}"] }
  - { kind: Site, patterns: ["sites/{site}"] }
  - { kind: Lease, patterns: ["leases/{lease}"] }
---
regions: [eu, us]
deployments:
  - { deployment: devices.example.com/eu, version: v1 }
  - { deployment: devices.example.com/us, version: v1 }
`

func environment() *schema.Environment {
	file, err := schema.ParseFile("devices.yaml", strings.NewReader(descriptor))
	if err != nil {
		panic(err)
	}
	return &schema.Environment{Regions: file.Regions, Services: file.Services, Deployments: file.Deployments}
}

// memory is the resources of a deployment in memory, with a log of transactions, which watches follow.
type memory struct {
	resourcev1.UnimplementedResourceServiceServer
	id      schema.DeploymentID
	regions []*memory // each forwards requests to the others

	mu       sync.Mutex
	stored   map[string]*resourcev1.Resource        // guarded by mu
	log      [][]*resourcev1.WatchResourcesResponse // guarded by mu
	newer    chan struct{}                          // guarded by mu; closed by the next transaction
	streams  int                                    // guarded by mu; opened until now
	cutting  chan struct{}                          // guarded by mu; closed to end all streams
	reset    bool                                   // guarded by mu; tokens cannot be resumed
	snapshot func(r *resourcev1.Resource)           // called for each resource of a snapshot; may be nil
	late     func()                                 // called before each transaction is sent; may be nil
	revision int64                                  // guarded by mu
	denied   map[string]bool                        // kinds
}

func newMemory(id schema.DeploymentID) *memory {
	return &memory{
		id: id, stored: map[string]*resourcev1.Resource{}, newer: make(chan struct{}),
		cutting: make(chan struct{}),
	}
}

// client calls memories over channels inside the process, which share messages or copy them.
func clientOf(share bool, all ...*memory) *client.Client {
	conns := map[schema.DeploymentID]grpc.ClientConnInterface{}
	for _, m := range all {
		if m.regions == nil {
			m.regions = all
		}
		channel := &inprocess.Channel{Share: share}
		resourcev1.RegisterResourceServiceServer(channel, m)
		conns[m.id] = channel
	}
	return client.Over(environment(), conns)
}

func (m *memory) name(relative string) schema.FullName {
	return schema.FullName{Deployment: m.id, Name: relative}
}

// write stores resources in one transaction; one without a kind is removed.
func (m *memory) write(all ...*resourcev1.Resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commit(all...)
}

// commit is write for a caller that has locked mu, and has read under the same lock the resources that the
// write depends on.
func (m *memory) commit(all ...*resourcev1.Resource) {
	var events []*resourcev1.WatchResourcesResponse
	for _, r := range all {
		r = proto.CloneOf(r)
		old := m.stored[r.GetName()]
		m.revision++
		r.Revision, r.Deployment = m.revision, m.id.String()
		if r.GetKind() == "" {
			delete(m.stored, r.GetName())
			gone := &resourcev1.Resource{
				Name: r.GetName(), Kind: old.GetKind(), Uid: old.GetUid(),
				Revision: r.GetRevision(),
			}
			events = append(events,
				&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Delete{Delete: gone}})
			continue
		}
		if r.Uid = old.GetUid(); r.GetUid() == "" {
			r.Uid = fmt.Sprint("uid", m.revision)
		}
		if r.Generation = old.GetGeneration(); old == nil || !proto.Equal(old.GetBody(), r.GetBody()) {
			r.Generation++
		}
		m.stored[r.GetName()] = r
		events = append(events,
			&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{Upsert: r}})
	}
	m.log = append(m.log, events)
	close(m.newer)
	m.newer = make(chan struct{})
}

// cut ends all streams, and with forget makes their tokens useless.
func (m *memory) cut(forget bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset = forget
	close(m.cutting)
	m.cutting = make(chan struct{})
}

func (m *memory) opened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams
}

func (m *memory) PutResource(_ context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(req.GetResource())
}

// put needs mu.
func (m *memory) put(r *resourcev1.Resource) (*resourcev1.Resource, error) {
	full, err := schema.ParseFullName(r.GetName())
	if err != nil {
		return nil, err
	}
	r = proto.CloneOf(r)
	if r.Name = full.Name; r.GetKind() == "" {
		r.Kind = map[string]string{
			"devices": "Device", "jobs": "Job", "sites": "Site", "leases": "Lease",
			"projects": "Project", "buckets": "Bucket",
		}[strings.Split(full.Name, "/")[0]]
	}
	m.commit(r)
	return m.stored[full.Name], nil
}

func (m *memory) CreateResource(_ context.Context,
	req *resourcev1.CreateResourceRequest,
) (*resourcev1.Resource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.only(req.GetResource().GetName(), "", 0); err == nil {
		return nil, status.Error(codes.AlreadyExists, "it exists")
	}
	return m.put(req.GetResource())
}

// only returns a resource, unless it has another uid or revision. It needs mu.
func (m *memory) only(name, uid string, revision int64) (*resourcev1.Resource, error) {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return nil, err
	}
	switch r := m.stored[full.Name]; {
	case r == nil:
		return nil, status.Error(codes.NotFound, "no such resource")
	case uid != "" && r.GetUid() != uid:
		return nil, status.Error(codes.NotFound, "it has another uid")
	case revision != 0 && r.GetRevision() != revision:
		return nil, status.Error(codes.FailedPrecondition, "it has another revision")
	default:
		return r, nil
	}
}

// UpdateResource changes labels.
func (m *memory) UpdateResource(_ context.Context,
	req *resourcev1.UpdateResourceRequest,
) (*resourcev1.Resource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.only(req.GetResource().GetName(), req.GetResource().GetUid(), 0)
	if err != nil || len(req.GetResource().GetLabels()) == 0 {
		return r, err
	}
	r = proto.CloneOf(r)
	r.Labels = req.GetResource().GetLabels()
	m.commit(r)
	return m.stored[r.GetName()], nil
}

func (m *memory) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.only(req.GetName(), req.GetUid(), req.GetRevision())
	if err == nil {
		m.commit(gone(r.GetName()))
	}
	return &resourcev1.DeleteResourceResponse{Removed: true}, err
}

func (m *memory) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.only(req.GetName(), "", 0)
}

func (m *memory) WatchResources(req *resourcev1.WatchResourcesRequest,
	stream resourcev1.ResourceService_WatchResourcesServer,
) error {
	if i := slices.IndexFunc(m.regions, func(o *memory) bool {
		return o.id.Region == req.GetRegion()
	}); m.regions[i] != m {
		return m.regions[i].WatchResources(req, stream)
	}
	if m.denied[req.GetKind()] {
		return status.Error(codes.PermissionDenied, "no")
	}
	matches := func(r *resourcev1.Resource) bool {
		return r != nil && r.GetKind() == req.GetKind() || r != nil && strings.Contains(req.GetFilter(),
			strconv.Quote(r.GetKind()))
	}
	m.mu.Lock()
	m.streams++
	at, cutting := len(m.log), m.cutting
	var all []*resourcev1.Resource
	for _, r := range m.stored {
		if matches(r) {
			all = append(all, r)
		}
	}
	forgotten := m.reset && req.GetResumeToken() != ""
	m.mu.Unlock()
	if forgotten {
		return status.Error(codes.OutOfRange, "reset")
	}
	if req.GetResumeToken() != "" {
		at, _ = strconv.Atoi(req.GetResumeToken())
	} else if err := m.sendSnapshot(stream, all, at); err != nil {
		return err
	}
	for {
		m.mu.Lock()
		newer, log := m.newer, slices.Clone(m.log)
		m.mu.Unlock()
		for ; at < len(log); at++ {
			token := strconv.Itoa(at + 1)
			var sent []*resourcev1.WatchResourcesResponse
			for _, e := range log[at] {
				if matches(e.GetUpsert()) || matches(e.GetDelete()) {
					sent = append(sent, &resourcev1.WatchResourcesResponse{Event: e.GetEvent()})
				}
			}
			if len(sent) == 0 {
				sent = append(sent,
					&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Bookmark_{
						Bookmark: &resourcev1.WatchResourcesResponse_Bookmark{ResumeToken: token},
					}})
			}
			sent[len(sent)-1].ResumeToken = token
			if m.late != nil {
				m.late()
			}
			for _, e := range sent {
				if err := stream.Send(e); err != nil {
					return err
				}
			}
		}
		select {
		case <-newer:
		case <-cutting:
			return status.Error(codes.Unavailable, "cut")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (m *memory) sendSnapshot(stream resourcev1.ResourceService_WatchResourcesServer, all []*resourcev1.Resource,
	at int,
) error {
	for _, r := range all {
		if m.snapshot != nil {
			m.snapshot(r)
		}
		if err := stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_Upsert{
			Upsert: r,
		}}); err != nil {
			return err
		}
	}
	return stream.Send(&resourcev1.WatchResourcesResponse{Event: &resourcev1.WatchResourcesResponse_EndOfSnapshot_{
		EndOfSnapshot: &resourcev1.WatchResourcesResponse_EndOfSnapshot{ResumeToken: strconv.Itoa(at)},
	}})
}

// device and job are resources.
func device(id string, body map[string]any) *resourcev1.Resource {
	return of("Device", "devices/"+id, body)
}
func job(id string, body map[string]any) *resourcev1.Resource { return of("Job", "jobs/"+id, body) }

func of(kind, name string, body map[string]any) *resourcev1.Resource {
	s, err := structpb.NewStruct(body)
	if err != nil {
		panic(err)
	}
	return &resourcev1.Resource{Kind: kind, Name: name, Body: s}
}

func gone(name string) *resourcev1.Resource { return &resourcev1.Resource{Name: name} }
