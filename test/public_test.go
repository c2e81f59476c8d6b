package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The documentation of the packages for applications can be read without others: their exported declarations
// name no package of the project but the vocabulary, the messages, and the client.
func TestPublicPackagesNameNoOthers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"client", "controller", "embed", "dbctest"} {
		files := token.NewFileSet()
		paths, err := filepath.Glob(filepath.Join("..", name, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, paths)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.FileExports(f)
			for _, s := range foreign(f) {
				t.Errorf("%s: an exported declaration names %s of the project", files.Position(s.Pos()), s.X)
			}
		}
	}
}

// foreign returns the names of the project's other packages in a file.
func foreign(f *ast.File) (found []*ast.SelectorExpr) {
	others := map[string]bool{}
	for _, i := range f.Imports {
		at := strings.Trim(i.Path.Value, `"`)
		of, ours := strings.CutPrefix(at, module+"/")
		if !ours || of == "schema" || of == "client" || strings.HasPrefix(of, "schema/schemapb/") {
			continue
		}
		local := path.Base(at)
		if i.Name != nil {
			local = i.Name.Name
		}
		others[local] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if d, ok := n.(*ast.FuncDecl); ok {
			if d.Body = nil; d.Recv != nil &&
				!ast.IsExported(strings.TrimLeft(types.ExprString(d.Recv.List[0].Type), "*")) {
				return false
			}
		}
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && others[x.Name] {
				found = append(found, s)
			}
		}
		return true
	})
	return found
}
