package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/db-controller/db-controller"

// allowed is who may import what of the project. A package that is not listed may not exist.
var allowed = map[string][]string{
	"schema":                                   {},
	"schema/schemapb/dbcontroller/schema/v1":   {},
	"schema/schemapb/dbcontroller/resource/v1": {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/schemapb/dbcontroller/admin/v1":    {},
	"schema/schemapb/dbcontroller/registry/v1": {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/wire":                              {"schema", "schema/schemapb/"},
	"schema/shadow":                            {"internal/crash", "internal/feed", "internal/postgres", "schema"},
	"schema/service":                           {"internal/identity", "internal/postgres", "schema", "schema/schemapb/", "schema/shadow", "schema/wire"},
	"migrations":                               {},
	"internal/crash":                           {},
	"internal/feed":                            {"schema"},
	"internal/identity":                        {"schema"},
	"internal/postgres":                        {},
	"internal/postgres/launcher":               {},
	"envregistry":                              {"schema", "schema/schemapb/", "schema/wire"},
	"envregistry/server":                       {"internal/feed", "internal/identity", "internal/postgres", "schema", "schema/schemapb/", "schema/wire"},
	"constraint":                               {"constraint/cache", "schema"},
	"constraint/cache":                         {},
	"handlers":                                 {"internal/crash", "schema", "schema/shadow"},
	"nodemanager":                              {"constraint", "schema"},
	"cmd/db-controller":                        {""},
	"cmd/db-controller/client":                 {"envregistry", "internal/identity", "schema", "schema/schemapb/", "schema/service", "schema/wire"},
	"cmd/db-controller/playground":             {"internal/identity", "schema"},
	"cmd/db-controller/bench":                  {"cmd/db-controller/client", "cmd/db-controller/playground", "internal/postgres", "schema", "schema/schemapb/", "schema/shadow"},
	"test":                                     {""},
	"test/harness":                             {""},
	"test/campaign":                            {""},
	"test/model":                               {},
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Imports,Deps", module+"/...").Output()
	require.NoError(t, err)
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		may, ok := allowed[name]
		if !ok {
			t.Errorf("package %s is new: say in this table and in ARCHITECTURE.md what it is for and what it may import", name)
			continue
		}
		for _, imported := range p.Imports {
			of, ours := strings.CutPrefix(imported, module+"/")
			if !ours || strings.HasPrefix(of, "test/") && strings.HasPrefix(name, "test") {
				continue
			}
			if !slices.ContainsFunc(may, func(m string) bool {
				return m == "" || of == m || strings.HasSuffix(m, "/") && strings.HasPrefix(of, m)
			}) {
				t.Errorf("%s may not import %s", name, of)
			}
			if strings.HasPrefix(of, "test/") {
				t.Errorf("%s imports test code", name)
			}
		}
	}
}

func TestTheWordsCompileWithoutDriversAndTransports(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"/schema" {
			continue
		}
		for _, dep := range p.Deps {
			for _, heavy := range []string{"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap", "google.golang.org/protobuf"} {
				require.False(t, strings.HasPrefix(dep, heavy), "schema depends on %s", dep)
			}
		}
	}
}
