package db

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACodeIsALiteralInAStatement(t *testing.T) {
	t.Parallel()
	require.Equal(t, `WHERE state = 2 AND behaviour IN (3, 5) AND shapes <> '{}'`,
		Codes(
			`WHERE state = {deleting} AND behaviour IN ({cascade_delete}, {async_cascade_delete}) AND shapes <> '{}'`))
	require.PanicsWithValue(t, `no code is called {going} in "state = {going}"`, func() { Codes(`state = {going}`) })
}

// positionalSix finds a sixth positional parameter: such a statement names its arguments.
var positionalSix = regexp.MustCompile(`\$[6-9]\b|\$[1-9]\d`)

// bareCodes find a number where a code has to be named.
var bareCodes = []*regexp.Regexp{
	regexp.MustCompile(`\b(action|a|behaviour|state|how|blocking)\s*(=|<>|<|>|IN\s*\()\s*\d`),
	regexp.MustCompile(`\bflags\s*&\s*\d`),
	regexp.MustCompile(`ARRAY \[\d[\d, ]*\]\) AS a\b`),
	// The select list of inserted values, for a code that is a column.
	regexp.MustCompile(`INSERT INTO dbcontroller\.work \(action\b[^)]*\)\s*(SELECT( DISTINCT)?|VALUES \()\s*\d`),
	regexp.MustCompile(`INSERT INTO dbcontroller\.(change|shadow) \([^)]*\bstate\b[^)]*\)\s*SELECT [^F]*\bkind_id, \d`),
}

func TestStatementsNameCodesAndManyArguments(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../*/*.go") // of all rooms
	require.NoError(t, err)
	statements := map[string]int{} // by room
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if strings.Contains(literal.Value, "dbcontroller.") {
				statements[filepath.Base(filepath.Dir(name))]++
			}
			require.NotRegexp(t, positionalSix, literal.Value, "%s: name the arguments (named.go)",
				set.Position(literal.Pos()))
			for _, bare := range bareCodes {
				found := bare.FindString(literal.Value)
				require.Empty(t, found, "%s: name the code (codes.go)", set.Position(literal.Pos()))
			}
			return true
		})
	}
	for _, room := range []string{
		"db", "gate", "read", "target", "write", "cascade", "owner", "deletion",
		"verify", "admin",
	} {
		require.Positive(t, statements[room], "no statement of %s was read", room)
	}
}
