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
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// walks are the paths that a newcomer reads first, with bounds of the different files on each and of the
// returns to a file that was left. A path that grows past its bound is looked at, and divided or accepted.
var walks = []struct {
	what, entry    string
	files, returns int
}{
	{"a put with references", "(*" + module + "/schema/shadow/internal/write.Writer).Save", 48, 100},
	{"a delete", "(*" + module + "/schema/shadow/internal/deletion.Deleter).Delete", 28, 60},
	{"acting upon a deletion elsewhere", "(*" + module + "/schema/shadow/internal/follow.Follower).ActFor", 32, 76},
}

// A newcomer reads the main paths of the store from their entry to their end in few files, and seldom returns
// to one. Nothing hides a step: a function that is stored in a field is one of several, and so is an
// implementation of an interface.
func TestTheMainPathsOfTheStoreAreShort(t *testing.T) {
	t.Parallel()
	w := newSourceWalk(t, "schema/shadow")
	for _, c := range walks {
		w.begin()
		require.Contains(t, w.functions, c.entry)
		w.enter(c.entry)
		files, returns := w.visits()
		require.LessOrEqual(t, files, c.files, "%s: files: %s", c.what, strings.Join(w.path, " → "))
		require.LessOrEqual(t, returns, c.returns, "%s: returns: %s", c.what, strings.Join(w.path, " → "))
		require.Empty(t, w.hidden, "%s: fields with one function, and interfaces with one implementation", c.what)
	}
}

// sourceWalk reads functions depth-first, in the order of their calls, and each function once: also those
// that are stored in fields, and the methods of interfaces with one implementation.
type sourceWalk struct {
	functions map[string]sourceFunction // by full name
	stored    map[*types.Var][]ast.Expr // the values that fields of functions get
	uses      map[*ast.Ident]types.Object
	packages  map[*types.Package]bool
	named     []types.Type // of the packages

	read   map[string]bool
	path   []string // the files, in the order in which they are entered
	hidden []string // the fields and interfaces that hide a single function
}

type sourceFunction struct {
	body *ast.BlockStmt
	file string
}

type compiledPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// newSourceWalk reads the functions of the packages in a directory, of this machine's platform.
func newSourceWalk(t *testing.T, dir string) *sourceWalk {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-trimpath", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles", "./"+dir+"/...")
	list.Dir, list.Env = "..", append(os.Environ(), "CGO_ENABLED=0") // as make build does: the build cache is shared
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	var packages []compiledPackage // each after its imports
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
	compiled := importer.ForCompiler(positions, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	w := &sourceWalk{
		functions: map[string]sourceFunction{}, stored: map[*types.Var][]ast.Expr{},
		uses: map[*ast.Ident]types.Object{}, packages: map[*types.Package]bool{},
	}
	imports := &sources{compiled: compiled, checked: map[string]*types.Package{}}
	for _, p := range packages {
		require.NoError(t, w.add(positions, imports, p))
	}
	return w
}

// sources imports packages that were read from their sources as those, so that an object is one in all of
// them.
type sources struct {
	compiled types.Importer
	checked  map[string]*types.Package
}

func (s *sources) Import(path string) (*types.Package, error) {
	if p := s.checked[path]; p != nil {
		return p, nil
	}
	return s.compiled.Import(path)
}

func (w *sourceWalk) add(positions *token.FileSet, imports *sources, p compiledPackage) error {
	files := make([]*ast.File, len(p.GoFiles))
	for i, name := range p.GoFiles {
		file, err := parser.ParseFile(positions, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files[i] = file
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: w.uses}
	checked, err := (&types.Config{Importer: imports}).Check(p.ImportPath, positions, files, info)
	if err != nil {
		return err
	}
	imports.checked[p.ImportPath], w.packages[checked] = checked, true
	for _, name := range checked.Scope().Names() {
		if t, ok := checked.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			w.named = append(w.named, t.Type())
		}
	}
	for i, file := range files {
		name := strings.TrimPrefix(p.ImportPath, module+"/") + "/" + p.GoFiles[i]
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Body != nil {
				w.functions[info.Defs[f.Name].(*types.Func).FullName()] = sourceFunction{f.Body, name}
			}
		}
		ast.Inspect(file, w.store)
	}
	return nil
}

// store notes the values of fields: of composite literals, and of assignments.
func (w *sourceWalk) store(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		w.storeIn(n.Key, n.Value)
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if s, ok := left.(*ast.SelectorExpr); ok && len(n.Rhs) == len(n.Lhs) {
				w.storeIn(s.Sel, n.Rhs[i])
			}
		}
	}
	return true
}

func (w *sourceWalk) storeIn(field ast.Expr, value ast.Expr) {
	id, _ := field.(*ast.Ident)
	if v, ok := w.uses[id].(*types.Var); ok && v.IsField() {
		w.stored[v] = append(w.stored[v], value)
	}
}

func (w *sourceWalk) begin() { w.read, w.path, w.hidden = map[string]bool{}, nil, nil }

func (w *sourceWalk) enter(name string) {
	if w.read[name] {
		return
	}
	w.read[name] = true
	f := w.functions[name]
	if len(w.path) == 0 || w.path[len(w.path)-1] != f.file {
		w.path = append(w.path, f.file)
	}
	w.inspect(f.body)
}

func (w *sourceWalk) inspect(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			w.follow(w.uses[id])
		}
		return true
	})
}

// follow enters a function, the functions that are stored in a field, or the one implementation of a method.
func (w *sourceWalk) follow(used types.Object) {
	switch used := used.(type) {
	case *types.Var:
		if used.IsField() {
			w.followField(used.Origin())
		}
	case *types.Func:
		name := used.Origin().FullName()
		if _, known := w.functions[name]; known {
			w.enter(name)
			return
		}
		if recv := used.Signature().Recv(); recv != nil {
			if of, ok := recv.Type().(*types.Named); ok && types.IsInterface(of) && of.TypeArgs().Len() == 0 &&
				w.packages[of.Obj().Pkg()] {
				w.followMethod(of, used.Name())
			}
		}
	}
}

func (w *sourceWalk) followField(field *types.Var) {
	found := 0
	for _, value := range w.stored[field] {
		if id, ok := value.(*ast.Ident); ok {
			if v, ok := w.uses[id].(*types.Var); ok && !v.IsField() {
				found += 2 // a parameter: each caller may give another function
			}
		}
		ast.Inspect(value, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				found++
				w.inspect(n.Body)
				return false
			case *ast.CallExpr: // of a constructor, whose arguments may be functions
				for _, arg := range n.Args {
					ast.Inspect(arg, func(n ast.Node) bool { return w.followValue(n, &found) })
				}
				return false
			}
			return w.followValue(n, &found)
		})
	}
	if _, ok := field.Type().Underlying().(*types.Signature); ok && found == 1 && w.packages[field.Pkg()] {
		w.hidden = append(w.hidden, field.Pkg().Name()+": the field "+field.Name())
	}
}

func (w *sourceWalk) followValue(n ast.Node, found *int) bool {
	id, ok := n.(*ast.Ident)
	if f, is := w.uses[id].(*types.Func); ok && is && w.functions[f.Origin().FullName()].body != nil {
		*found++
		w.enter(f.Origin().FullName())
	}
	return true
}

func (w *sourceWalk) followMethod(of *types.Named, name string) {
	var found []string
	for _, t := range w.named {
		if types.IsInterface(t) || !types.Implements(types.NewPointer(t), of.Underlying().(*types.Interface)) {
			continue
		}
		if m, _, _ := types.LookupFieldOrMethod(types.NewPointer(t), true, of.Obj().Pkg(), name); m != nil {
			if name := m.(*types.Func).Origin().FullName(); w.functions[name].body != nil {
				found = append(found, name)
			}
		}
	}
	if len(found) == 1 {
		w.hidden = append(w.hidden, of.Obj().Pkg().Name()+": the interface "+of.Obj().Name())
		w.enter(found[0])
	}
}

// visits returns the number of different files, and how often the walk returns to a file that it has left.
func (w *sourceWalk) visits() (files, returns int) {
	seen := slices.Compact(slices.Sorted(slices.Values(w.path)))
	return len(seen), len(w.path) - len(seen)
}
