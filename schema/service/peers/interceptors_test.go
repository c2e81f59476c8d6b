package peers

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// The callers of a deployment do not learn the addresses of others from the errors of its calls and watches.
func TestErrorsOfCallsAndWatchesShowNoAddresses(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	p := New(self, nil)
	p.SetKnown(&databaseDouble{database: uid(9)}, &databaseDouble{})
	conn, err := grpc.NewClient(address,
		append(p.interceptors(other), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := schemav1.NewSchemaServiceClient(conn)
	_, err = client.ConfirmBlockades(t.Context(), &schemav1.ConfirmBlockadesRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotContains(t, err.Error(), address)
	require.ErrorContains(t, err, "connect")
	var full interface{ Unwrap() error }
	require.ErrorAs(t, err, &full)
	require.ErrorContains(t, full.Unwrap(), address, "the log has the address")
	stream, err := client.WatchImportedServiceDeletions(t.Context(), &schemav1.WatchImportedServiceDeletionsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotContains(t, err.Error(), address)
}

// A broken stream shows no address either.
func TestErrorsOfStreamsShowNoAddresses(t *testing.T) {
	t.Parallel()
	s := &addresslessStream{&clientStream{err: status.Error(codes.Unavailable,
		"read tcp 10.0.0.1:1->10.0.0.2:2: connection reset by peer")}, withoutAddresses}
	err := s.RecvMsg(nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotContains(t, err.Error(), "10.0.0")
	require.ErrorContains(t, err, "connection reset by peer")
}

type clientStream struct {
	grpc.ClientStream
	err error
}

func (s *clientStream) RecvMsg(any) error { return s.err }
