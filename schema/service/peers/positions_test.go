package peers

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// positionsDouble has the positions that a deployment's database stores.
type positionsDouble struct {
	sync.Mutex
	stored map[schema.DeploymentID]string
	err    error
}

func (d *positionsDouble) Position(_ context.Context, of schema.DeploymentID) (string, error) {
	d.Lock()
	defer d.Unlock()
	return d.stored[of], d.err
}

func (d *positionsDouble) KeepPosition(_ context.Context, of schema.DeploymentID, was, token string) (bool, error) {
	d.Lock()
	defer d.Unlock()
	if d.err != nil || d.stored[of] != was {
		return false, d.err
	}
	d.stored[of] = token
	return true, nil
}

// deletionsServer tells the tokens of one stream, and refuses a token that is ahead.
type deletionsServer struct {
	schemav1.UnimplementedSchemaServiceServer
	tokens []string
	ahead  string
	told   []string // by the watches, in order
}

func (s *deletionsServer) WatchImportedServiceDeletions(req *schemav1.WatchImportedServiceDeletionsRequest, stream grpc.ServerStreamingServer[schemav1.WatchImportedServiceDeletionsResponse]) error {
	s.told = append(s.told, req.GetKeptToken())
	if req.GetKeptToken() == s.ahead {
		return status.Error(codes.OutOfRange, "an older copy")
	}
	for _, token := range s.tokens {
		if err := stream.Send(&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Bookmark{
			Bookmark: &schemav1.Bookmark{ResumeToken: token},
		}}); err != nil {
			return err
		}
	}
	return nil
}

// watching returns peers that are connected to a server of deletions.
func watching(t *testing.T, server *deletionsServer) *Peers {
	t.Helper()
	listener, served := bufconn.Listen(1<<16), grpc.NewServer()
	schemav1.RegisterSchemaServiceServer(served, server)
	go func() { _ = served.Serve(listener) }()
	t.Cleanup(served.Stop)
	conn, err := grpc.NewClient("passthrough:b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
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

// A watch tells the position that is stored, and replaces it by those that it is told; a refused one stays, and is told again.
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

// A position that another stream has stored meanwhile is not replaced: the stream ends, and the next one tells it. While the database
// fails no watch begins, and a running one goes on.
func TestAPositionThatWasNotToldStays_I2(t *testing.T) {
	t.Parallel()
	positions := &positionsDouble{stored: map[schema.DeploymentID]string{other: "other stream"}}
	k := &keptPosition{of: other, store: positions, token: "told"}
	require.ErrorContains(t, k.replace(t.Context(), "new"), "another watch")
	require.Equal(t, "other stream", positions.stored[other])
	positions.err = errors.New("no database")
	require.NoError(t, k.replace(t.Context(), "new"))
	p := New(self, nil)
	p.SetPositions(positions)
	_, err := p.keptPosition(t.Context(), other)
	require.ErrorIs(t, err, positions.err)
	own, err := p.keptPosition(t.Context(), self)
	require.NoError(t, err)
	require.NoError(t, own.replace(t.Context(), "new"), "the own database is not compared with itself")
}
