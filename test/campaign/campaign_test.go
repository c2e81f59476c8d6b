package campaign

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func number(t *testing.T, name, otherwise string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(name), otherwise), 10, 32)
	require.NoError(t, err, name)
	return n
}

// kept returns the seeds of testdata/seeds.
func kept(t *testing.T) (seeds []uint64) {
	t.Helper()
	raw, err := os.ReadFile("testdata/seeds")
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			seed, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
			require.NoError(t, err)
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

// keep adds a failed seed to testdata/seeds.
func keep(t *testing.T, seed uint64) {
	t.Helper()
	file, err := os.OpenFile("testdata/seeds", os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // part of the sources
	require.NoError(t, err)
	_, err = fmt.Fprintf(file, "%d # failed, cause unknown\n", seed)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// Moments that a campaign has to reach, otherwise it proves little; many campaigns have to reach more of
// them.
var (
	moments = []string{
		"cascaded", "put refused", "decisions compared with the oracle", "comparisons of all resources with the oracle",
		"watch opened",
		"hot: refer refused", "hot: delete refused", "nothing written at rest",
	}
	rarer = []string{
		"delete refused", "hot: histories Ok", "created again", "definite after unknown",
		"put on a resource that a deletion was reaching", "referred to a resource that a deletion was reaching",
		"accepted deletes with a blocker below", "reported blocked, and drained", "sent through the other region",
		"watch resumed", "watch batches", "killed between two steps",
		"confirmed a target in DELETING", "blocked a resource that a deletion was reaching",
		"refused update that would have dropped a blocker", "committed without an answer",
		"referred to a target whose deployment was away",
		"deleted a target whose blockade had expired", "blocked a resource under a right, and deleted it",
	}
)

// DBCONTROLLER_CAMPAIGN_SEEDS is the number of seeds (2), DBCONTROLLER_CAMPAIGN_FIRST the first one (1).
func TestCampaign(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes for each seed")
	}
	c, began := NewCoverage(), time.Now()
	first, n := number(t, "DBCONTROLLER_CAMPAIGN_FIRST", "1"), number(t, "DBCONTROLLER_CAMPAIGN_SEEDS", "1")
	var seeds []uint64
	if n > 20 {
		seeds = kept(t)
	}
	for seed := first; seed < first+n; seed++ {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			if n > 20 {
				t.Cleanup(func() {
					if t.Failed() {
						keep(t, seed)
					}
				})
			}
			steps := 80
			if n == 1 && os.Getenv("DBCONTROLLER_CAMPAIGN_BINARY") == "" {
				steps = 40 // make test
			}
			Play(t, Plan{
				Seed: seed, Binary: os.Getenv("DBCONTROLLER_CAMPAIGN_BINARY"), Rounds: 1, Steps: steps,
				HotCalls: 15,
			}, c)
		})
	}
	t.Logf("%d operations\n%s", c.Operations(), c)
	if n > 1 {
		require.Empty(t, c.Missing(moments...), "never came")
	}
	if n <= 20 {
		return
	}
	all := slices.Clone(rarer)
	for _, f := range faults {
		all = append(all, "fault: "+f.name)
	}
	for _, d := range delays {
		all = append(all, "delay: "+d.name)
	}
	require.Empty(t, c.Missing(all...), "never came")
	require.Less(t, 10*c.Count("hot: histories Unknown"), int(n), "histories that the checker could not decide")
	if t.Failed() {
		return // only passed campaigns are documented
	}
	text := fmt.Sprintf(campaignDocument, len(seeds), n, time.Since(began).Round(time.Minute), c.Operations(), c)
	require.NoError(t, os.WriteFile(filepath.Join(moduleRoot(t), "docs", "campaign.md"), []byte(text), 0o644)) //nolint:gosec // a document
}

const campaignDocument = `# The last long campaign

Made by ` + "`make campaign`" + ` (see [testing](testing.md)): %d campaigns (SEEDS=%d) in %s, %d puts and deletes with a definite outcome, beside
those of the hot targets. All passed. Each line counts one kind of event: an outcome, a fault, a delayed step of the protocol, a call on a
hot target (hot:), or a special moment; the last lines are the longest times.

` + "```" + `
%s` + "```" + `
`
