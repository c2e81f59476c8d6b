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

// An alert about a certificate is put into words that a reader of the log, or of an error, can act upon.
func TestARefusedCertificateIsSaid(t *testing.T) {
	got, _ := address.Reason(
		`connection error: desc = "error reading server preface: remote error: tls: expired certificate"`)
	require.Equal(t,
		"the other end refused the certificate of this one (expired certificate): it is expired, revoked, not yet valid, or of an authority that the ca.crt there lacks", got)
	require.Contains(t, address.Alert("remote error: tls: bad certificate"),
		"the other end refused the certificate of this one (bad certificate)")
	require.Equal(t, "the other end wants a certificate: it takes tokens with --tokens only",
		address.Alert("remote error: tls: certificate required"))
	got, _ = address.Reason(
		`connection error: desc = "transport: authentication handshake failed: context deadline exceeded"`)
	require.Equal(t, "it takes the connection, and does not answer: its process, or its machine, may stand still", got)
	require.Equal(t, "the other end ended the handshake: protocol version not supported",
		address.Alert("remote error: tls: protocol version not supported"))
	require.Equal(t, "tls: client didn't provide a certificate",
		address.Alert("tls: client didn't provide a certificate"))
}
