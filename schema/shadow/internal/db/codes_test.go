package db

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACodeIsALiteralInAStatement(t *testing.T) {
	t.Parallel()
	require.Equal(t, `WHERE state = 2 AND behaviour IN (3, 5) AND shapes <> '{}'`,
		Codes(`WHERE state = {deleting} AND behaviour IN ({cascade_delete}, {async_cascade_delete}) AND shapes <> '{}'`))
	require.PanicsWithValue(t, `no code is called {going} in "state = {going}"`, func() { Codes(`state = {going}`) })
}

// positionalSix finds a sixth positional parameter: such a statement names its arguments.
var positionalSix = regexp.MustCompile(`\$[6-9]\b|\$[1-9]\d`)

// bareCodes find a number where a code has to be named.
var bareCodes = []*regexp.Regexp{
	regexp.MustCompile(`\b(action|a|behaviour|state|how|blocking)\s*(=|<>|<|>|IN\s*\()\s*\d`),
	regexp.MustCompile(`\bflags\s*&\s*\d`),
	regexp.MustCompile(`ARRAY \[\d[\d, ]*\]\) AS a\b`),
	// The list of values of what is inserted where a code is a column.
	regexp.MustCompile(`INSERT INTO dbcontroller\.work \(action\b[^)]*\)\s*(SELECT( DISTINCT)?|VALUES \()\s*\d`),
	regexp.MustCompile(`INSERT INTO dbcontroller\.(change|shadow) \([^)]*\bstate\b[^)]*\)\s*SELECT [^F]*\bkind_id, \d`),
}

func TestStatementsNameCodesAndManyArguments(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, f.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			require.NotRegexp(t, positionalSix, literal.Value, "%s: name the arguments (named.go)", set.Position(literal.Pos()))
			for _, bare := range bareCodes {
				found := bare.FindString(literal.Value)
				require.Empty(t, found, "%s: name the code (codes.go)", set.Position(literal.Pos()))
			}
			return true
		})
	}
}
