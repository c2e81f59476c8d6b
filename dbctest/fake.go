package dbctest

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Fake has the resources of deployments in memory, for unit tests of code that calls a client: without
// PostgreSQL, and without another process. Names, kinds, defaults, rules and JSON Schemas of bodies, uids,
// revisions, generations, labels, statuses, finalizers, batches, lists and watches are as in an installation;
// requests and answers are copies, so that a change of either leaves the stored resources alone. It enforces
// no reference and no right, cascades nothing and knows no owners: tests of those use New. Filters select
// kinds only (kind = "Device" OR kind = "Job"); other methods return UNIMPLEMENTED.
type Fake struct {
	// Client calls the deployments. It may be given to a controller.
	Client *client.Client
	// Before is called before each call, with the full name of its method and its request; an error is the
	// answer. A status error, such as status.Error(codes.Unavailable, "away"), has the form of a deployment's
	// error. Set it before the first call; nil: none.
	Before func(ctx context.Context, method string, req any) error

	models map[schema.DeploymentID]*schema.Model

	mu       sync.Mutex
	stored   map[schema.FullName]*resourcev1.Resource // guarded by mu; its values are replaced, and never changed
	log      []transaction                            // guarded by mu; of all deployments
	newer    chan struct{}                            // guarded by mu; closed by the next transaction
	revision int64                                    // guarded by mu
	answers  map[string]answer                        // guarded by mu; by request id
}

// transaction is the changes of one transaction.
type transaction struct {
	at      schema.DeploymentID
	changes []change
}

// change is a stored or a removed resource.
type change struct {
	of   *resourcev1.Resource
	gone bool
}

// answer is the outcome of a request with an id.
type answer struct {
	all     []*resourcev1.Resource
	deleted []*resourcev1.DeleteResourceResponse
	err     error
}

// NewFake returns deployments without resources. services has YAML documents, as Config.Services has.
func NewFake(t testing.TB, services string) *Fake {
	t.Helper()
	file, err := schema.ParseFile("services", strings.NewReader(services))
	if err != nil {
		t.Fatalf("dbctest: %v", err)
	}
	env := &schema.Environment{Regions: file.Regions, Services: file.Services, Deployments: file.Deployments}
	f := &Fake{
		models: map[schema.DeploymentID]*schema.Model{}, stored: map[schema.FullName]*resourcev1.Resource{},
		newer:   make(chan struct{}),
		answers: map[string]answer{},
	}
	conns := map[schema.DeploymentID]grpc.ClientConnInterface{}
	for _, d := range file.Deployments {
		if f.models[d.DeploymentID], err = env.Model(d.DeploymentID); err != nil {
			t.Fatalf("dbctest: %s: %v", d.DeploymentID, err)
		}
		channel := &inprocess.Channel{Unary: f.unary, Stream: f.stream}
		resourcev1.RegisterResourceServiceServer(channel, &door{fake: f, id: d.DeploymentID})
		conns[d.DeploymentID] = channel
	}
	f.Client = client.Over(env, conns)
	return f
}

func (f *Fake) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if f.Before != nil {
		if err := f.Before(ctx, info.FullMethod, req); err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

// stream calls Before with the request of a watch, which is received here and passed on.
func (f *Fake) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &begun{ServerStream: ss, fake: f, method: info.FullMethod})
}

type begun struct {
	grpc.ServerStream
	fake   *Fake
	method string
}

func (b *begun) RecvMsg(m any) error {
	if err := b.ServerStream.RecvMsg(m); err != nil || b.fake.Before == nil {
		return err
	}
	return b.fake.Before(b.Context(), b.method, m)
}

// commit stores changes as one transaction; mu is held.
func (f *Fake) commit(at schema.DeploymentID, changes ...change) {
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		name := schema.FullName{Deployment: at, Name: c.of.GetName()}
		if f.stored[name] = c.of; c.gone {
			delete(f.stored, name)
		}
	}
	f.log = append(f.log, transaction{at, changes})
	close(f.newer)
	f.newer = make(chan struct{})
}

// next is the next revision; mu is held.
func (f *Fake) next() int64 {
	f.revision++
	return f.revision
}

// token resumes a watch after the first n transactions.
func token(n int) string { return strconv.Itoa(n) }
