package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ofNoRequest are the functions, by package, whose lines belong to the work of the process: no request calls
// them.
var ofNoRequest = map[string][]string{
	"envregistry/server": {"RunTidy", "Follow"},
	"schema/shadow/internal/admin": {
		"CleanUpDecommissioned", "RunTidy", "FollowEpochs", "RunAudits", "runAudit",
		"RunStatistics", "analyzeGrown",
	},
	"schema/shadow/internal/deletedrows": {"RunDeletedRows"},
	"schema/shadow/internal/db":          {"RunNotifications"},
	"schema/shadow/internal/cascade":     {"RunProgress", "Close"},
	"schema/shadow/internal/standby":     {"report"},
	"schema/shadow/internal/rights":      {"Acquire", "RunRequests", "look", "ask", "settleBeside"},
	"schema/shadow/internal/verify":      {"RepairAttempts"},
}

// Each line that a request can cause names the request, also a rare line that no test causes.
func TestLinesOfRequestsNameTheRequest(t *testing.T) {
	t.Parallel()
	lines, none := 0, map[string]bool{}
	for _, root := range []string{"schema/service", "schema/shadow", "envregistry/server"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			of := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), ".."+string(filepath.Separator)))
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(f, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok || !writesLine(call) {
						return true
					}
					lines++
					switch named := slices.ContainsFunc(call.Args, isRequestField); {
					case slices.Contains(ofNoRequest[of], f.Name.Name):
						none[of+"."+f.Name.Name] = true
					case !named:
						t.Errorf(
							"%s: %s logs without requestid.Field(ctx); a function of no request is listed in ofNoRequest", files.Position(call.Pos()), f.Name.Name)
					}
					return true
				})
			}
			return nil
		})
		require.NoError(t, err)
	}
	require.Greater(t, lines, 30)
	for of, names := range ofNoRequest {
		for _, name := range names {
			require.True(t, none[of+"."+name], "%s.%s logs nothing: remove it from ofNoRequest", of, name)
		}
	}
}

// writesLine reports whether a call is one of a logger's, whose field or variable is called log.
func writesLine(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log"}, method.Sel.Name) {
		return false
	}
	name := ""
	switch of := method.X.(type) {
	case *ast.SelectorExpr:
		name = of.Sel.Name
	case *ast.Ident:
		name = of.Name
	}
	return slices.Contains([]string{"log", "logger"}, strings.ToLower(name))
}

func isRequestField(arg ast.Expr) bool {
	call, ok := arg.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := method.X.(*ast.Ident)
	return ok && of.Name == "requestid" && method.Sel.Name == "Field"
}
