package identity

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A server that answers with an error of megabytes, in its message or its details, or with headers of
// megabytes, is refused: the text would be in logs and in memory with each try.
func TestAnErrorOfAServerIsShort_I20(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Grpc-Message", "Grpc-Status-Details-Bin", "X-Anything"} {
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "14")
			w.Header().Set(header, strings.Repeat("A", 8<<20))
			w.WriteHeader(http.StatusOK)
		})
		conn, err := grpc.NewClient("passthrough:hostile", append(dialOptions(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				here, there := net.Pipe()
				go (&http2.Server{}).ServeConn(there, &http2.ServeConnOpts{Handler: answer}) //nolint:staticcheck // a connection of its own, without a listener
				return here, nil
			}))...)
		require.NoError(t, err)
		err = conn.Invoke(t.Context(), "/a/B", &emptypb.Empty{}, &emptypb.Empty{})
		require.Error(t, err)
		require.Less(t, len(err.Error()), 1000, header)
		require.Empty(t, status.Convert(err).Details(), header)
		require.NoError(t, conn.Close())
	}
}
