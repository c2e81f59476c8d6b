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

const (
	// mostMethods bounds an interface: its user implements it in a test.
	mostMethods = 5
	// medianLines and p90Lines bound the functions, with their signatures and braces.
	medianLines, p90Lines = 10, 35
)

// sizes are those of the program's own code: neither generated nor of tests.
type sizes struct {
	functions []int    // lines of each, ascending
	broad     []string // interfaces with more than mostMethods
}

// Growing functions and interfaces are divided before they are hard to read. How long a package is, its subject decides.
func TestSizesAreBounded(t *testing.T) {
	t.Parallel()
	s := measured(t)
	require.Greater(t, len(s.functions), 1000)
	require.Empty(t, s.broad, "interfaces with more than %d methods", mostMethods)
	n := len(s.functions)
	require.LessOrEqual(t, s.functions[n/2], medianLines, "the median of %d functions", n)
	require.LessOrEqual(t, s.functions[n*9/10], p90Lines, "nine of ten of %d functions", n)
}

func measured(t *testing.T) sizes {
	t.Helper()
	var s sizes
	positions := token.NewFileSet()
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
		if err == nil && !ast.IsGenerated(file) {
			s.take(positions, filepath.ToSlash(filepath.Dir(name)), file)
		}
		return err
	})
	require.NoError(t, err)
	slices.Sort(s.functions)
	return s
}

func (s *sizes) take(positions *token.FileSet, of string, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body != nil {
				s.functions = append(s.functions, positions.Position(n.End()).Line-positions.Position(n.Pos()).Line+1)
			}
		case *ast.TypeSpec:
			if methodsOf(n) > mostMethods {
				s.broad = append(s.broad, of+"."+n.Name.Name)
			}
		}
		return true
	})
}

var (
	// manyParameters is a sixth positional parameter of a statement: above five they have names (pgx.StrictNamedArgs).
	manyParameters = regexp.MustCompile(`\$(?:[6-9]|[1-9][0-9])\b`)
	// bareCode compares a column of codes with a number; statements take the codes from the constants (db.Codes).
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
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"), strings.HasSuffix(name, ".pb.go"):
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
