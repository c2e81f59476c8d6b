package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestExposuresAreThoseOfTheConfiguration(t *testing.T) {
	t.Parallel()
	c := &deploymentConfig{server: serverConfig{listen: ":7001"}}
	require.Equal(t, []exposure{
		{way: "gRPC on :7001", to: "deployments of the environment; users and operators with a certificate"},
		{
			way: "audit",
			to:  "deletes, operations and denials are in this log; reads and writes are not recorded (--audit-log)",
		},
	}, c.exposures())
	c = &deploymentConfig{
		api: apiConfig{listen: ":8443", console: true, actions: true, all: true},
		server: serverConfig{
			listen: ":7001", http: ":8080", pprof: "localhost:6060", tokens: "tokens.yaml",
			reflection: true, audit: auditLogConfig{sink: "audit.log"},
		},
	}
	require.Equal(t, []exposure{
		{
			way: "gRPC on :7001",
			to:  "deployments of the environment; users and operators with a certificate, or a token of tokens.yaml",
		},
		{way: "gRPC reflection", to: "users and operators"},
		{way: "HTTPS API on :8443", to: "users with a token of tokens.yaml"},
		{way: "console on :8443", to: "users with a token, by their rights; it shows and changes all deployments"},
		{way: "HTTP on :8080", to: "everybody who reaches the address, without authentication: health and metrics"},
		{way: "profiles on localhost:6060", to: "everybody on this machine"},
	}, c.exposures())
	for address, by := range map[string]string{
		"127.0.0.1:1": "everybody on this machine",
		"[::1]:1":     "everybody on this machine", "10.1.2.3:1": "everybody who reaches the address",
	} {
		require.Equal(t, by, reachedBy(address))
	}
}

func TestExposureOfRights(t *testing.T) {
	t.Parallel()
	grants := []schema.AccessGrant{{}, {}}
	require.Equal(t, exposure{way: "rights", to: "no user, and every operator: no rights are declared"},
		exposureOf(nil))
	require.True(t, exposureOf(&schema.Rights{Allow: true, Grants: grants}).open)
	require.False(t, exposureOf(&schema.Rights{Allow: true, Deny: true, Grants: grants}).open)
	require.Equal(t, "users by 2 grants; every operator may do everything",
		exposureOf(&schema.Rights{Deny: true, Grants: grants}).to)
	require.Equal(t, "users by 2 grants; 1 operator by their verbs",
		exposureOf(&schema.Rights{Deny: true, Grants: grants, Operators: make([]schema.Operator, 1)}).to)
}
