package outcome

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
)

// definite reports whether a code is final: the same request is refused again.
func definite(c codes.Code) bool {
	return slices.Contains([]codes.Code{
		codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists,
		codes.InvalidArgument, codes.PermissionDenied, codes.OutOfRange,
	}, c)
}

// ofReferences begins the meaning of a reason for which a reference is refused.
const ofReferences = "a reference: its target "

// reasonTable returns the table of docs/guarantees.md: definite reasons first, and in each part those of
// refused references last.
func reasonTable() string {
	var b strings.Builder
	b.WriteString("| reason | code | meaning |\n| --- | --- | --- |\n")
	for _, yes := range []bool{true, false} {
		part := map[bool]string{true: "definite", false: "not definite"}[yes]
		var references strings.Builder
		fmt.Fprintf(&b, "| ***%s*** | | |\n", part)
		for _, a := range reasons {
			if definite(a.code) != yes {
				continue
			}
			if rest, ok := strings.CutPrefix(a.means, ofReferences); ok {
				fmt.Fprintf(&references, "| `%s` | `%v` | … %s |\n", a.reason, code.Code(a.code), rest)
			} else {
				fmt.Fprintf(&b, "| `%s` | `%v` | %s |\n", a.reason, code.Code(a.code), a.means)
			}
		}
		fmt.Fprintf(&b, "| *%s, of a reference* | | *its target …* |\n%s", part, references.String())
	}
	return b.String()
}

var write = flag.Bool("write", false, "write the table of reasons into docs/guarantees.md")

// docs/guarantees.md has the table of the code.
func TestTheTableOfReasonsIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	const path, begins, ends = "../../../docs/guarantees.md", "<!-- reasons, written by make generate -->\n",
		"<!-- end of reasons -->\n"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begins)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, ends)
	require.True(t, ok)
	want := before + begins + reasonTable() + ends + after
	if *write {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644)) //nolint:gosec // a document
		return
	}
	require.Equal(t, want, string(text), "make generate writes it")
}
