package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestPercentilesAreOfTheSortedValues(t *testing.T) {
	t.Parallel()
	values := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{0: 1, 0.2: 2, 0.5: 3, 0.9: 5, 0.99: 5, 1: 5} {
		require.InDelta(t, want, percentile(values, p), 0, "%v", p)
	}
	require.InDelta(t, 3, median(values), 0)
	require.Equal(t, []float64{5, 1, 4, 2, 3}, values, "the values stay in the order of the runs")
	require.InDelta(t, 7, percentile([]float64{7}, 0.99), 0)
}

func TestResultsAreJSONLinesOrATable(t *testing.T) {
	t.Parallel()
	results := []Result{
		{Case: "single", N: 10, Value: 3, Unit: "ms", Baseline: 2, Ratio: 1.5},
		{Case: "prime", N: 1000, Value: 12.34, Unit: "ms"},
	}
	var out bytes.Buffer
	require.NoError(t, Print(&out, results, true))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		var back Result
		require.NoError(t, json.Unmarshal([]byte(line), &back))
		require.Equal(t, results[i], back)
	}
	require.NotContains(t, lines[1], "baseline", "a case without a baseline has none")

	out.Reset()
	require.NoError(t, Print(&out, results, false))
	lines = strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Equal(t, []string{"case", "n", "value", "unit", "spread", "baseline", "ratio", "bare"},
		strings.Fields(lines[0]))
	require.Equal(t, []string{"single", "10", "3.0", "ms", "-", "2.0", "1.50", "-"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"prime", "1000", "12.3", "ms", "-", "-", "-", "-"}, strings.Fields(lines[2]))
}

func TestAResultHasTheRatioToItsBaseline(t *testing.T) {
	t.Parallel()
	var told []string
	r := &run{Config: Config{Progress: func(_ string, args ...any) { told = append(told, args[0].(string)) }}}
	r.add(Result{Case: "single", Value: 3, Baseline: 2})
	r.add(Result{Case: "prime", Value: 3})
	require.InDelta(t, 1.5, r.results[0].Ratio, 1e-9)
	require.Zero(t, r.results[1].Ratio)
	require.Len(t, told, 2)
	require.JSONEq(t, `{"case": "single", "n": 0, "value": 3, "unit": "", "baseline": 2, "ratio": 1.5}`, told[0])
}

func TestStatOfAProcess(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "stat")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for name, c := range map[string]struct {
		text   string
		parent string
		pid    int
	}{
		"plain":                {"42 (postgres) S 7 1 2 3 4 5 6 7 8 9 100 50 0", "7", 42},
		"a name with brackets": {"43 (a (b) c) R 8 1 2 3 4 5 6 7 8 9 100 50 0", "8", 43},
		"cut off":              {"44 (postgres) S 7", "", 0},
		"no name":              {"45 postgres S 7 1 2 3 4 5 6 7 8 9 100 50 0", "", 0},
		"empty":                {"", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fields, pid := statOf(file(c.text))
			require.Equal(t, c.pid, pid)
			if c.parent == "" {
				require.Nil(t, fields)
				return
			}
			require.Equal(t, c.parent, fields[1])
		})
	}
	fields, _ := statOf(filepath.Join(t.TempDir(), "gone"))
	require.Nil(t, fields, "it has ended")
}

func TestProcessorTimes(t *testing.T) {
	t.Parallel()
	times := cpuTimes{client: 1, controllers: 2, postgres: 3.5}
	require.InDelta(t, 6.5, times.sum(), 1e-9)
	require.Equal(t, "6.50 ms (client 1.00, controllers 2.00, PostgreSQL 3.50)", times.String())
	if parentOf(os.Getpid()) == 0 {
		t.Skip("no /proc")
	}
	require.Equal(t, os.Getppid(), parentOf(os.Getpid()))
	require.GreaterOrEqual(t, cpuNow(0).client, 0.0)
	used := cpuTimes{}.since(0, 2)
	require.LessOrEqual(t, used.client, cpuNow(0).client, "for each of two operations")
}

func TestMilliseconds(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 1.5, milliseconds(1500*time.Microsecond), 0)
	require.Equal(t, "-", number(0, "%.1f"))
	require.Equal(t, "2.3", number(2.26, "%.1f"))
}

func TestAResultHasTheMedianAndTheSpreadOfItsRuns(t *testing.T) {
	t.Parallel()
	var told []string
	r := &run{Config: Config{Progress: func(format string, _ ...any) { told = append(told, format) }}}
	r.add(Result{Case: "steady"}.of([]float64{11, 9, 10}))
	require.InDelta(t, 10, r.results[0].Value, 0)
	require.InDelta(t, 0.2, r.results[0].Spread, 1e-9)
	require.Len(t, told, 1)
	r.add(Result{Case: "noisy"}.of([]float64{10, 4, 19}))
	require.Len(t, told, 3)
	require.Contains(t, told[2], "warning")
	require.Zero(t, Result{}.of([]float64{0, 0, 0}).Spread)
}

// Each level of a chain is in another deployment than the one above it, and all four take part.
func TestAChainGoesOverFourDeployments(t *testing.T) {
	t.Parallel()
	seen := map[schema.DeploymentID]int{}
	for level := range chainLevels {
		at := place(1, level).Deployment
		seen[at]++
		if level > 0 {
			require.NotEqual(t, place(1, level-1).Deployment, at)
		}
	}
	require.Len(t, seen, 4)
}

// A table that became large between the counts is left out: its rows were read while it was small.
func TestScannedRowsAreOfTablesThatWereLargeBefore(t *testing.T) {
	t.Parallel()
	rows, by := readSince(map[string]int64{"shadow": 10, "work": 5, "blockade": 7},
		map[string]int64{"shadow": 40, "work": 5, "change": 100, "blockade": 8})
	require.EqualValues(t, 31, rows)
	require.Equal(t, "blockade 1, shadow 30", by)
	rows, by = readSince(nil, map[string]int64{"shadow": 40})
	require.Zero(t, rows)
	require.Empty(t, by)
}

func TestGrowthIsThatOfTheLastThird(t *testing.T) {
	t.Parallel()
	require.Empty(t, growthOf([]held{{}, {}}))
	steady := held{memory: 100, goroutines: 50, connections: 10, dead: 1000}
	grown := held{memory: 150, goroutines: 50, connections: 10, dead: 1000}
	// a warm-up first
	samples := []held{{memory: 1}, {memory: 2}, {memory: 3}, steady, steady, steady, grown, grown, grown}
	results := growthOf(samples)
	require.Len(t, results, 4)
	require.Equal(t, Result{Case: "soak-memory", Unit: "MB", Value: 150, Baseline: 100}, results[0])
	for _, r := range results[1:] {
		require.InDelta(t, r.Baseline, r.Value, 1e-9, r.Case)
		require.Positive(t, r.Value)
	}
}

// A connection that ends during a measurement takes its processor time with it: its parent has it.
func TestTimesOfEndedProcessesCount(t *testing.T) {
	t.Parallel()
	if _, pid := statOf("/proc/self/stat"); pid == 0 {
		t.Skip("no /proc")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c",
		"(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); echo ended; read -r _")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Positive(t, cpuNow(cmd.Process.Pid).postgres)
	require.NoError(t, in.Close())
	_ = cmd.Wait()
}

// A shape with many targets has a body for each, and the written resources refer to them in turn.
func TestShapesReferToTheirTargetsInTurn(t *testing.T) {
	bodies, err := writeShape{body: map[string]any{"account": "accounts/a*", "model": "sensor"}, targets: 3}.bodies()
	require.NoError(t, err)
	require.Len(t, bodies, 3)
	require.Equal(t, map[string]any{"account": "accounts/a3", "model": "sensor"}, bodies[2].AsMap())
	bodies, err = writeShape{body: map[string]any{"model": "sensor"}}.bodies()
	require.NoError(t, err)
	require.Len(t, bodies, 1)
}
