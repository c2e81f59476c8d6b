package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostMethods bounds an interface: its user implements it in a test.
const mostMethods = 5

// An interface has only the methods that its user needs of another package.
func TestInterfacesAreSmall(t *testing.T) {
	t.Parallel()
	positions, found := token.NewFileSet(), 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"test", "tools", "bin", "docs", ".git"}, name):
			return filepath.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(positions, path, nil, parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if n := methodsOf(spec); n > 0 {
					found++
					require.LessOrEqual(t, n, mostMethods, "%s: %s", name, spec.Name.Name)
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, found, 50)
}

var (
	// manyParameters is a sixth positional parameter of a statement: above five they have names
	// (pgx.StrictNamedArgs).
	manyParameters = regexp.MustCompile(`\$(?:[6-9]|[1-9][0-9])\b`)
	// bareCode compares a column of codes with a number; statements take the codes from the constants
	// (db.Codes).
	bareCode = regexp.MustCompile(`\b(?:action|behaviour|state|verdict|flags) *(?:=|<>|&|IN \() *[0-9]`)
)

// Statements can be read without a list of codes, or counting parameters.
func TestStatementsAreReadable(t *testing.T) {
	t.Parallel()
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"test", "tools", "bin", "docs", ".git"}, name):
			return filepath.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"),
			strings.HasSuffix(name, ".pb.go"):
			return nil
		}
		source, err := os.ReadFile(path) //nolint:gosec // part of the sources
		for i, line := range strings.Split(string(source), "\n") {
			if found := manyParameters.FindString(line) + bareCode.FindString(line); found != "" {
				t.Errorf("%s:%d: %s", name, i+1, found)
			}
		}
		return err
	}))
}

// methodsOf returns the number of methods that an interface declares itself.
func methodsOf(spec *ast.TypeSpec) (count int) {
	declared, ok := spec.Type.(*ast.InterfaceType)
	if !ok {
		return 0
	}
	for _, field := range declared.Methods.List {
		count += len(field.Names)
	}
	return count
}
