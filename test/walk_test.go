package test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	deleteEntry = "(*" + module + "/schema/shadow/internal/deletion.Deleter).Delete"
	// mostFiles and mostReturns bound the walk of a delete. When the store was one package, it was in 28 files, with 52 returns.
	mostFiles, mostReturns = 14, 26
)

// A newcomer reads a delete from its entry to its end in few files, and seldom returns to one.
func TestTheWalkOfADeleteIsShort(t *testing.T) {
	t.Parallel()
	w := newSourceWalk(t, "schema/shadow")
	require.Contains(t, w.functions, deleteEntry)
	w.enter(deleteEntry)
	entered, returns := w.visits()
	require.LessOrEqual(t, entered, mostFiles, "files: %s", strings.Join(w.path, " → "))
	require.LessOrEqual(t, returns, mostReturns, "returns: %s", strings.Join(w.path, " → "))
}

// sourceWalk reads functions depth-first, in the order of their calls, and each function once.
type sourceWalk struct {
	functions map[string]sourceFunction // by full name
	read      map[string]bool
	path      []string // the files, in the order in which they are entered
}

type sourceFunction struct {
	body *ast.BlockStmt
	uses map[*ast.Ident]types.Object
	file string
}

type compiledPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// newSourceWalk reads the functions of the packages in a directory, of this machine's platform.
func newSourceWalk(t *testing.T, dir string) *sourceWalk {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-trimpath", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./"+dir+"/...")
	list.Dir, list.Env = "..", append(os.Environ(), "CGO_ENABLED=0") // as the program is built: what is compiled is shared
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	var packages []compiledPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p compiledPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if exports[p.ImportPath] = p.Export; strings.HasPrefix(p.ImportPath, module+"/"+dir) {
			packages = append(packages, p)
		}
	}
	positions := token.NewFileSet()
	imports := importer.ForCompiler(positions, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	w := &sourceWalk{functions: map[string]sourceFunction{}, read: map[string]bool{}}
	for _, p := range packages {
		require.NoError(t, w.add(positions, imports, p))
	}
	return w
}

func (w *sourceWalk) add(positions *token.FileSet, imports types.Importer, p compiledPackage) error {
	files := make([]*ast.File, len(p.GoFiles))
	for i, name := range p.GoFiles {
		file, err := parser.ParseFile(positions, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files[i] = file
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, positions, files, info); err != nil {
		return err
	}
	for i, file := range files {
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if defined, ok := info.Defs[f.Name].(*types.Func); ok {
				name := strings.TrimPrefix(p.ImportPath, module+"/") + "/" + p.GoFiles[i]
				w.functions[defined.FullName()] = sourceFunction{f.Body, info.Uses, name}
			}
		}
	}
	return nil
}

func (w *sourceWalk) enter(name string) {
	w.read[name] = true
	f := w.functions[name]
	if len(w.path) == 0 || w.path[len(w.path)-1] != f.file {
		w.path = append(w.path, f.file)
	}
	ast.Inspect(f.body, func(n ast.Node) bool {
		id, _ := n.(*ast.Ident)
		if called, ok := f.uses[id].(*types.Func); ok {
			callee := called.Origin().FullName()
			if _, known := w.functions[callee]; known && !w.read[callee] {
				w.enter(callee)
			}
		}
		return true
	})
}

// visits returns the number of different files, and how often the walk returns to one that it has left.
func (w *sourceWalk) visits() (files, returns int) {
	seen := map[string]bool{}
	for _, file := range w.path {
		seen[file] = true
	}
	return len(seen), len(w.path) - len(seen)
}
