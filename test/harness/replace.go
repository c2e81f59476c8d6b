package harness

import (
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ReplaceCode replaces a piece of the source of a file, which has to be in it once, however its lines are
// broken; a file of Go has to be one afterwards. The message names the piece.
func ReplaceCode(t testing.TB, file, source, piece, by, message string) string {
	t.Helper()
	found := patternOf(piece).FindAllStringIndex(source, 2)
	require.Len(t, found, 1, message)
	out := source[:found[0][0]] + by + source[found[0][1]:]
	if strings.HasSuffix(file, ".go") {
		_, err := parser.ParseFile(token.NewFileSet(), file, out, parser.SkipObjectResolution)
		require.NoError(t, err, message)
	}
	return out
}

// space matches the white space at the edge of a piece: the line that it is on stays.
func space(text string) string {
	switch {
	case strings.Contains(text, "\n"):
		return `[ \t]*\n\s*`
	case text != "":
		return `[ \t]+`
	}
	return ""
}

// patternOf matches a piece with any white space where it has some, behind brackets, commas and periods, and
// before the ends of brackets.
func patternOf(piece string) *regexp.Regexp {
	inner := strings.TrimSpace(piece)
	at := strings.Index(piece, inner)
	var out strings.Builder
	out.WriteString(space(piece[:at]))
	for i, word := range strings.Fields(inner) {
		if i > 0 {
			out.WriteString(`\s+`)
		}
		for j, c := range word {
			if strings.ContainsRune(")}]", c) && j > 0 {
				out.WriteString(`\s*`)
			}
			out.WriteString(regexp.QuoteMeta(string(c)))
			if strings.ContainsRune("({[.,", c) && j < len(word)-1 {
				out.WriteString(`\s*`)
			}
		}
	}
	out.WriteString(space(piece[at+len(inner):]))
	return regexp.MustCompile(out.String())
}
