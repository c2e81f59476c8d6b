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

// allowed lists, for every package of the project, which packages of the project it may import. A path that ends in a slash
// is a prefix; "" allows all. A package that is not listed fails the test.
var allowed = map[string][]string{
	"schema/service/access": {"internal/identity", "schema", "schema/grant", "schema/peer", "schema/schemapb/", "schema/service/outcome"},
	"schema/grant":          {"schema"},
	"internal/token":        {"internal/identity", "schema"},
	"schema/schemapb/dbcontroller/authorization/v1": {},
	"schema":                                   {},
	"schema/schemapb/dbcontroller/schema/v1":   {},
	"schema/schemapb/dbcontroller/resource/v1": {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/schemapb/dbcontroller/admin/v1":    {},
	"schema/schemapb/dbcontroller/registry/v1": {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/wire":                              {"schema", "schema/peer", "schema/schemapb/"},
	"schema/peer":                              {"schema"},
	"schema/shadow":                            {"schema", "schema/peer", "schema/shadow/internal/"},
	"schema/shadow/internal/plan":              {"schema", "schema/peer"},
	"schema/shadow/internal/db":                {"internal/feed", "internal/postgres", "internal/retry", "schema", "schema/peer"},
	"schema/shadow/internal/gate":              rooms("db"),
	"schema/shadow/internal/read":              rooms("db", "gate"),
	"schema/shadow/internal/rows":              rooms("db"),
	"schema/shadow/internal/target":            rooms("db", "gate", "read", "rows"),
	"schema/shadow/internal/write":             rooms("db", "gate", "read", "rows", "target"),
	"schema/shadow/internal/cascade":           rooms("db", "gate", "read", "rows", "target", "write", "plan"),
	"schema/shadow/internal/capture":           rooms("db", "gate", "rows", "write", "cascade"),
	"schema/shadow/internal/owner":             rooms("db", "gate", "read", "write", "cascade"),
	"schema/shadow/internal/deletion":          rooms("db", "gate", "read", "rows", "target", "write", "cascade", "plan"),
	"schema/shadow/internal/verify":            rooms("db", "gate", "read", "target", "write", "cascade"),
	"schema/shadow/internal/admin":             rooms("db", "gate", "read", "target", "write", "cascade", "owner", "verify"),
	"schema/service":                           {"internal/identity", "internal/postgres", "schema", "schema/peer", "schema/schemapb/", "schema/service/access", "schema/service/outcome", "schema/service/peers", "schema/shadow", "schema/wire"},
	"schema/service/outcome":                   {"internal/postgres", "schema", "schema/peer", "schema/schemapb/", "schema/shadow"},
	"schema/service/peers":                     {"internal/identity", "schema", "schema/peer", "schema/schemapb/", "schema/service/outcome", "schema/wire"},
	"migrations":                               {},
	"internal/attach":                          {"internal/catalogue", "internal/retry", "internal/scan", "schema"},
	"internal/catalogue":                       {"schema"},
	"internal/crash":                           {},
	"internal/budget":                          {},
	"internal/feed":                            {"internal/budget", "internal/postgres", "schema"},
	"internal/gather":                          {},
	"internal/identity":                        {"internal/budget", "schema"},
	"internal/postgres":                        {},
	"internal/postgres/launcher":               {},
	"internal/retry":                           {},
	"internal/scan":                            {"internal/catalogue", "internal/postgres", "internal/scan/report", "schema"},
	"internal/scan/report":                     {},
	"envregistry":                              {"internal/retry", "schema", "schema/schemapb/", "schema/wire"},
	"envregistry/server":                       {"internal/feed", "internal/identity", "internal/postgres", "schema", "schema/schemapb/", "schema/wire"},
	"constraint":                               {"constraint/cache", "internal/retry", "schema"},
	"constraint/cache":                         {},
	"handlers":                                 {"internal/crash", "internal/retry", "schema", "schema/peer"},
	"nodemanager":                              {"schema"},
	"client":                                   {"envregistry", "internal/identity", "internal/retry", "schema", "schema/schemapb/", "schema/wire"},
	"cmd/db-controller":                        {""},
	"cmd/db-controller/playground":             {"internal/identity", "schema"},
	"cmd/db-controller/bench":                  {"client", "cmd/db-controller/playground", "internal/postgres", "schema", "schema/peer", "schema/schemapb/", "schema/shadow"},
	"test":                                     {""},
	"test/harness":                             {""},
	"test/campaign":                            {""},
	"test/stub":                                {""},
	"test/model":                               {},
	"test/model/delegation":                    {},
}

// rooms returns the imports of a room of the store that stands on these others.
func rooms(below ...string) []string {
	may := []string{"internal/crash", "internal/feed", "internal/gather", "internal/postgres", "internal/retry", "schema", "schema/peer"}
	for _, room := range below {
		may = append(may, "schema/shadow/internal/"+room)
	}
	return may
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
			t.Errorf("package %s is not listed: add its allowed imports here, and its purpose to ARCHITECTURE.md", name)
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

// notLinked are import paths, by package, that neither the package nor its dependencies may import.
var notLinked = map[string][]string{
	"schema": {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap", "google.golang.org/protobuf"},
	"client": {
		"github.com/jackc/pgx", "github.com/prometheus", module + "/constraint", module + "/envregistry/server", module + "/handlers",
		module + "/internal/feed", module + "/internal/postgres", module + "/migrations", module + "/nodemanager",
		module + "/schema/service", module + "/schema/shadow",
	},
	"internal/catalogue":          {"github.com/jackc/pgx"},
	"internal/identity":           {"github.com/jackc/pgx"},
	"internal/scan/report":        {"github.com/jackc/pgx"},
	"schema/grant":                {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap", "google.golang.org/protobuf"},
	"schema/peer":                 {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap"},
	"schema/shadow/internal/plan": {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap"},
}

// Programs that import the vocabulary or the client link no drivers, and the client links no server.
func TestPackagesDoNotLinkWhatTheirUsersDoNotNeed(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range p.Deps {
			for _, heavy := range notLinked[strings.TrimPrefix(p.ImportPath, module+"/")] {
				require.False(t, dep == heavy || strings.HasPrefix(dep, heavy+"/"), "%s depends on %s", p.ImportPath, dep)
			}
		}
	}
}
