package address_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/address"
	"github.com/db-controller/db-controller/schema"
)

func TestAddressesAreHostAndPort(t *testing.T) {
	for _, good := range []string{
		"localhost:7001", "iam-us-west2:1", "10.0.0.1:65535", "[::1]:7001",
		"[fe80::1%eth0]:9", "[::]:7001", "a_b.svc.cluster.local.:80", "x:1",
	} {
		require.NoError(t, address.Check(good), good)
		target, err := address.Target(schema.Deployment{Address: good})
		require.NoError(t, err)
		require.Equal(t, "dns:///"+good, target)
	}
	for _, bad := range []string{
		"", "host", "host:", ":7001", "host:0", "host:65536", "host:+1", "host:-1", "host:http", "unix:///run/x.sock",
		"unix:/run/x:1", "unix-abstract:x",
		"dns:///host:1", "passthrough:///host:1", "xds:///a:1", "host:1,other:2", "a b:1", "host:1\n", "[::1:7001",
		"[]:1", "[10.0.0.1]:1", "::1:7001", "user@host:1",
		"host/path:1", "é:1", "-a:1", strings.Repeat("a", 300) + ":1",
	} {
		require.Error(t, address.Check(bad), bad)
		_, err := address.Target(schema.Deployment{Address: bad})
		require.Error(t, err)
	}
}

// Who has a network of IPv6 connects from any number of addresses.
func TestConnectionsCountByTheirNetworks(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"192.0.2.7:1": "192.0.2.7", "192.0.2.8:1": "192.0.2.8", "[::ffff:192.0.2.7]:9": "192.0.2.7", "[::1]:9": "::",
		"[2001:db8:1:2::1]:9": "2001:db8:1:2::", "[2001:db8:1:2:ffff:ffff:ffff:ffff]:10": "2001:db8:1:2::",
		"[2001:db8:1:3::1]:9": "2001:db8:1:3::", "[fe80::1%eth0]:9": "fe80::",
	} {
		at, err := netip.ParseAddrPort(from)
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddr(want), address.Network(net.TCPAddrFromAddrPort(at)), from)
	}
	require.Equal(t, netip.Addr{}, address.Network(&net.UnixAddr{Name: "/run/x.sock", Net: "unix"}))
}
