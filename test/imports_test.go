package test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/db-controller/db-controller"

// allowed lists, for every package of the project, which packages of the project it may import. A path that
// ends in a slash is a prefix; "" allows all. A package that is not listed fails the test.
var allowed = map[string][]string{
	"schema/service/access": {
		"internal/approval", "internal/auditlog", "internal/identity", "internal/requestid",
		"schema", "schema/grant", "schema/peer", "schema/schemapb/", "schema/service/outcome",
	},
	"schema/grant":        {"schema"},
	"internal/strictyaml": {},
	"internal/token":      {"internal/identity", "internal/strictyaml", "schema"},
	"schema":              {"internal/bodyschema", "schema/violation"},
	"schema/violation":    {},
	"internal/bodyschema": {},
	"schema/lint":         {"schema"},
	"schema/schemapb/dbcontroller/authorization/v1": {},
	"schema/schemapb/dbcontroller/schema/v1":        {},
	"schema/schemapb/dbcontroller/resource/v1":      {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/schemapb/dbcontroller/admin/v1":         {},
	"schema/schemapb/dbcontroller/registry/v1":      {"schema/schemapb/dbcontroller/schema/v1"},
	"schema/wire":                    {"schema", "schema/peer", "schema/schemapb/", "schema/violation"},
	"schema/peer":                    {"schema"},
	"schema/shadow":                  {"schema", "schema/peer", "schema/shadow/internal/"},
	"schema/shadow/internal/plan":    {"schema", "schema/peer"},
	"schema/shadow/internal/standby": {"internal/postgres"},
	"schema/shadow/internal/db": {
		"internal/feed", "internal/postgres", "internal/requestid",
		"internal/retry", "schema", "schema/peer", "schema/shadow/internal/standby",
	},
	"schema/shadow/internal/gate":    rooms("db"),
	"schema/shadow/internal/rows":    rooms("db"),
	"schema/shadow/internal/read":    rooms("standby", "db", "gate", "rows"),
	"schema/shadow/internal/target":  rooms("db", "gate", "rows", "read"),
	"schema/shadow/internal/prepare": rooms("db", "gate", "rows", "read"),
	"schema/shadow/internal/attempt": rooms("db", "gate", "prepare"),
	"schema/shadow/internal/write":   rooms("db", "gate", "rows", "read", "target", "prepare", "attempt"),
	"schema/shadow/internal/cascade": rooms("plan", "db", "gate", "rows", "read", "target", "prepare"),
	"schema/shadow/internal/rights": rooms("plan", "db", "gate", "rows", "prepare", "attempt", "write",
		"cascade"),
	"schema/shadow/internal/follow":      rooms("plan", "db", "gate", "rows", "cascade"),
	"schema/shadow/internal/deletedrows": rooms("db", "rows", "cascade"),
	"schema/shadow/internal/operate":     rooms("standby", "db", "gate", "rows", "read", "prepare", "cascade"),
	"schema/shadow/internal/owner":       rooms("db", "gate", "read", "prepare", "write", "cascade"),
	"schema/shadow/internal/deletion": rooms("plan", "db", "gate", "rows", "read", "target", "prepare",
		"attempt", "write", "cascade", "follow"),
	"schema/shadow/internal/verify": rooms("db", "gate", "rows", "read", "target", "prepare", "write",
		"rights", "follow", "operate", "owner"),
	"schema/shadow/internal/admin": rooms("db", "gate", "read", "target", "prepare", "write", "cascade",
		"rights", "follow", "verify"),
	"internal/approval":      {"internal/identity", "schema/schemapb/"},
	"internal/auditlog":      {"internal/retry", "schema/peer"},
	"internal/auditlog/otlp": {"internal/auditlog"},
	"schema/service": {
		"internal/auditlog", "internal/budget", "internal/identity",
		"internal/inprocess", "internal/postgres", "internal/requestid", "internal/trace", "schema", "schema/peer",
		"schema/schemapb/", "schema/service/access", "schema/service/costs", "schema/service/outcome",
		"schema/service/peers", "schema/service/readmask", "schema/service/writes", "schema/shadow", "schema/violation",
		"schema/wire",
	},
	"schema/service/writes":   {"schema/schemapb/", "schema/violation"},
	"schema/service/readmask": {"schema/schemapb/", "schema/service/outcome", "schema/shadow"},
	"schema/service/costs":    {"internal/identity", "schema/schemapb/", "schema/service/outcome"},
	"schema/service/outcome": {
		"internal/budget", "internal/postgres", "internal/requestid",
		"schema", "schema/peer", "schema/schemapb/", "schema/shadow", "schema/violation",
	},
	"schema/service/peers": {
		"internal/address", "internal/gather", "internal/identity",
		"internal/requestid", "internal/trace", "schema", "schema/peer", "schema/schemapb/", "schema/service/outcome",
		"schema/wire",
	},
	"migrations": {},
	"internal/attach": {
		"internal/catalogue", "internal/retry", "internal/scan", "schema",
		"schema/schemapb/", "schema/wire",
	},
	"internal/catalogue": {"schema"},
	"internal/kindgraph": {"schema"},
	"internal/detach":    {"schema", "schema/schemapb/"},
	"internal/console": {
		"internal/detach", "internal/diagnose", "internal/kindgraph",
		"schema", "schema/schemapb/",
	},
	"internal/diagnose":          {"schema", "schema/schemapb/"},
	"internal/crash":             {},
	"internal/address":           {"schema"},
	"internal/atomicfile":        {},
	"internal/budget":            {},
	"internal/feed":              {"internal/budget", "internal/postgres", "schema"},
	"internal/gather":            {},
	"internal/identity":          {"internal/address", "internal/budget", "schema"},
	"internal/identity/workload": {"internal/identity"},
	"internal/inprocess":         {},
	"internal/postgres":          {"internal/trace"},
	"internal/postgres/launcher": {},
	"internal/jsonbody":          {},
	"internal/requestid":         {},
	"internal/trace":             {},
	"internal/trace/export":      {"internal/trace"},
	"internal/retry":             {},
	"internal/scan": {
		"internal/catalogue", "internal/postgres",
		"internal/scan/report", "schema",
	},
	"internal/scan/report": {},
	"envregistry":          {"internal/retry", "schema", "schema/schemapb/", "schema/wire"},
	"envregistry/server": {
		"internal/address", "internal/approval", "internal/auditlog",
		"internal/feed", "internal/identity", "internal/postgres", "internal/requestid", "schema", "schema/grant",
		"schema/schemapb/", "schema/wire",
	},
	"constraint":       {"constraint/cache", "constraint/queue", "internal/retry", "schema"},
	"constraint/queue": {"internal/retry"},
	"controller": {
		"client", "constraint/cache", "constraint/queue", "internal/retry",
		"schema", "schema/schemapb/",
	},
	"constraint/cache": {},
	"handlers": {
		"internal/crash", "internal/retry", "internal/trace", "schema",
		"schema/peer",
	},
	"nodemanager": {"schema"},
	"embed": {
		"client", "internal/address", "internal/identity",
		"internal/jsonbody", "internal/postgres", "internal/retry", "schema", "schema/peer", "schema/schemapb/",
		"schema/service", "schema/service/peers", "schema/shadow", "schema/violation", "schema/wire",
	},
	"dbctest": {
		"client", "cmd/db-controller/playground", "cmd/db-controller/serve",
		"internal/identity", "internal/inprocess", "internal/postgres/launcher", "migrations", "schema", "schema/peer",
		"schema/schemapb/", "schema/service/outcome", "schema/service/writes", "schema/violation", "schema/wire",
	},
	"client": {
		"internal/address", "internal/atomicfile", "envregistry",
		"internal/identity", "internal/jsonbody", "internal/retry", "internal/strictyaml", "schema", "schema/schemapb/",
		"schema/wire",
	},
	"cmd/db-controller":        {"cmd/db-controller/"},
	"cmd/db-controller/direct": {"client", "schema", "schema/schemapb/"},
	"cmd/db-controller/cli": {
		"client", "cmd/db-controller/direct", "internal/postgres", "schema",
		"schema/schemapb/",
	},
	"cmd/db-controller/dev": {
		"client", "cmd/db-controller/cli", "cmd/db-controller/direct",
		"cmd/db-controller/operate", "cmd/db-controller/playground", "cmd/db-controller/resources", "internal/postgres",
		"internal/postgres/launcher", "migrations", "schema", "schema/schemapb/", "schema/wire",
	},
	"cmd/db-controller/operate": {
		"client", "cmd/db-controller/cli", "cmd/db-controller/direct",
		"cmd/db-controller/playground", "internal/approval", "internal/auditlog", "internal/console",
		"internal/diagnose", "internal/identity", "internal/kindgraph", "schema", "schema/grant", "schema/lint",
		"schema/schemapb/", "schema/wire",
	},
	"cmd/db-controller/resources": {
		"client", "cmd/db-controller/cli", "cmd/db-controller/direct",
		"internal/detach", "internal/diagnose", "schema", "schema/schemapb/",
	},
	"cmd/db-controller/serve": {""},
	"cmd/db-controller/tables": {
		"cmd/db-controller/cli", "cmd/db-controller/operate",
		"internal/atomicfile", "internal/attach", "internal/catalogue", "internal/postgres", "internal/scan",
		"internal/scan/report", "schema", "schema/lint", "schema/schemapb/", "schema/wire",
	},
	"cmd/db-controller/playground": {"internal/atomicfile", "internal/identity", "schema"},
	"test":                         {""},
	"test/harness":                 {""},
	"test/campaign":                {""},
	"test/campaign/attached":       {""},
	"test/stub":                    {""},
	"test/bench":                   {""},
	"test/wait":                    {},
	"test/rounds":                  {},
	"test/containers":              {""},
	"test/clusters":                {""},
	"test/model":                   {},
	"test/model/atomic":            {},
	"test/model/delegation":        {},
	"test/model/rows":              {},
	"test/model/recovery":          {},
	"internal/gateway": {
		"internal/budget", "internal/identity", "schema/gatewaypb/",
		"schema/schemapb/",
	},
	"schema/gatewaypb/dbcontroller/admin/v1":    {"schema/schemapb/"},
	"schema/gatewaypb/dbcontroller/resource/v1": {"schema/schemapb/"},
}

// rooms returns the imports of a room of the store that stands on these others.
func rooms(below ...string) []string {
	may := []string{
		"internal/budget", "internal/crash", "internal/feed", "internal/gather", "internal/postgres",
		"internal/requestid", "internal/retry", "internal/trace", "schema", "schema/grant", "schema/peer",
		"schema/violation",
	}
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
		"github.com/jackc/pgx", "github.com/prometheus", "github.com/spiffe/go-spiffe/v2/workloadapi",
		module + "/constraint", module + "/envregistry/server", module + "/handlers",
		module + "/internal/feed", module + "/internal/postgres", module + "/migrations", module + "/nodemanager",
		module + "/schema/service", module + "/schema/shadow",
	},
	"controller": {
		"github.com/jackc/pgx", "github.com/prometheus", module + "/envregistry/server", module + "/handlers",
		module + "/internal/postgres",
		module + "/migrations", module + "/nodemanager", module + "/schema/service", module + "/schema/shadow",
	},
	"cmd/db-controller/serve": {
		module + "/cmd/db-controller/dev", module + "/cmd/db-controller/playground",
		module + "/internal/postgres/launcher", module + "/test",
	},
	"cmd/db-controller":    {module + "/test"},
	"internal/catalogue":   {"github.com/jackc/pgx"},
	"internal/identity":    {"github.com/jackc/pgx"},
	"internal/scan/report": {"github.com/jackc/pgx"},
	"schema/lint": {
		"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap",
		"google.golang.org/protobuf",
	},
	"schema/grant": {
		"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap",
		"google.golang.org/protobuf",
	},
	"schema/peer":                 {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap"},
	"schema/shadow/internal/plan": {"github.com/jackc/pgx", "google.golang.org/grpc", "go.uber.org/zap"},
}

// Programs that import the vocabulary or the client link no drivers, the client links no server, and the
// server links no tools of developers.
func TestPackagesDoNotLinkWhatTheirUsersDoNotNeed(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range p.Deps {
			for _, heavy := range notLinked[strings.TrimPrefix(p.ImportPath, module+"/")] {
				require.False(t, dep == heavy || strings.HasPrefix(dep, heavy+"/"), "%s depends on %s",
					p.ImportPath, dep)
			}
		}
	}
}

// A newcomer finds each package in ARCHITECTURE.md, and each room of the store in its doc.go, and no other.
func TestEachPackageIsDescribed(t *testing.T) {
	t.Parallel()
	architecture, err := os.ReadFile("../ARCHITECTURE.md")
	require.NoError(t, err)
	doc, err := os.ReadFile("../schema/shadow/doc.go")
	require.NoError(t, err)
	exists := map[string]bool{}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		exists[name] = true
		if room, ok := strings.CutPrefix(name, "schema/shadow/"); ok {
			require.Contains(t, string(doc), "\n//\t"+room+" ", "schema/shadow/doc.go")
		}
		if !strings.HasPrefix(name, "schema/schemapb/") && !strings.HasPrefix(name, "schema/gatewaypb/") {
			require.Contains(t, string(architecture), "`"+name+"`", "ARCHITECTURE.md")
		}
	}
	for _, room := range regexp.MustCompile(`\n//\t(internal/\w+) `).FindAllStringSubmatch(string(doc), -1) {
		require.True(t, exists["schema/shadow/"+room[1]], "schema/shadow/doc.go has %s", room[1])
	}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(string(architecture), -1) {
		for _, name := range regexp.MustCompile(
			"`((?:schema|internal|cmd|test|constraint|envregistry|handlers|nodemanager)(?:/[\\w-]+)*)`").
			FindAllStringSubmatch(row[1], -1) {
			require.True(t, exists[name[1]] || exists[name[1]+"/dbcontroller/admin/v1"], "ARCHITECTURE.md has %s",
				name[1])
		}
	}
}
