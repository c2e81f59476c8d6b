package address_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/schema"
)

func TestAddressesAreHostAndPort(t *testing.T) {
	for _, good := range []string{"localhost:7001", "iam-us-west2:1", "10.0.0.1:65535", "[::1]:7001", "[fe80::1%eth0]:9", "[::]:7001", "a_b.svc.cluster.local.:80", "x:1"} {
		require.NoError(t, address.Check(good), good)
		target, err := address.Target(schema.Deployment{Address: good})
		require.NoError(t, err)
		require.Equal(t, "dns:///"+good, target)
	}
	for _, bad := range []string{
		"", "host", "host:", ":7001", "host:0", "host:65536", "host:+1", "host:-1", "host:http", "unix:///run/x.sock", "unix:/run/x:1", "unix-abstract:x",
		"dns:///host:1", "passthrough:///host:1", "xds:///a:1", "host:1,other:2", "a b:1", "host:1\n", "[::1:7001", "[]:1", "[10.0.0.1]:1", "::1:7001", "user@host:1",
		"host/path:1", "é:1", "-a:1", strings.Repeat("a", 300) + ":1",
	} {
		require.Error(t, address.Check(bad), bad)
		_, err := address.Target(schema.Deployment{Address: bad})
		require.Error(t, err)
	}
}
