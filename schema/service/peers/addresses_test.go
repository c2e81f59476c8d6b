package peers

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema/service/outcome"
)

func TestErrorsOfConnectionsShowNoHosts(t *testing.T) {
	for _, text := range []string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:4001: connect: connection refused"`, //nolint:misspell // as gRPC says it
		`dial tcp: lookup db.internal.example.org on 10.0.0.2:53: no such host`,
		`read tcp 10.0.0.1:1->10.0.0.2:2: connection reset by peer`,
		`dial tcp [::1]:7001: i/o timeout`,
		`lookup db.internal.example.org: no such host`,
	} {
		err := withoutAddresses(status.Error(codes.Unavailable, text))
		require.Equal(t, codes.Unavailable, status.Code(err), text)
		require.NotRegexp(t, `\d+\.\d+\.\d+\.\d+|internal|::1`, status.Convert(err).Message())
		require.Contains(t, err.Error(), strings.TrimSuffix(text, `"`)[len(text)-11:], "why it failed")
		require.NotContains(t, err.Error(), "desc =", "words of gRPC")
	}
	require.NoError(t, withoutAddresses(nil))
	require.ErrorIs(t, withoutAddresses(io.EOF), io.EOF)
	said := outcome.Because("BLOCKED", errors.New("dial tcp 127.0.0.1:1: somebody's own words"))
	require.Equal(t, said, withoutAddresses(said))
}
