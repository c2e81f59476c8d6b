package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// positionsDouble has the positions that a deployment's database stores.
type positionsDouble struct {
	sync.Mutex
	stored     map[schema.DeploymentID]string
	err        error
	statements int
}

func (d *positionsDouble) Position(_ context.Context, of schema.DeploymentID) (string, error) {
	d.Lock()
	defer d.Unlock()
	return d.stored[of], d.err
}

func (d *positionsDouble) HasPosition(ctx context.Context, of schema.DeploymentID) (bool, error) {
	token, err := d.Position(ctx, of)
	return token != "", err
}

func (d *positionsDouble) KeepPositions(_ context.Context, all []peer.Position) ([]bool, error) {
	d.Lock()
	defer d.Unlock()
	if d.statements++; d.err != nil {
		return nil, d.err
	}
	kept := make([]bool, len(all))
	for i, p := range all {
		if kept[i] = d.stored[p.Of] == p.Was; kept[i] {
			d.stored[p.Of] = p.Token
		}
	}
	return kept, nil
}

// deletionsServer tells the tokens of one stream, and refuses a token that is ahead.
type deletionsServer struct {
	schemav1.UnimplementedSchemaServiceServer
	tokens []string
	ahead  string
	told   []string // by the watches, in order
}

func (s *deletionsServer) WatchImportedServiceDeletions(req *schemav1.WatchImportedServiceDeletionsRequest,
	stream grpc.ServerStreamingServer[schemav1.WatchImportedServiceDeletionsResponse],
) error {
	s.told = append(s.told, req.GetKeptToken())
	if req.GetKeptToken() == s.ahead {
		return status.Error(codes.OutOfRange, "an older copy")
	}
	for _, token := range s.tokens {
		if err := stream.Send(
			&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Bookmark{
				Bookmark: &schemav1.Bookmark{ResumeToken: token},
			}}); err != nil {
			return err
		}
	}
	return nil
}

// watching returns peers that are connected to a server of deletions.
func watching(t *testing.T, server schemav1.SchemaServiceServer) *Peers {
	t.Helper()
	listener, served := bufconn.Listen(1<<16), grpc.NewServer()
	schemav1.RegisterSchemaServiceServer(served, server)
	go func() { _ = served.Serve(listener) }()
	t.Cleanup(served.Stop)
	conn, err := grpc.NewClient("passthrough:b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))
	require.NoError(t, err)
	const address = "127.0.0.1:1"
	p := New(self, nil)
	p.Update(environmentOf(schema.Deployment{DeploymentID: other, Address: address}))
	p.conns[connectionKey{to: other}] = &connection{address: address, conn: conn}
	t.Cleanup(p.Close)
	return p
}

func deletionsOf(t *testing.T, p *Peers) error {
	t.Helper()
	return p.WatchDeletions(t.Context(), other, func(schema.Event[schema.Deletion]) error { return nil })
}

// A watch tells the stored position, and replaces it by the positions that it is told; a refused one stays,
// and is told again.
func TestAWatchTellsTheStoredPosition_I2(t *testing.T) {
	t.Parallel()
	server := &deletionsServer{tokens: []string{"one", "two"}, ahead: "lost"}
	p, positions := watching(t, server), &positionsDouble{stored: map[schema.DeploymentID]string{}}
	p.SetPositions(positions)
	require.ErrorContains(t, deletionsOf(t, p), "EOF")
	require.Equal(t, "one", positions.stored[other], "at once, then every few seconds")
	require.ErrorContains(t, deletionsOf(t, p), "EOF")
	positions.stored[other] = server.ahead
	for range 2 {
		require.Equal(t, codes.OutOfRange, status.Code(deletionsOf(t, p)))
	}
	require.Equal(t, server.ahead, positions.stored[other])
	require.Equal(t, []string{"", "one", "lost", "lost"}, server.told)
}

// A deployment has a stored position of another one before that one has rows for it: it reads the first token
// of a watch, and makes the call afterwards. Without a token no call is sent.
func TestAPositionIsStoredBeforeTheFirstReference_I2_I15(t *testing.T) {
	t.Parallel()
	server := &deletionsServer{ahead: "lost"}
	p, positions := watching(t, server), &positionsDouble{stored: map[schema.DeploymentID]string{}}
	invoked := 0
	call := func(method string) error {
		return p.beginWithAPosition(other)(t.Context(), method, nil, nil, p.conns[connectionKey{to: other}].conn,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				invoked++
				return nil
			})
	}
	require.NoError(t, call(schemav1.SchemaService_EstablishReferences_FullMethodName), "nothing stores positions")
	p.SetPositions(positions)
	for _, method := range beginsRelations {
		require.Error(t, call(method), "no token came")
	}
	require.Equal(t, 1, invoked)
	require.NoError(t, call(schemav1.SchemaService_ConfirmBlockades_FullMethodName))
	server.tokens = []string{"", "one", "two"}
	for range 2 {
		require.NoError(t, call(schemav1.SchemaService_EstablishReferences_FullMethodName))
	}
	require.Equal(t, "one", positions.stored[other])
	require.Equal(t, 4, invoked)
	require.Equal(t, 1, positions.statements)
	positions.err = errors.New("no database")
	require.Equal(t, codes.Unavailable, status.Code(call(schemav1.SchemaService_CheckOwners_FullMethodName)))
	require.Equal(t, 4, invoked)
}

// A position that another stream has stored meanwhile is not replaced: the stream ends, and the next one
// tells it. While the database fails no watch begins, and a running one goes on.
func TestAPositionThatWasNotToldStays_I2(t *testing.T) {
	t.Parallel()
	positions := &positionsDouble{stored: map[schema.DeploymentID]string{other: "other stream"}}
	p := New(self, nil)
	p.SetPositions(positions)
	begun := func() *keptPosition { return &keptPosition{of: other, all: p.kept, token: "told"} }
	k := begun()
	require.ErrorContains(t, k.replace(t.Context(), "new"), "another watch")
	require.Equal(t, "other stream", positions.stored[other])
	positions.err = errors.New("no database")
	require.NoError(t, begun().replace(t.Context(), "new"))
	_, err := p.keptPosition(t.Context(), other)
	require.ErrorIs(t, err, positions.err)
	own, err := p.keptPosition(t.Context(), self)
	require.NoError(t, err)
	require.NoError(t, own.replace(t.Context(), "new"), "the own database is not compared with itself")
}

// Watches of many deployments, all idle, store their positions together: the first of each at once, then all
// with a statement every few seconds. One whose token another stream has replaced ends, and no other one
// does.
func TestPositionsOfAllWatchesAreStoredTogether(t *testing.T) {
	t.Parallel()
	store := &positionsDouble{stored: map[schema.DeploymentID]string{}}
	p, now := New(self, nil), time.Now()
	p.SetPositions(store)
	p.kept.now = func() time.Time { return now }
	var watches []*keptPosition
	for i := range 50 {
		k, err := p.keptPosition(t.Context(), schema.DeploymentID{
			Service: other.Service,
			Region:  fmt.Sprintf("r%d", i),
		})
		require.NoError(t, err)
		require.NoError(t, k.replace(t.Context(), "first"))
		watches = append(watches, k)
	}
	require.Equal(t, 50, store.statements)
	for round := range 3 {
		now = now.Add(keepInterval)
		for _, k := range watches {
			require.NoError(t, k.replace(t.Context(), fmt.Sprint("bookmark ", round)))
		}
	}
	require.Equal(t, 53, store.statements)
	require.Equal(t, "bookmark 1", store.stored[watches[49].of],
		"the first watch of a round stores what the others were told in that before")
	require.Equal(t, "bookmark 2", store.stored[watches[0].of])
	store.stored[watches[7].of] = "another stream"
	watches[8].end()
	now = now.Add(keepInterval)
	require.NoError(t, watches[0].replace(t.Context(), "bookmark 3"))
	require.NoError(t, watches[9].replace(t.Context(), "bookmark 3"))
	require.ErrorContains(t, watches[7].replace(t.Context(), "bookmark 3"), "another watch")
	require.Equal(t, "another stream", store.stored[watches[7].of])
	require.Equal(t, "bookmark 1", store.stored[watches[8].of], "its stream has ended")
}
