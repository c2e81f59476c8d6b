package playground_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
)

// As a program that a playground starts, this binary answers /readyz after a while. It writes the times of
// its start and of its first good answer.
func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, "--http"); i > 0 && (os.Args[1] == "serve" || os.Args[1] == "registry") {
		began := time.Now()
		fmt.Println(began.UnixNano())
		said := sync.OnceFunc(func() { fmt.Println(time.Now().UnixNano()) })
		err := http.ListenAndServe(os.Args[i+1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // of a test
			if time.Since(began) < 200*time.Millisecond {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			said()
		}))
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newPlayground(t *testing.T, deployments int) *playground.Playground {
	t.Helper()
	cfg := playground.Config{
		Dir: t.TempDir(), Binary: os.Args[0],
		Databases: playground.Databases{New: func(_ context.Context, name string) (string, error) {
			return name, nil
		}},
	}
	for i := range deployments {
		cfg.Deployments = append(cfg.Deployments, schema.DeploymentID{
			Service: fmt.Sprintf("s%d.example.com", i),
			Region:  "us-west2",
		})
	}
	p, err := playground.New(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	return p
}

// Deployments start some at a time, and all are ready in the end.
func TestDeploymentsStartSomeAtATime(t *testing.T) {
	t.Parallel()
	limit := max(4, 2*runtime.GOMAXPROCS(0))
	p := newPlayground(t, 3*limit)
	require.NoError(t, p.Start(t.Context(), func(context.Context) error { return nil }))
	changes := map[int64]int{}
	for _, d := range p.Deployments {
		var started, ready int64
		_, err := fmt.Sscan(d.Tail(), &started, &ready)
		require.NoError(t, err)
		changes[started]++
		changes[ready]--
	}
	most, now := 0, 0
	for _, at := range slices.Sorted(maps.Keys(changes)) {
		now += changes[at]
		most = max(most, now)
	}
	require.LessOrEqual(t, most, limit)
	require.Greater(t, most, 1)
}

// When one cannot start, no further ones do, and the error has the end of its log.
func TestAStartEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	p := newPlayground(t, 40)
	for _, d := range p.Deployments {
		d.Run("/bin/false")
	}
	require.ErrorContains(t, p.Start(t.Context(), func(context.Context) error { return nil }), "ended while it started")
	logs, err := filepath.Glob(filepath.Join(filepath.Dir(p.Registry.Log()), "s*.log"))
	require.NoError(t, err)
	require.Less(t, len(logs), 40)
	failed := errors.New("not applied")
	p = newPlayground(t, 1)
	require.ErrorIs(t, p.Start(t.Context(), func(context.Context) error { return failed }), failed)
}

// Two processes never get the same port, although neither listens on it yet.
func TestProcessesTakeDifferentPorts(t *testing.T) {
	t.Parallel()
	if os.Getenv("DBCONTROLLER_TEST_PORTS") != "" {
		mine, err := playground.FreeAddresses(1000)
		require.NoError(t, err)
		fmt.Println(strings.Join(mine, "\n"))
		_, _ = io.Copy(io.Discard, os.Stdin) // it keeps them
		return
	}
	ours, err := playground.FreeAddresses(1000)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, address := range ours {
		require.False(t, seen[address], address)
		seen[address] = true
	}
	for range 2 {
		other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcessesTakeDifferentPorts$") //nolint:gosec // this test
		other.Env = append(os.Environ(), "DBCONTROLLER_TEST_PORTS=1")
		in, err := other.StdinPipe()
		require.NoError(t, err)
		out, err := other.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, other.Start())
		t.Cleanup(func() { _ = in.Close(); _ = other.Wait() })
		lines := bufio.NewScanner(out)
		for range 1000 {
			require.True(t, lines.Scan())
			require.False(t, seen[lines.Text()], lines.Text())
			seen[lines.Text()] = true
		}
	}
}
