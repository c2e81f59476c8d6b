package address

import (
	"strings"
)

// frames are the words that gRPC puts around the error of a connection.
var frames = []string{`connection error: desc = "`, `transport: `, `Error while dialing: `} //nolint:misspell // as gRPC spells it

// Reason returns the text of a status of a connection that failed without the words that gRPC puts around the error, and whether it
// had such words: it is not the answer of a server then.
func Reason(text string) (string, bool) {
	inner, framed := strings.CutPrefix(text, frames[0])
	if !framed {
		return text, false
	}
	inner = strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `\"`, `"`)
	for _, frame := range frames[1:] {
		inner = strings.TrimPrefix(inner, frame)
	}
	return inner, true
}
