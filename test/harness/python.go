package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// python is the interpreter of the distribution's packages.
const python = "/usr/bin/python3"

// Root is the folder of the module.
func Root(t testing.TB) string {
	t.Helper()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(root))
}

// Python runs programs with the stock gRPC library of Python, which shares no code with Go's.
type Python struct {
	// Modules is a folder with the modules generated from our .proto files.
	Modules string
}

// NewPython generates the modules. Without the packages of deploy/install-languages.sh the test is skipped;
// on a build machine (CI=true) it fails.
func NewPython(t testing.TB) *Python {
	t.Helper()
	NeedsPython(t)
	protos := filepath.Join(Root(t), "schema", "schemapb")
	plugin, err := exec.LookPath("grpc_python_plugin")
	require.NoError(t, err)
	p := &Python{Modules: t.TempDir()}
	files, err := filepath.Glob(filepath.Join(protos, "dbcontroller", "*", "v1", "*.proto"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out, err := exec.Command("protoc", append([]string{
		"-I", protos, "--python_out", p.Modules, "--grpc_python_out", p.Modules, "--plugin",
		"protoc-gen-grpc_python=" + plugin,
	}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return p
}

// NeedsPython skips a test where gRPC for Python is missing, and fails it on a build machine.
func NeedsPython(t testing.TB) {
	t.Helper()
	err := exec.Command(python, "-c", "import grpc, google.protobuf").Run()
	for _, program := range []string{"protoc", "grpc_python_plugin"} {
		if err == nil {
			_, err = exec.LookPath(program)
		}
	}
	if err != nil {
		missing(t, "gRPC for Python", err)
	}
}

// NeedsTypescript skips a test where the compiler of TypeScript or Node is missing, and fails it on a build
// machine.
func NeedsTypescript(t testing.TB) {
	t.Helper()
	for _, program := range []string{"tsc", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, "TypeScript", err)
		}
	}
}

func missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing, deploy/install-languages.sh installs it: %v", what, err)
	}
	t.Skipf("%s is missing, deploy/install-languages.sh installs it: %v", what, err)
}

// Run runs a program with arguments and returns its output. It fails the test when the program fails.
func (p *Python) Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	return p.RunUntil(t, "", func() {}, program, args...)
}

// RunUntil is Run that calls then when the program has printed a text, before it returns.
func (p *Python) RunUntil(t testing.TB, text string, then func(), program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-c", program}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+p.Modules, "PYTHONDONTWRITEBYTECODE=1")
	return RunUntil(t, cmd, text, then)
}

// RunUntil runs a program, calls then when it has printed a text, and returns its output. It fails the test
// when the program fails.
func RunUntil(t testing.TB, cmd *exec.Cmd, text string, then func()) string {
	t.Helper()
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	printed, buffer := "", make([]byte, 4096)
	for called := false; err == nil; {
		var n int
		n, err = out.Read(buffer)
		if printed += string(buffer[:n]); !called && strings.Contains(printed, text) {
			called = true
			then()
		}
	}
	require.NoError(t, cmd.Wait(), "%s\n%s", printed, failed.String())
	return printed
}
