package scan

import (
	"cmp"
	"container/heap"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/db-controller/db-controller/internal/scan/report"
)

const (
	largest = 5    // that are reported
	heavies = 1024 // that are watched once a table has too many values to count each
)

// fanOut counts how often each value occurs, in bounded memory. Up to limit values every count is exact. From
// then on, the counts of a part of the values, chosen by their hash, are exact (the part is halved each time
// it grows beyond the limit), and the most frequent values are watched with a known error (space-saving).
type fanOut struct {
	seed   maphash.Seed
	limit  int
	shift  uint
	counts map[uint64]uint32
	top    []counted // of the values in counts, largest first
	heavy  heavy
	leads  []watched // after keep
}

type counted struct {
	value string
	n     uint32
}

func newFanOut(limit int) *fanOut {
	return &fanOut{
		seed: maphash.MakeSeed(), limit: limit, counts: map[uint64]uint32{},
		heavy: heavy{at: map[string]*watched{}},
	}
}

func (f *fanOut) add(value string, n uint32) {
	h := maphash.String(f.seed, value)
	f.heavy.add(value, n)
	if h<<(64-f.shift) != 0 && f.shift > 0 {
		return
	}
	f.counts[h] += n
	f.rank(value, f.counts[h])
	for len(f.counts) > f.limit {
		f.shift++
		for h := range f.counts {
			if h<<(64-f.shift) != 0 {
				delete(f.counts, h)
			}
		}
		f.top = slices.DeleteFunc(f.top, func(c counted) bool { return f.counts[maphash.String(f.seed, c.value)] == 0 })
	}
}

// count returns the number of a value, 0 when it is not known.
func (f *fanOut) count(value string) uint32 {
	if w := f.heavy.at[value]; w != nil && w.err == 0 {
		return w.n
	}
	return f.counts[maphash.String(f.seed, value)]
}

// rank keeps the largest counts: counts only grow, so that a value enters with its last.
func (f *fanOut) rank(value string, n uint32) {
	if i := slices.IndexFunc(f.top, func(c counted) bool { return c.value == value }); i >= 0 {
		f.top[i].n = n
	} else if len(f.top) < largest || n > f.top[len(f.top)-1].n {
		f.top = append(f.top, counted{value, n})
	} else {
		return
	}
	slices.SortStableFunc(f.top, func(a, b counted) int { return cmp.Compare(b.n, a.n) })
	f.top = f.top[:min(len(f.top), largest)]
}

// distinct returns the number of values.
func (f *fanOut) distinct() report.Number {
	return report.Number{N: int64(len(f.counts)) << f.shift, About: f.shift > 0}
}

// result returns the distribution, with the values as decode writes them.
func (f *fanOut) result(decode func(string) []string) report.FanOut {
	out := report.FanOut{Targets: f.distinct(), Largest: []report.Holders{}}
	counts := make([]uint32, 0, len(f.counts))
	for _, n := range f.counts {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	if n := len(counts); n > 0 {
		at := func(percent int) int64 { return int64(counts[max(0, (n*percent+99)/100-1)]) }
		out.Median, out.P90, out.P99 = at(50), at(90), at(99)
	}
	for _, c := range f.leaders() {
		out.Largest = append(out.Largest, report.Holders{Target: decode(c.value), Rows: report.Number{
			N:     int64(c.n),
			About: c.err > 0,
		}})
	}
	return out
}

// keep ends the counting: of the counts, the n largest that are exact remain, and the leaders.
func (f *fanOut) keep(n int) {
	f.leads = slices.Clone(f.leaders())
	for value, w := range f.heavy.at {
		if w.err == 0 {
			f.counts[maphash.String(f.seed, value)] = w.n
		}
	}
	f.top, f.heavy = nil, heavy{}
	if len(f.counts) <= n {
		return
	}
	hashes := slices.SortedFunc(maps.Keys(f.counts), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(f.counts[b], f.counts[a]), cmp.Compare(a, b))
	})
	kept := make(map[uint64]uint32, n)
	for _, h := range hashes[:n] {
		kept[h] = f.counts[h]
	}
	f.counts = kept
}

// leaders returns the values with the largest counts; the counts of watched values are without their possible
// error.
func (f *fanOut) leaders() []watched {
	if f.leads != nil {
		return f.leads
	}
	out := make([]watched, 0, heavies)
	exact := map[string]bool{}
	for _, c := range f.top {
		out = append(out, watched{value: c.value, n: c.n})
		exact[c.value] = true
	}
	if f.shift > 0 {
		for _, w := range f.heavy.list {
			if !exact[w.value] && w.n > w.err {
				out = append(out, watched{value: w.value, n: w.n - w.err, err: w.err})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b watched) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.value, b.value))
	})
	return out[:min(len(out), largest)]
}

// heavy watches the most frequent values: a new one takes the place of the least frequent, and its count as
// its error.
type heavy struct {
	at   map[string]*watched
	list []*watched // a heap by n
}

type watched struct {
	value  string
	n, err uint32
	index  int
}

func (h *heavy) add(value string, n uint32) {
	if w := h.at[value]; w != nil {
		w.n += n
		heap.Fix(h, w.index)
		return
	}
	if len(h.list) < heavies {
		w := &watched{value: value, n: n}
		h.at[value] = w
		heap.Push(h, w)
		return
	}
	w := h.list[0]
	delete(h.at, w.value)
	h.at[value] = w
	w.value, w.err = value, w.n
	w.n += n
	heap.Fix(h, 0)
}

func (h *heavy) Len() int           { return len(h.list) }
func (h *heavy) Less(i, j int) bool { return h.list[i].n < h.list[j].n }
func (h *heavy) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

// Push is for the heap.
func (h *heavy) Push(x any) {
	w := x.(*watched)
	w.index = len(h.list)
	h.list = append(h.list, w)
}

// Pop is for the heap.
func (h *heavy) Pop() any {
	w := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return w
}
