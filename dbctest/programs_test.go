package dbctest_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/test/wait"
)

const projectsWithBuckets = `
service: iam.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - { kind: Bucket, patterns: ["buckets/{bucket}"] }
---
regions: [eu]
deployments: [{ deployment: iam.example.com/eu, version: v1 }]
`

// program returns the whole program in a document, and the number of lines of its main function between the
// braces.
func program(t *testing.T, document string) (source string, lines int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", document))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "```go\npackage main\n")
	require.True(t, found, document)
	source, _, _ = strings.Cut("package main\n"+after, "```")
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, document, source, 0)
	require.NoError(t, err)
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			require.Equal(t, "main", f.Name.Name)
			lines += files.Position(f.Body.Rbrace).Line - files.Position(f.Body.Lbrace).Line - 1
		}
	}
	return source, lines
}

// running builds a program, starts it in a folder with a client.yaml, and returns the lines that it prints.
func running(t *testing.T, in *dbctest.Installation, source string) *bufio.Scanner {
	t.Helper()
	dir := t.TempDir()
	file, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binary, file)
	// as the program is built: both share compiled packages
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOGC=400")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Dir = filepath.Dir(in.ClientFile("operator/programs"))
	printed, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	return bufio.NewScanner(printed)
}

func prints(t *testing.T, s *bufio.Scanner, want string) {
	t.Helper()
	require.True(t, s.Scan(), "want %q", want)
	require.Equal(t, want, s.Text())
}

// A program of ten lines watches, and one of thirty reconciles.
func TestTheProgramsOfTheDocuments(t *testing.T) {
	t.Parallel()
	watches, lines := program(t, "go.md")
	require.LessOrEqual(t, lines, 10)
	reconciles, lines := program(t, "controllers.md")
	require.LessOrEqual(t, lines, 30)
	in := dbctest.New(t, dbctest.Config{Services: projectsWithBuckets})
	acme, bucket := "//iam.example.com/eu/projects/acme", "//iam.example.com/eu/buckets/acme"
	mustPut(t, in, acme, nil)

	watch := running(t, in, watches)
	prints(t, watch, "upserted projects/acme")
	prints(t, watch, "synced ")
	reconcile := running(t, in, reconciles)
	prints(t, reconcile, "projects/acme gets a bucket")
	owned := func() bool { _, err := in.Client.Get(t.Context(), bucket); return err == nil }
	require.Eventually(t, owned, wait.Limit, 10*time.Millisecond)
	_, err := in.Client.Delete(t.Context(), bucket, client.Version{})
	require.NoError(t, err)
	prints(t, reconcile, "projects/acme gets a bucket")
	require.Eventually(t, owned, wait.Limit, 10*time.Millisecond)
	_, err = in.Client.Delete(t.Context(), acme, client.Version{})
	require.NoError(t, err)
	for last := ""; last != "deleted projects/acme"; last = watch.Text() { // it may be seen in DELETING
		require.True(t, watch.Scan())
	}
	require.Eventually(t, func() bool { return !owned() }, wait.Limit, 10*time.Millisecond)
}
