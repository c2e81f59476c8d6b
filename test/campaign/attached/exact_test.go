package attached

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// seeds returns the seeds to play: DBCONTROLLER_ATTACHED_SEEDS is their number (one in a short run),
// DBCONTROLLER_ATTACHED_FIRST the first one.
func seeds(t *testing.T, otherwise int) (out []uint64) {
	t.Helper()
	if testing.Short() {
		otherwise = 1
	}
	number := func(name string, n int) int {
		if text := os.Getenv(name); text != "" {
			var err error
			n, err = strconv.Atoi(text)
			require.NoError(t, err, name)
		}
		return n
	}
	first := number("DBCONTROLLER_ATTACHED_FIRST", 1)
	for seed := first; seed < first+number("DBCONTROLLER_ATTACHED_SEEDS", otherwise); seed++ {
		out = append(out, uint64(seed)) //nolint:gosec // small
	}
	return out
}

// When everything that was written before a deletion has its rights, plain SQL over attached tables of three
// databases decides, and ends, as it does in one database with native keys.
func TestAttachedTablesDecideAsNativeKeys(t *testing.T) {
	for _, seed := range seeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playExactly(t, seed, 60, false) })
	}
}

// With strict references nothing has to be stored before a deletion, and a target that does not exist is
// refused.
func TestStrictTablesDecideAsNativeKeys(t *testing.T) {
	for _, seed := range seeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playExactly(t, seed, 30, true) })
	}
}

type exact struct {
	*world
	o       *oracle
	g       *generator
	r       *rand.Rand // of the controllers, which run beside the application
	flight  bool       // a deletion may not have reached everything
	compare int
}

func playExactly(t *testing.T, seed uint64, steps int, strict bool) {
	t.Helper()
	w := newWorld(t, strict)
	p := &exact{
		world: w, o: newOracle(t, strict), g: &generator{Rand: rand.New(rand.NewPCG(seed, 1))},
		r: rand.New(rand.NewPCG(seed, 2)),
	}
	for range 15 { // tables that exist, with rows: only their own keys decide
		p.play(true)
	}
	for _, d := range deployments {
		w.attach(d)
		w.Capture(w.ID(d))
	}
	p.rest()
	for i := range steps {
		p.play(false)
		for range p.r.IntN(4) {
			w.step(p.r)
		}
		switch p.r.IntN(20) {
		case 0:
			d := deployments[p.r.IntN(3)]
			w.note("another process at %s", d)
			w.crash(d)
		case 1:
			d := deployments[p.r.IntN(3)]
			w.note("%s is away", d)
			w.SetDown(d, true)
		}
		if i%15 == 14 {
			p.rest()
		}
	}
	p.rest()
	t.Logf("seed %d: %d decisions compared", seed, p.compare)
}

// play plays a transaction in both, and compares the decisions. before: the tables are not attached.
func (p *exact) play(before bool) {
	p.t.Helper()
	tx := p.g.transaction()
	if before && tx.deletes {
		return
	}
	if tx.deletes || p.flight {
		p.settle()
		p.flight = false
	}
	acted, would := p.o.play(tx, false)
	if before && (acted || p.strict && would != nil) {
		return // no process looks at missing targets yet
	}
	err := p.insist(tx.at, func() error { return p.beside(tx, before) })
	p.note("%v: %v (native: %v)", tx, err, would)
	if would == nil && refusal(err) == "23503" { // a reference that was dropped, and is not released
		p.settle()
		p.flight = false
		if err = p.insist(tx.at, func() error { return p.beside(tx, true) }); tx.strict && err != nil {
			return
		}
	}
	if refusal(err) == "55006" { // it uses a key again that it has deleted
		return
	}
	p.compare++
	if refusal(err) != refusal(would) || (err == nil) != (would == nil) {
		p.wrong("%v\nends with %v, and with native keys with %v", tx, err, would)
	}
	if err != nil {
		return
	}
	_, err = p.o.play(tx, true)
	require.NoError(p.t, err)
	p.flight = p.flight || tx.deletes
	if acted && !before {
		p.settle()
	}
}

// beside runs a transaction while the controllers run.
func (p *exact) beside(tx transaction, alone bool) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	return p.run(p.apps[tx.at], tx, func() {
		if !alone && tx.isolation == "READ COMMITTED" && p.r.IntN(3) == 0 {
			beside.Wait()
			seed := p.r.Uint64()
			beside.Go(func() { p.step(rand.New(rand.NewPCG(seed, 3))) })
		}
	})
}

// rest settles, and compares everything.
func (p *exact) rest() {
	p.t.Helper()
	p.note("rest")
	p.settle()
	p.flight = false
	for table := range columns {
		if want, got := read(p.t, p.o.conn, table), read(p.t, p.apps[databaseOf[table]], table); !slices.Equal(want,
			got) {
			p.wrong("%s has %q, and with native keys %q", table, got, want)
		}
	}
	want := p.bodies(p.o.table, reference.fk)
	if different := same(p.t, want, p.held()); different != "" {
		p.wrong("%s", different)
	}
	all := p.bodies(p.o.table, func(r reference) []string { return r.columns })
	missing, others := p.notes()
	if len(others) > 0 {
		p.wrong("rows wait without end: %q", others)
	}
	for name, body := range all {
		if orphan := same(p.t, map[string]string{name: body},
			map[string]string{name: want[name]}) != ""; orphan != slices.Contains(missing, name) {
			p.wrong("%s refers to %s; reported as missing: %q", name, body, missing)
		}
	}
	if problems := harness.AuditDatabases(p.t, p.Pools); len(problems) > 0 {
		p.wrong("%v", problems)
	}
}
