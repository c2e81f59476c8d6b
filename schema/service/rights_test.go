package service_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"
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
)

const limited = services + `
---
rights:
  default: deny
  grants:
    - { group: team-a, verbs: [read, write, delete], kind: a.example.com/Target, name: targets/a-* }
    - { group: team-a, verbs: [refer], name: targets/shared }
`

// Each method that users may call has an entry in the table of rights: one that is missing would be denied to everybody.
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

func newGuarded(t *testing.T, issuer *harness.Issuer) *guarded {
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
	server, err := service.NewServer(service.Config{Store: store, Peers: g.peers, Credentials: credentials, Health: health.NewServer(), Logger: zap.NewNop(), Tokens: tokens})
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
	g.peers.Update(&schema.Environment{Services: f.Services, Rights: f.Rights, Deployments: []schema.Deployment{{DeploymentID: g.self, Version: "v1"}}})
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

// People come with signed tokens instead of certificates, and do what the grants of their groups allow.
func TestPeopleComeWithTokensAndHaveTheRightsOfTheirGroups(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	everything := strings.Split(limited, "rights:")[0]
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
		"no token": g.client(), "expired": g.as(issuer.File("ann", "db", -time.Hour)), "of another audience": g.as(issuer.File("ann", "other", time.Hour)),
	} {
		_, err := c.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/a-1"})
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%s: %v", name, err)
	}
	ann := g.as(issuer.File("ann", "db", time.Hour, "team-a"))
	require.Equal(t, []string{"targets/a-1", "targets/a-2", "targets/a-3"}, listed(ctx, t, ann, ""))
	require.Equal(t, []string{"targets/a-3", "targets/a-2", "targets/a-1"}, listed(ctx, t, ann, "name desc"))
	require.Empty(t, listed(ctx, t, root, ""), "who has no grant sees nothing")

	for name, code := range map[string]codes.Code{"a-1": codes.OK, "a-9": codes.NotFound, "b-1": codes.PermissionDenied, "b-9": codes.PermissionDenied} {
		_, err := ann.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/" + name})
		require.Equal(t, code, status.Code(err), name)
	}
	_, err = ann.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/b-1"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))

	// New references need the right to refer; one that is held already does not.
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
	_, err = g.as(issuer.File("ann", "db", time.Hour, "team-a")).PutResource(ctx, target("a-4"))
	require.NoError(t, err)
	event, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, "targets/a-4", event.GetUpsert().GetName())
	g.declare(strings.ReplaceAll(limited, "targets/a-*", "targets/a-1"))
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.OutOfRange, status.Code(err))
	require.Equal(t, []string{"targets/a-1"}, listed(ctx, t, ann, ""))
}

// listed reads all pages of two resources each; every page but the last is full.
func listed(ctx context.Context, t *testing.T, c resourcev1.ResourceServiceClient, order string) (names []string) {
	t.Helper()
	for token := ""; ; {
		page, err := c.ListResources(ctx, &resourcev1.ListResourcesRequest{PageSize: 2, PageToken: token, OrderBy: order})
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
