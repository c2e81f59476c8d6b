package address_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/address"
)

func TestAReasonHasNoWordsOfGRPC(t *testing.T) {
	for text, reason := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: "dial tcp 127.0.0.1:1: connect: connection refused", //nolint:misspell // as gRPC says it
		`connection error: desc = "transport: authentication handshake failed: EOF"`:                                   "authentication handshake failed: EOF",
		`connection error: desc = "transport: a name \"ca\""`:                                                          `a name "ca"`,
	} {
		got, framed := address.Reason(text)
		require.True(t, framed, text)
		require.Equal(t, reason, got)
	}
	got, framed := address.Reason(`projects/p: not found, says "x"`)
	require.False(t, framed)
	require.Equal(t, `projects/p: not found, says "x"`, got)
}
