package campaign

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/test/rounds"
)

// Every mistake can still be planted, and the result builds.
func TestMutantsCanBePlanted(t *testing.T) {
	t.Parallel()
	for left := mutants; len(left) > 0; { // one build for mistakes in different files
		var together, later []mutant
		for _, m := range left {
			if slices.ContainsFunc(together, func(o mutant) bool { return o.file == m.file }) {
				later = append(later, m)
			} else {
				together = append(together, m)
			}
		}
		if !rounds.Long() {
			plant(t, together...) // without the builds
		} else {
			buildPackages(t, together)
		}
		left = later
	}
}

// Every mistake has been caught.
func TestMutantsHaveBeenCaught(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs", "mutants.md"))
	require.NoError(t, err)
	for _, m := range mutants {
		require.Contains(t, string(table), "\n| `"+m.name+"` |", "play it: make mutants")
	}
}

var why = regexp.MustCompile(`(?m)^\s+Error:\s+(.*)\n\s+(.*)`)

// DBCONTROLLER_MUTANTS is the number of seeds for every mutant, or for the mutants in DBCONTROLLER_MUTANT,
// separated by commas; docs/mutants.md then gets the results. Without it one mutant is played, so that every
// run tests the campaign itself.
func TestMutantsAreCaught(t *testing.T) {
	if os.Getenv("DBCONTROLLER_MUTANTS") == "" {
		t.Skip("plays campaigns: make mutants")
	}
	most, only := number(t, "DBCONTROLLER_MUTANTS", "0"), os.Getenv("DBCONTROLLER_MUTANT")
	table := filepath.Join(moduleRoot(t), "docs", "mutants.md")
	before, err := os.ReadFile(table)
	require.NoError(t, err)
	var (
		g    errgroup.Group
		mu   sync.Mutex
		rows = make([]string, len(mutants))
	)
	g.SetLimit(2)
	for i, m := range mutants {
		for line := range strings.Lines(string(before)) {
			if strings.HasPrefix(line, "| `"+m.name+"`") {
				rows[i] = line
			}
		}
		if most == 0 && m.name != "entry-forgotten" || only != "" &&
			!slices.Contains(strings.Split(only, ","), m.name) {
			continue
		}
		g.Go(func() error {
			by, said := caught(t, m, max(most, 5))
			t.Logf("%s: caught by %s: %s", m, by, said)
			if by == "" {
				t.Errorf("%s is not caught", m)
			}
			mu.Lock()
			defer mu.Unlock()
			rows[i] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.name, m.mistake, m.guards, by)
			if most == 0 {
				return nil
			}
			return os.WriteFile(table, []byte(mutantsHead+strings.Join(rows, "")), 0o644) //nolint:gosec // a document
		})
	}
	require.NoError(t, g.Wait())
}

const mutantsHead = `# Planted mistakes

Made by ` + "`make mutants`" + `: the mistakes that are planted to test the tests, and what caught each: the random campaign of a seed ([testing](testing.md#the-campaign)), a schedule that is played step by
step (` + "`test/campaign/rights.go`" + `), or, if it takes requests of the same milliseconds or messages that no client sees, a test (` + "`test/campaign/tested.go`" + `). Each mistake is a change of a few lines
(` + "`test/campaign/mutants.go`" + `) in a build of its own; the log of the run has the finding.

| mutant | mistake | violates | caught by |
| --- | --- | --- | --- |
`

// shownBy are the mistakes that show only in rare sequences of steps, each with the schedule that plays one.
var shownBy = map[string]string{
	"recall-does-not-wait":             "writing",
	"free-while-the-right-lasts":       "free",
	"held-is-answered-as-gone":         "held",
	"right-taken-after-a-close":        "late",
	"right-returned-beside-references": "cascade",
	"dropped-without-a-look":           "cascade",
	"cascade-tells-entries-only":       "cascade",
	"entry-released-beside-a-right":    "released",
	"excused-while-the-right-lasts":    "along",
	"unanswered-recall-is-free":        "unanswered",
}

// caught plays a mutant until a test fails, and returns the seed of the campaign or the name of the schedule,
// and the failure.
func caught(t *testing.T, m mutant, most uint64) (by, said string) {
	if in := testOf(m); in != nil {
		if said = in.failure(t); said != "" {
			return "`" + in.test + "`", said
		}
		return "", ""
	}
	binary := m.build(t)
	if s := shownBy[m.name]; s != "" {
		if said = failure(t, m, binary, "^TestSchedulesOfRights/^"+s+"$", 0); said != "" {
			return "schedule " + s, said
		}
		return "", ""
	}
	campaign := "^TestCampaign$"
	if m.name == "right-of-a-lost-epoch" { // another campaign begins no epoch
		campaign = "^TestACampaignWithAFailoverThatLosesCommits"
	}
	for seed := uint64(1); seed <= most; seed++ {
		if said = failure(t, m, binary, campaign, seed); said != "" {
			return fmt.Sprintf("seed %d", seed), said
		}
	}
	return "", ""
}

// failure runs the test that catches a mistake in a package with the mistake, until it fails.
func (in tested) failure(t *testing.T) (said string) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-trimpath", "-vet=off", "-overlay", plant(t, in.mutant),
		"-count", "5", "-failfast", "-timeout", "5m", "-run", "^"+in.test+"$", "./"+in.in)
	cmd.Dir = moduleRoot(t)
	said, out := reason(cmd)
	if strings.Contains(out, "[build failed]") || strings.Contains(out, "panic: test timed out") {
		t.Errorf("%s: failed for another reason: %s", in.mutant, out)
	}
	// in a goroutine of a test that has failed
	if _, panics, ok := strings.Cut(out, "panic: "); ok && said == "unknown" {
		said, _, _ = strings.Cut(panics, "\n")
	}
	return said
}

// failure runs a test with the program of a mutant, and returns why it failed; nothing when it passed.
func failure(t *testing.T, m mutant, binary, test string, seed uint64) (said string) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", test, "-test.v")
	cmd.Env = append(os.Environ(), "DBCONTROLLER_CAMPAIGN_BINARY="+binary, "DBCONTROLLER_CAMPAIGN_SEEDS=1",
		fmt.Sprintf("DBCONTROLLER_CAMPAIGN_FIRST=%d", seed))
	said, out := reason(cmd)
	if said == "unknown" || strings.Contains(said, "Received unexpected error") || strings.Contains(out, "DATA RACE") ||
		strings.Contains(out, "panic:") {
		t.Errorf("%s: failed for another reason: %s", m, out)
	}
	return said
}

// reason runs tests, and returns why they failed, and their output; nothing when they passed.
func reason(cmd *exec.Cmd) (said, output string) {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", string(out)
	}
	if found := why.FindSubmatch(out); found != nil {
		said, _, _ = strings.Cut(strings.Join(strings.Fields(string(found[1])+" "+string(found[2])), " "), " Test: ")
	}
	return cmp.Or(said, "unknown"), string(out)
}
