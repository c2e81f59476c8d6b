package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

// Each page is made from the code: go test ./cmd/db-controller -run TestTheReference -write.
func TestTheReferencePagesAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]func(*testing.T) string{
		"api.md": apiPage, "metrics.md": metricsPage,
		"configuration.md": configurationPage,
	} {
		file, want := filepath.Join("../../docs", name), page(t)
		if *writeReference {
			require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // a document
			require.NoError(t, os.Chmod(file, 0o644))
		}
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, want == string(got), "docs/%s is out of date: run make generate", name)
	}
}

// protoFiles are the described ones, in the order of the page.
var protoFiles = []string{
	"resource/v1/resource.proto", "admin/v1/admin.proto", "registry/v1/registry.proto",
	"schema/v1/descriptor.proto", "authorization/v1/authorization.proto",
}

// partly are those of which the page has some parts: operators call the rest by the commands.
var partly = map[string][]string{
	"admin/v1/admin.proto": {"AdminService"}, "registry/v1/registry.proto": {"RegistryService"},
	"schema/v1/descriptor.proto": {"Behaviour"},
}

var (
	protoBlock   = regexp.MustCompile(`^(service|message|enum|oneof) (\w+) \{(\})?$`)
	protoMethod  = regexp.MustCompile(`^rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\);$`)
	protoField   = regexp.MustCompile(`^((?:repeated |optional )?(?:map<[\w, .]+>|[\w.]+)) (\w+) = (\d+)(?: \[.*\])?;$`)
	protoValue   = regexp.MustCompile(`^(\w+) = (\d+);$`)
	protoPackage = regexp.MustCompile(`^package ([\w.]+);$`)
)

// protoPage is the state of a walk over the lines of a .proto file.
type protoPage struct {
	pkg     string
	within  []string // kinds and names of the blocks
	comment []string
	// parts are the sections, by the full name of the message: nested messages come after the message around
	// them.
	parts map[string]*bytes.Buffer
	order []string
	bare  bool // the last entry has no comment
}

func (p *protoPage) part() *bytes.Buffer {
	var names []string
	for _, b := range p.within {
		if kind, name, _ := strings.Cut(b, " "); kind != "oneof" {
			names = append(names, name)
		}
	}
	name := strings.Join(names, ".")
	if p.parts[name] == nil {
		p.parts[name] = &bytes.Buffer{}
		p.order = append(p.order, name)
	}
	return p.parts[name]
}

// plain returns a comment without what Markdown takes for a tag or for emphasis.
func plain(text string) string { return strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(text) }

// item adds an entry to the list of the present part; entries without a comment share a line.
func (p *protoPage) item(said, format string, args ...any) {
	begins := "* "
	if out := p.part(); p.bare && said == "" && strings.HasSuffix(out.String(), "\n") &&
		!strings.HasSuffix(out.String(), "\n\n") {
		out.Truncate(out.Len() - 1)
		begins = ", "
	}
	if fmt.Fprintf(p.part(), begins+format, args...); said != "" {
		fmt.Fprintf(p.part(), ": %s", plain(said))
	}
	p.part().WriteString("\n")
	p.bare = said == ""
}

func (p *protoPage) line(t *testing.T, line string) {
	t.Helper()
	if text, ok := strings.CutPrefix(line, "//"); ok {
		p.comment = append(p.comment, strings.TrimSpace(text))
		return
	}
	// A comment behind a field belongs to it.
	if code, behind, ok := strings.Cut(line, "; //"); ok {
		line, p.comment = code+";", append(p.comment, strings.TrimSpace(behind))
	}
	said := strings.Join(p.comment, " ")
	p.comment = nil
	switch m := []string(nil); {
	case line == "" || strings.HasPrefix(line, "syntax ") || strings.HasPrefix(line, "import ") ||
		strings.HasPrefix(line, "option ") || strings.HasPrefix(line, "reserved "):
	case matches(protoPackage, line, &m):
		p.pkg = m[1]
	case matches(protoBlock, line, &m):
		p.within = append(p.within, m[1]+" "+m[2])
		p.begin(m[1], said)
		if m[3] != "" {
			p.within = p.within[:len(p.within)-1]
		}
	case line == "}":
		p.within = p.within[:len(p.within)-1]
	case matches(protoMethod, line, &m):
		require.Equal(t, m[1]+"Request", m[3], "the page says that each method has a request of its name")
		answer := ""
		if m[4] != "" || m[5] != m[1]+"Response" {
			answer = " → `" + m[4] + m[5] + "`"
		}
		said = strings.TrimPrefix(said, m[1]+" ")
		p.item(strings.ToUpper(said[:1])+said[1:], "`%s`%s", m[1], answer)
	case matches(protoField, line, &m):
		p.item(said, "`%s` `%s`", m[2], m[1])
	case matches(protoValue, line, &m):
		p.item(said, "`%s` = %s", m[1], m[2])
	default:
		t.Errorf("the page has no rule for this line: %s", line)
	}
}

func matches(r *regexp.Regexp, line string, m *[]string) bool {
	*m = r.FindStringSubmatch(line)
	return *m != nil
}

func (p *protoPage) begin(kind, said string) {
	if kind == "oneof" {
		return
	}
	p.part() // in its order
	p.bare = false
	if said != "" {
		fmt.Fprintf(p.part(), "%s\n\n", plain(said))
	}
}

func apiPage(t *testing.T) string {
	t.Helper()
	out := &bytes.Buffer{}
	out.WriteString(
		"# API\n\nMade from the .proto files by `make generate`. [From other languages](other-languages.md) shows how to call it, [HTTP and JSON](http.md) the same API\n" +
			"for curl, [guarantees](guarantees.md#the-meaning-of-an-answer) the errors.\n\nA method takes the message of its name with `Request`, and returns the one with `Response`, unless another one is named. Messages without fields are left out.\n" +
			"The messages of `AdminService` and `RegistryService`, which the commands call, and those of descriptors are described in their files. The messages between deployments\n(`dbcontroller.schema.v1.SchemaService`) are those of [the protocol](protocol.md).\n")
	for _, name := range protoFiles {
		file := filepath.Join("../../schema/schemapb/dbcontroller", name)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		p := &protoPage{parts: map[string]*bytes.Buffer{}}
		for line := range strings.Lines(string(text)) {
			p.line(t, strings.TrimSpace(line))
		}
		require.Empty(t, p.within, name)
		fmt.Fprintf(out, "\n## %s\n\n[%s](%s)\n", p.pkg, filepath.Base(name),
			strings.TrimPrefix(filepath.ToSlash(file), "../"))
		for _, part := range p.order {
			if !strings.Contains(p.parts[part].String(), "* ") || partly[name] != nil &&
				!slices.Contains(partly[name], part) {
				continue
			}
			fmt.Fprintf(out, "\n### %s\n\n%s", part, p.parts[part])
		}
	}
	return out.String()
}

// metricsPage lists the metrics that the package serve makes: by the calls of the constructors, and no metric
// exists without one.
func metricsPage(t *testing.T) string {
	t.Helper()
	type metric struct{ name, kind, labels, help string }
	var all []metric
	files, err := filepath.Glob("serve/*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		lists := map[string]*ast.CompositeLit{} // variables with labels
		ast.Inspect(file, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
				if list, ok := a.Rhs[0].(*ast.CompositeLit); ok {
					if id, ok := a.Lhs[0].(*ast.Ident); ok {
						lists[id.Name] = list
					}
				}
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			made, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || fmt.Sprint(made.X) != "prometheus" || len(call.Args) == 0 {
				return true
			}
			m, labels := metric{
				kind: strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(made.Sel.Name, "New"),
					"Vec"), "Func")),
			}, ast.Expr(nil)
			if made.Sel.Name == "NewDesc" {
				m.name, m.help, labels = literal(call.Args[0]), literal(call.Args[1]), call.Args[2]
				m.kind = "gauge"
				if strings.HasSuffix(m.name, "_total") {
					m.kind = "counter"
				}
			} else if opts, ok := call.Args[0].(*ast.CompositeLit); ok {
				for _, e := range opts.Elts {
					switch kv := e.(*ast.KeyValueExpr); fmt.Sprint(kv.Key) {
					case "Name":
						m.name = literal(kv.Value)
					case "Help":
						m.help = literal(kv.Value)
					}
				}
				if len(call.Args) > 1 {
					labels = call.Args[1]
				}
			}
			if m.name == "" {
				return true
			}
			if id, ok := labels.(*ast.Ident); ok && lists[id.Name] != nil {
				labels = lists[id.Name]
			}
			if list, ok := labels.(*ast.CompositeLit); ok {
				var names []string
				for _, e := range list.Elts {
					names = append(names, "`"+literal(e)+"`")
				}
				m.labels = strings.Join(names, ", ")
			}
			all = append(all, m)
			return true
		})
	}
	require.Greater(t, len(all), 30)
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	out := &bytes.Buffer{}
	out.WriteString(
		"# Metrics\n\nMade from the program by `make generate`. `/metrics` of `serve` and `registry` with `--http` has them, beside those of Go, of the process and of gRPC\n" +
			"(`grpc_server_…`). [Health](health.md) explains them and the alerts.\n\n")
	for _, m := range all {
		require.NotEmpty(t, m.help, m.name)
		if m.labels != "" {
			m.kind += " by " + m.labels
		}
		fmt.Fprintf(out, "* `%s` (%s): %s\n", m.name, m.kind, m.help)
	}
	return out.String()
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok {
		text, _ := strconv.Unquote(l.Value)
		return text
	}
	return ""
}

// configurationPage lists the settings of the processes: each flag is a key of the file and a variable of the
// environment as well.
func configurationPage(t *testing.T) string {
	t.Helper()
	root := newRoot()
	type setting struct{ usage, initial, reload string }
	commands := map[string]map[setting][]string{} // by flag: its meanings, and the commands that have each
	for _, name := range processes {
		c, _, err := root.Find([]string{name})
		require.NoError(t, err)
		add := func(f *pflag.Flag) {
			if f.Hidden || cli.IsHelp(f.Name) {
				return
			}
			kind, usage := pflag.UnquoteUsage(f)
			s := setting{usage, f.DefValue, cli.ReloadOf(f)}
			if s.reload == "restart" {
				s.reload = ""
			}
			if s.initial == "[]" || kind == "" { // a switch, which is off
				s.initial = strings.TrimPrefix(strings.TrimPrefix(s.initial, "[]"), "false")
			}
			if commands[f.Name] == nil {
				commands[f.Name] = map[setting][]string{}
			}
			commands[f.Name][s] = append(commands[f.Name][s], name)
		}
		c.NonInheritedFlags().VisitAll(add)
		root.PersistentFlags().VisitAll(add)
	}
	out := &bytes.Buffer{}
	out.WriteString(
		"# Configuration\n\nMade from the program by `make generate`. A setting is a flag (`--log-level`), a variable of the environment (`DBCONTROLLER_LOG_LEVEL`), or a key of the file of `--config`\n" +
			"(`log-level`); the first of these that is given counts. In the file a key at the top is for every command that has such a flag; one below the name of a command for it alone.\n" +
			"`config print COMMAND` shows the values with their origins, `config schema` prints the JSON Schema of the file.\n\n" +
			"```yaml\nregistry: registry.example.com:7000\nserve:\n  deployment: iam.example.com/us-west2\n  tentative-ttl: 15s\n```\n\n" +
			"These are the settings of the processes, each with its command unless both have it, its default, and how it is [reloaded](upgrade.md#reload): a setting with `SIGHUP` is read\n" +
			"again from the file after this signal, `followed` ones name files that are read again when they change; the others need a restart.\n\n")
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		meanings := slices.SortedFunc(maps.Keys(commands[name]), func(a, b setting) int {
			return cmp.Compare(commands[name][a][0], commands[name][b][0])
		})
		for _, s := range meanings {
			var notes []string
			if len(commands[name][s]) == 1 {
				notes = append(notes, commands[name][s][0])
			}
			if s.initial != "" {
				notes = append(notes, "`"+s.initial+"`")
			}
			if s.reload != "" {
				notes = append(notes, s.reload)
			}
			if fmt.Fprintf(out, "* `%s`", name); notes != nil {
				fmt.Fprintf(out, " (%s)", strings.Join(notes, ", "))
			}
			fmt.Fprintf(out, ": %s\n", s.usage)
		}
	}
	return out.String()
}
