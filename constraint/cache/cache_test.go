package cache_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/constraint/cache"
)

// device is an object with keys for each kind of index.
type device struct {
	name    string
	version int64
	owner   string
	targets []string
	size    int
	tags    map[string]string
}

var errOdd = errors.New("odd")

func newDevices() *cache.Cache[*device] {
	return cache.New(cache.Config[*device]{
		Kind: "devices", ID: func(d *device) string {
			return d.name
		}, Version: func(d *device) int64 { return d.version },
		Indexes: []cache.Index[*device]{
			{Name: "owner", Keys: func(d *device) ([]string, error) {
				if d.owner == "" {
					return nil, nil
				}
				return []string{d.owner}, nil
			}},
			{Name: "target", Keys: func(d *device) ([]string, error) { return d.targets, nil }},
			{Name: "large", Keys: func(d *device) ([]string, error) { // computed, and it may refuse
				if d.size < 0 {
					return nil, errOdd
				}
				return []string{fmt.Sprint(d.size > 10)}, nil
			}},
		},
		Clone: func(d *device) *device {
			c := *d
			c.targets, c.tags = slices.Clone(d.targets), maps.Clone(d.tags)
			return &c
		},
	})
}

func namesOf(all iter.Seq[*device]) (names []string) {
	for d := range all {
		names = append(names, d.name)
	}
	return names
}

// allOf returns the names of the objects of a view: each is large or not.
func allOf(t *testing.T, v *cache.View[*device]) (names []string) {
	t.Helper()
	for _, large := range []string{"true", "false"} {
		found, err := v.By("large", large)
		require.NoError(t, err)
		names = append(names, namesOf(found)...)
	}
	slices.Sort(names)
	return names
}

// Random operations on the cache and on a plain map, which is searched object by object.
func TestACacheAnswersAsAPlainMapDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, seed))
		c, model := newDevices(), map[string]*device{}
		var snapshot map[string]bool // the objects sent by an open snapshot
		for step := range 400 {
			name := fmt.Sprintf("fleets/f%d/devices/d%d", r.IntN(3), r.IntN(8))
			switch r.IntN(12) {
			default:
				d := &device{name: name, version: int64(r.IntN(step + 1)), size: r.IntN(20)}
				if r.IntN(3) > 0 {
					d.owner = fmt.Sprint("o", r.IntN(3))
				}
				for range r.IntN(3) {
					if target := fmt.Sprint("t", r.IntN(4)); !slices.Contains(d.targets, target) {
						d.targets = append(d.targets, target)
					}
				}
				changed, err := c.Upsert(d)
				require.NoError(t, err)
				old := model[name]
				require.Equal(t, old == nil || old.version < d.version, len(changed) == 1)
				if len(changed) == 1 {
					model[name] = d
				}
				if snapshot != nil {
					snapshot[name] = true
				}
			case 0, 1:
				version := int64(r.IntN(step + 1))
				gone := c.Delete(version, name)
				if old := model[name]; old != nil && (version == 0 || old.version <= version) {
					require.Equal(t, []*device{old}, gone)
					delete(model, name)
				} else {
					require.Empty(t, gone)
				}
			case 2:
				if snapshot == nil {
					c.Begin()
					snapshot = map[string]bool{}
					require.False(t, c.Primed())
					continue
				}
				var want []string
				for name := range model {
					if !snapshot[name] {
						want = append(want, name)
						delete(model, name)
					}
				}
				slices.Sort(want)
				require.Equal(t, want, namesOf(slices.Values(c.End())),
					"what the snapshot lacked is answered as deleted")
				require.True(t, c.Primed())
				snapshot = nil
			}
			compare(t, c.View(), model)
		}
	}
}

func compare(t *testing.T, v *cache.View[*device], model map[string]*device) {
	t.Helper()
	all := slices.Sorted(maps.Keys(model))
	require.Equal(t, all, allOf(t, v))
	want := func(fits func(*device) bool) (names []string) {
		for _, name := range all {
			if fits(model[name]) {
				names = append(names, name)
			}
		}
		return names
	}
	for i := range 4 {
		owner, target := fmt.Sprint("o", i), fmt.Sprint("t", i)
		found, err := v.By("owner", owner)
		require.NoError(t, err)
		require.Equal(t, want(func(d *device) bool { return d.owner == owner }), namesOf(found))
		found, err = v.By("target", target)
		require.NoError(t, err)
		require.Equal(t, want(func(d *device) bool { return slices.Contains(d.targets, target) }), namesOf(found))
	}
	for key, large := range map[string]bool{"true": true, "false": false} {
		found, err := v.By("large", key)
		require.NoError(t, err)
		require.Equal(t, want(func(d *device) bool { return d.size > 10 == large }), namesOf(found))
	}
}

// Readers see a version that does not change: each object has exactly one key in each index.
func TestReadersSeeOneVersionWhileWritersGoOn(t *testing.T) {
	t.Parallel()
	c := newDevices()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 200 {
		_, err := c.Upsert(&device{name: fmt.Sprintf("d%03d", i), version: 1, owner: "o0", targets: []string{"t0"}})
		require.NoError(t, err)
	}
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, owners, targets := c.View(), 0, 0
				first, _ := v.Get("d000")
				for key := range 2 {
					owned, err := v.By("owner", fmt.Sprint("o", key))
					if err != nil {
						panic(err)
					}
					for d := range owned {
						if owners++; d.owner != fmt.Sprint("o", key) || d.targets[0] != fmt.Sprint("t", key) {
							panic("two indexes of one version disagree")
						}
					}
					pointed, _ := v.By("target", fmt.Sprint("t", key))
					for range pointed {
						targets++
					}
				}
				if again, _ := v.Get("d000"); owners != 200 || targets != 200 || again != first {
					panic(fmt.Sprint("not one version: ", owners, targets, first, again))
				}
			}
		})
	}
	for step := range 20_000 {
		key := fmt.Sprint(step % 2)
		_, err := c.Upsert(&device{
			name: fmt.Sprintf("d%03d", step%200), version: int64(step + 2), owner: "o" + key,
			targets: []string{"t" + key},
		})
		require.NoError(t, err)
	}
	close(stop)
	wg.Wait()
}

func TestErrorsNameKindAndIndex(t *testing.T) {
	t.Parallel()
	c := newDevices()
	changed, err := c.Upsert(&device{name: "good", version: 1, owner: "o"}, &device{
		name: "odd", version: 1, owner: "o",
		size: -1,
	}, &device{version: 1, owner: "o"})
	require.Len(t, changed, 1, "the others are not kept out")
	require.ErrorIs(t, err, errOdd)
	require.ErrorContains(t, err, `cache of devices: the id "" cannot be one`)
	require.Equal(t, []string{"good"}, allOf(t, c.View()), "what is refused is in no index")
	// Refused as a whole: the version before stays, in all indexes.
	_, err = c.Upsert(&device{name: "good", version: 2, owner: "p", size: -1})
	require.ErrorIs(t, err, errOdd)
	owned, err := c.View().By("owner", "o")
	require.NoError(t, err)
	require.Equal(t, []string{"good"}, namesOf(owned))

	_, err = c.View().By("colour", "red")
	require.ErrorIs(t, err, cache.ErrUnknown)
	require.ErrorContains(t, err, `cache of devices: unknown index "colour": there are [owner target large]`)
	_, ok := c.View().Get("nobody")
	require.False(t, ok, "absent is no error")
}

// Code that gets copies may change them; neither the cache nor readers without copies see it.
func TestCopiesCanBeChangedFreely(t *testing.T) {
	t.Parallel()
	c := newDevices()
	stored := &device{
		name: "d", version: 1, owner: "o", targets: []string{"t"}, tags: map[string]string{"k": "v"},
		size: 20,
	}
	_, err := c.Upsert(stored)
	require.NoError(t, err)
	spoil := func(d *device) {
		require.NotSame(t, stored, d)
		d.owner, d.targets[0], d.tags["k"] = "spoilt", "spoilt", "spoilt"
	}
	v := c.Copies()
	got, _ := v.Get("d")
	spoil(got)
	for _, index := range []struct{ name, key string }{{"owner", "o"}, {"target", "t"}, {"large", "true"}} {
		found, err := v.By(index.name, index.key)
		require.NoError(t, err)
		for d := range found {
			spoil(d)
		}
	}
	uncopied, _ := c.View().Get("d")
	require.Same(t, stored, uncopied, "without copies it is the object itself")
	require.Equal(t, &device{
		name: "d", version: 1, owner: "o", targets: []string{"t"},
		tags: map[string]string{"k": "v"}, size: 20,
	}, stored)
}

const many = 100_000

func filled(b *testing.B, c *cache.Cache[*device]) []*device {
	b.Helper()
	all := make([]*device, many)
	for i := range all {
		all[i] = &device{
			name: fmt.Sprintf("fleets/f%d/devices/d%d", i%100, i), version: 1,
			owner: fmt.Sprint("o", i/10), targets: []string{fmt.Sprint("t", i%1000)},
		}
	}
	return all
}

func BenchmarkCache(b *testing.B) {
	c := newDevices()
	all := filled(b, c)
	b.Run("prime 100,000 with three indexes", func(b *testing.B) {
		for b.Loop() {
			c = newDevices()
			c.Begin()
			_, _ = c.Upsert(all...)
			c.End()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/many, "ns/object")
		var with, without runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&with)
		c = newDevices()
		runtime.GC()
		runtime.ReadMemStats(&without)
		b.ReportMetric(float64(with.HeapAlloc-without.HeapAlloc)/many, "B/object")
		_, _ = c.Upsert(all...)
	})
	v := c.View()
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, _ = v.Get(all[i%many].name)
		}
	})
	b.Run("get a copy", func(b *testing.B) {
		b.ReportAllocs()
		copies := c.Copies()
		for i := 0; b.Loop(); i++ {
			_, _ = copies.Get(all[i%many].name)
		}
	})
	b.Run("list of ten by an index", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			found, _ := v.By("owner", all[i%many].owner)
			for d := range found {
				_ = d
			}
		}
	})
	b.Run("all by an index", func(b *testing.B) {
		for b.Loop() {
			n := 0
			small, _ := v.By("large", "false")
			for d := range small {
				n += len(strings.TrimSpace(d.owner))
			}
		}
	})
}
