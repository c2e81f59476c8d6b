package address

import (
	"strings"
)

// frames are the words that gRPC puts around the error of a connection.
var frames = []string{`connection error: desc = "`, `transport: `, `Error while dialing: `} //nolint:misspell // as gRPC spells it

// Reason returns the text of a status of a connection that failed without the words that gRPC puts around the
// error, and whether it had such words: it is not the answer of a server then.
func Reason(text string) (string, bool) {
	inner, framed := strings.CutPrefix(text, frames[0])
	if !framed {
		return text, false
	}
	inner = strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `\"`, `"`)
	for _, frame := range frames[1:] {
		inner = strings.TrimPrefix(inner, frame)
	}
	return Alert(inner), true
}

// unanswered is gRPC's error for a server that accepts a connection and is silent; certificates have no part
// in it.
const unanswered = "authentication handshake failed: context deadline exceeded"

// Alert returns the text of an error of TLS, with clear words for an alert from the other end: Go says
// "remote error: tls: bad certificate", and with TLS 1.3 that reaches a client as an "error reading server
// preface".
func Alert(text string) string {
	_, alert, sent := strings.Cut(text, "remote error: tls: ")
	switch {
	case text == unanswered:
		return "it takes the connection, and does not answer: its process, or its machine, may stand still"
	case !sent:
		return text
	case strings.Contains(alert, "certificate required"):
		return "the other end wants a certificate: it takes tokens with --tokens only"
	case strings.Contains(alert, "certificate"):
		return "the other end refused the certificate of this one (" + alert +
			"): it is expired, revoked, not yet valid, or of an authority that the ca.crt there lacks"
	}
	return "the other end ended the handshake: " + alert
}
