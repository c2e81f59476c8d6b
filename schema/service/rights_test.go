package service_test

import (
	"context"
	"encoding/base64"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/token"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const limited = services + `
---
rights:
  default: deny
  grants:
    - { group: team-a, verbs: [read, write, delete], kind: a.example.com/Target, name: targets/a-* }
    - { group: team-a, verbs: [refer], name: targets/shared }
`

// Each method that users may call has an entry in the table of rights: a missing method would be denied to
// all callers.
func TestEveryMethodOfUsersHasItsRight(t *testing.T) {
	for method, roles := range service.Policy {
		if strings.HasPrefix(method, "/grpc.") {
			continue
		}
		users := false
		for _, r := range roles {
			users = users || r == identity.RoleUser
		}
		require.Equal(t, users, access.Covers(method), method)
	}
}

// guarded is a deployment on a listener, with rights and tokens.
type guarded struct {
	t       *testing.T
	self    schema.DeploymentID
	address string
	peers   *peers.Peers
	dial    *identity.Credentials // without a certificate
}

func newGuarded(t *testing.T, issuer *harness.Issuer, written ...int64) *guarded {
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	store := harness.NewBox(t, services, nil, self.String()).Stores[self]
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	certs := t.TempDir()
	require.NoError(t, authority.Issue(certs, identity.Deployment(self)))
	credentials, err := identity.Load(identity.InDir(certs))
	require.NoError(t, err)
	tokens, err := token.Load(issuer.Tokens("db"))
	require.NoError(t, err)
	g := &guarded{t: t, self: self, peers: peers.New(self, credentials)}
	g.declare(limited)
	cfg := service.Config{
		Store: store, Peers: g.peers, Logger: zap.NewNop(),
		GRPC:    service.GRPC{Credentials: credentials, Health: health.NewServer()},
		Callers: service.Callers{Tokens: tokens},
	}
	for _, cfg.Callers.MaxWritten = range written {
	}
	server, err := service.NewServer(cfg)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	g.address = listener.Addr().String()
	g.dial, err = identity.LoadAuthorities(identity.InDir(certs))
	require.NoError(t, err)
	return g
}

func (g *guarded) declare(text string) {
	f, err := schema.ParseFile("f", strings.NewReader(text))
	require.NoError(g.t, err)
	g.peers.Update(&schema.Environment{
		Services: f.Services, Rights: f.Rights,
		Deployments: []schema.Deployment{{DeploymentID: g.self, Version: "v1"}},
	})
}

func (g *guarded) client(options ...grpc.DialOption) resourcev1.ResourceServiceClient {
	conn, err := grpc.NewClient(g.address, append(g.dial.DialOptions(identity.Deployment(g.self)), options...)...)
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = conn.Close() })
	return resourcev1.NewResourceServiceClient(conn)
}

func (g *guarded) as(token identity.TokenFile) resourcev1.ResourceServiceClient {
	return g.client(grpc.WithPerRPCCredentials(token))
}

func target(name string, to ...string) *resourcev1.PutResourceRequest {
	body := map[string]any{}
	if len(to) > 0 {
		body["soon"] = to[0]
	}
	s, _ := structpb.NewStruct(body)
	return &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: "targets/" + name, Body: s}}
}

// owned is target with an owner.
func owned(name, owner string) *resourcev1.PutResourceRequest {
	put := target(name)
	put.Resource.OwnerReferences = []*resourcev1.OwnerReference{{Name: "targets/" + owner, Kind: "Target"}}
	return put
}

// People come with signed tokens instead of certificates, and have the rights of their groups.
func TestPeopleComeWithTokensAndHaveTheRightsOfTheirGroups(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	everything := strings.Split(limited, "rights:")[0] + "\nrights: {default: allow}\n"
	g.declare(everything)
	root := g.as(issuer.File("root", "db", time.Hour))
	for _, name := range []string{"shared", "secret", "b-1", "a-1", "a-2", "a-3"} {
		_, err := root.PutResource(ctx, target(name))
		require.NoError(t, err)
	}
	_, err := root.PutResource(ctx, target("b-2", "targets/secret"))
	require.NoError(t, err)
	g.declare(limited)

	for name, c := range map[string]resourcev1.ResourceServiceClient{
		"no token": g.client(), "expired": g.as(issuer.File("ann", "db", -time.Hour)),
		"of another audience": g.as(issuer.File("ann", "other", time.Hour)),
	} {
		_, err := c.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/a-1"})
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%s: %v", name, err)
	}
	ann := g.as(issuer.File("ann", "db", time.Hour, "team-a"))
	require.Equal(t, []string{"targets/a-1", "targets/a-2", "targets/a-3"}, listed(ctx, t, ann, ""))
	require.Equal(t, []string{"targets/a-3", "targets/a-2", "targets/a-1"}, listed(ctx, t, ann, "name desc"))
	require.Empty(t, listed(ctx, t, root, ""), "who has no grant sees nothing")

	for name, code := range map[string]codes.Code{
		"a-1": codes.OK, "a-9": codes.NotFound, "b-1": codes.PermissionDenied,
		"b-9": codes.PermissionDenied,
	} {
		_, err := ann.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/" + name})
		require.Equal(t, code, status.Code(err), name)
	}
	_, err = ann.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/b-1"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))

	// New references need the right to refer; a held reference does not.
	_, err = ann.PutResource(ctx, target("a-1", "targets/shared"))
	require.NoError(t, err)
	for _, name := range []string{"targets/secret", "targets/missing"} {
		_, err = ann.PutResource(ctx, target("a-2", name))
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", name, err)
	}
	g.declare(strings.ReplaceAll(limited, "targets/shared", "targets/none"))
	_, err = ann.PutResource(ctx, target("a-1", "targets/shared"))
	require.NoError(t, err)

	// A watch delivers the same names, and ends when they change.
	watch, err := ann.WatchResources(ctx, &resourcev1.WatchResourcesRequest{})
	require.NoError(t, err)
	var seen []string
	for end := false; !end; {
		event, err := watch.Recv()
		require.NoError(t, err)
		if end = event.GetEndOfSnapshot() != nil; !end {
			seen = append(seen, event.GetUpsert().GetName())
		}
	}
	require.Equal(t, []string{"targets/a-1", "targets/a-2", "targets/a-3"}, seen)
	inBatches, err := ann.WatchResources(ctx, &resourcev1.WatchResourcesRequest{AllowBatches: true})
	require.NoError(t, err)
	first, err := inBatches.Recv()
	require.NoError(t, err)
	var together []string
	for _, c := range first.GetChanges() {
		together = append(together, c.GetUpsert().GetName())
	}
	require.Equal(t, seen, together)
	_, err = g.as(issuer.File("ann", "db", time.Hour, "team-a")).PutResource(ctx, target("a-4"))
	require.NoError(t, err)
	event, err := watch.Recv()
	for err == nil && event.GetUpsert() == nil { // a bookmark
		event, err = watch.Recv()
	}
	require.NoError(t, err)
	require.Equal(t, "targets/a-4", event.GetUpsert().GetName())
	g.declare(strings.ReplaceAll(limited, "targets/a-*", "targets/a-1"))
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.OutOfRange, status.Code(err))
	require.Equal(t, []string{"targets/a-1"}, listed(ctx, t, ann, ""))
}

// A small change of a large resource stores all of it, and again as the outcome of its request: a person who
// repeats it is refused, and no other person is.
func TestAServerBoundsWhatAPersonWrites_I20(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer, 4<<20)
	g.declare(strings.Split(limited, "rights:")[0] + "\nrights: {default: allow}\n")
	eve, ann := g.as(issuer.File("eve", "db", time.Hour)), g.as(issuer.File("ann", "db", time.Hour))
	large := target("large")
	large.Resource.Body.Fields["text"] = structpb.NewStringValue(strings.Repeat("x", 500<<10))
	_, err := eve.PutResource(ctx, large)
	require.NoError(t, err)
	change := func(c resourcev1.ResourceServiceClient) error {
		_, err := c.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
			Resource:   &resourcev1.Resource{Name: "targets/large", Labels: map[string]string{"n": uuid.NewString()}},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}},
			RequestId:  uuid.NewString(),
		})
		return err
	}
	changes := 0
	for ; changes < 20; changes++ {
		if err = change(eve); err != nil {
			break
		}
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "user/eve has written 4 MiB in an hour")
	require.Equal(t, 4, changes)
	_, err = eve.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{
		Name:      "targets/missing",
		RequestId: uuid.NewString(),
	})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "its outcome would be stored")
	_, err = eve.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/large"})
	require.NoError(t, err)
	require.NoError(t, change(ann))
}

// listed reads all pages of two resources each; every page but the last is full.
func listed(ctx context.Context, t *testing.T, c resourcev1.ResourceServiceClient, order string) (names []string) {
	t.Helper()
	for token := ""; ; {
		page, err := c.ListResources(ctx, &resourcev1.ListResourcesRequest{
			PageSize: 2, PageToken: token,
			OrderBy: order,
		})
		require.NoError(t, err)
		for _, r := range page.GetResources() {
			names = append(names, r.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			return names
		}
		require.Len(t, page.GetResources(), 2)
	}
}

// Tokens of pages and watches, request ids, dry runs, filters and look-alike names of callers who may see
// more give a restricted caller nothing that it may not read.
func TestARestrictedCallerLearnsNothingFromOthers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	g.declare(strings.Split(limited, "rights:")[0] + "\nrights: {default: allow}\n")
	root, ann := g.as(issuer.File("root", "db", time.Hour)), g.as(issuer.File("ann", "db", time.Hour, "team-a"))
	const request = "0190d9a2-6f9a-7b1c-9e5d-000000000001"
	for _, name := range []string{"a-1", "b-1", "b-2"} {
		put := target(name)
		if name == "b-1" {
			put.RequestId = request
		}
		_, err := root.PutResource(ctx, put)
		require.NoError(t, err)
	}
	_, err := root.PutResource(ctx, target("hidden-holder", "targets/a-1"))
	require.NoError(t, err)
	_, err = root.PutResource(ctx, owned("a-7", "b-1"))
	require.NoError(t, err)
	page, err := root.ListResources(ctx, &resourcev1.ListResourcesRequest{PageSize: 1})
	require.NoError(t, err)
	watching, stop := context.WithCancel(ctx)
	watch, err := root.WatchResources(watching, &resourcev1.WatchResourcesRequest{})
	require.NoError(t, err)
	resume := ""
	for resume == "" {
		event, err := watch.Recv()
		require.NoError(t, err)
		resume = event.GetEndOfSnapshot().GetResumeToken()
	}
	stop()
	g.declare(limited)

	next, err := ann.ListResources(ctx, &resourcev1.ListResourcesRequest{
		PageSize:  10,
		PageToken: page.GetNextPageToken(),
	})
	if err == nil {
		for _, r := range next.GetResources() {
			require.Contains(t, r.GetName(), "targets/a-", "by the page of somebody else")
		}
	}
	_, err = root.PutResource(ctx, target("b-4"))
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	watch, err = ann.WatchResources(ctx, &resourcev1.WatchResourcesRequest{ResumeToken: resume})
	require.NoError(t, err)
	_, err = ann.PutResource(ctx, target("a-2"))
	require.NoError(t, err)
	for event := (*resourcev1.WatchResourcesResponse)(nil); err == nil && event.GetUpsert().
		GetName() != "targets/a-2"; {
		event, err = watch.Recv()
		require.NotContains(t, event.String(), "targets/b-", "by the position of somebody else")
	}

	answer, err := ann.PutResource(ctx, &resourcev1.PutResourceRequest{
		Resource:  target("a-3").GetResource(),
		RequestId: request,
	})
	require.NotContains(t, answer.String()+status.Convert(err).Proto().String(), "b-1",
		"by the request id of somebody else")
	for _, name := range []string{
		"targets/a-1/../b-1", "targets/b-1/", "/targets/b-1", "targets//b-1", "Targets/b-1",
		"targets/b-1\x00", "//a.example.com/us-west2/targets/b-1", "//A.example.com/us-west2/targets/b-1",
	} {
		_, err := ann.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name})
		require.Contains(t, []codes.Code{codes.PermissionDenied, codes.InvalidArgument, codes.Internal},
			status.Code(err), "%q: %v", name, err)
	}
	for _, filter := range []string{
		`name = "targets/b-1"`, `name = "targets/b-1" OR name = "targets/b-2"`,
		`NOT name = "targets/a-1"`,
	} {
		found, err := ann.ListResources(ctx, &resourcev1.ListResourcesRequest{Filter: filter})
		require.NotContains(t, found.String()+status.Convert(err).Message(), "targets/b-2", "%s", filter)
	}
	for name, code := range map[string]codes.Code{
		"targets/b-1":     codes.PermissionDenied,
		"targets/missing": codes.PermissionDenied,
	} {
		_, err := ann.MutateAndValidateResource(ctx,
			&resourcev1.MutateAndValidateResourceRequest{Write: &resourcev1.BatchWriteResourcesRequest_Write{
				Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: target("a-5", name).GetResource()},
			}})
		require.Equal(t, code, status.Code(err), "a dry run that refers to %s: %v", name, err)
	}
	for owner, code := range map[string]codes.Code{
		"b-1": codes.PermissionDenied, "missing": codes.PermissionDenied,
		"shared": codes.OK,
	} {
		_, err := ann.PutResource(ctx, owned("a-8", owner))
		require.Equal(t, code, status.Code(err), "the owner %s: %v", owner, err)
	}
	_, err = ann.PutResource(ctx, owned("a-7", "b-1"))
	require.NoError(t, err, "an owner that it has")
	referrers, err := ann.ListReferrers(ctx,
		&resourcev1.ListReferrersRequest{Target: "//a.example.com/us-west2/targets/a-1"})
	require.NotContains(t, referrers.String()+status.Convert(err).Message(), "hidden-holder")

	first, err := ann.ListResources(ctx, &resourcev1.ListResourcesRequest{PageSize: 1})
	require.NoError(t, err)
	raw, err := base64.RawURLEncoding.DecodeString(first.GetNextPageToken())
	require.NoError(t, err)
	require.NotContains(t, string(raw), "targets", "the text of a page token")
	rest, err := ann.ListResources(ctx, &resourcev1.ListResourcesRequest{
		PageSize:  1,
		PageToken: first.GetNextPageToken(),
	})
	require.NoError(t, err)
	require.NotEqual(t, first.GetResources()[0].GetName(), rest.GetResources()[0].GetName())
}
