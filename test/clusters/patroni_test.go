package clusters

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// targets is the number of targets that the load's holders refer to.
const targets = 10

// writer writes resources with new names, one after the other, whatever fails.
type writer struct {
	mu      sync.Mutex
	done    []string           // guarded by mu; names that were acknowledged
	last    time.Time          // guarded by mu; when the last one was
	longest time.Duration      // guarded by mu; between two of them
	errors  map[string]int     // guarded by mu; by their text
	odd     map[codes.Code]int // guarded by mu; answers that are definite
}

func (w *writer) run(ctx context.Context, f *fixture, prefix string, content func(i int) fields) {
	w.last, w.errors, w.odd = time.Now(), map[string]int{}, map[codes.Code]int{}
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s%d", prefix, i)
		call, cancel := context.WithTimeout(f.t.Context(), 2*time.Second)
		err := f.put(call, name, content(i))
		cancel()
		w.mu.Lock()
		if err == nil {
			w.done = append(w.done, name)
			w.longest, w.last = max(w.longest, time.Since(w.last)), time.Now()
		} else {
			text := status.Convert(err).Message()
			if i := strings.LastIndex(text, "could not be checked: "); i >= 0 {
				text = text[i:]
			}
			text, _, _ = strings.Cut(text, " (request ")
			w.errors[text]++
			if !later(err) {
				w.odd[status.Code(err)]++
			}
		}
		w.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.done)
}

// both are the deployments of targets, which reach the cluster in two ways.
var both = map[string]string{aWest: "west", aEast: "east"}

// load is what the deployments are written to meanwhile: targets in some of them, and holders of these.
type load struct {
	f       *fixture
	end     func()
	writers map[string]*writer
}

func (f *fixture) load(event string, of map[string]string) *load {
	ctx, cancel := context.WithCancel(f.t.Context())
	l := &load{f: f, writers: map[string]*writer{}}
	var all sync.WaitGroup
	write := func(name, prefix string, content func(i int) fields) {
		w := &writer{}
		l.writers[name] = w
		all.Go(func() { w.run(ctx, f, prefix, content) })
	}
	for at, region := range of {
		write("targets, "+region, at+"targets/"+event+"-", func(int) fields { return nil })
		for _, behaviour := range []string{"block", "cascade"} {
			write(behaviour+" targets, "+region, bWest+"holders/"+event+"-"+region+"-"+behaviour+"-",
				func(i int) fields {
					return fields{behaviour: fmt.Sprintf("%stargets/%d", at, i%targets)}
				})
		}
	}
	l.end = func() { cancel(); all.Wait() }
	l.flows()
	return l
}

// flows waits until each writer has written again.
func (l *load) flows() {
	l.f.t.Helper()
	for name, w := range l.writers {
		before := w.count()
		require.Eventually(l.f.t, func() bool { return w.count() > before+1 }, 5*time.Minute, 10*time.Millisecond, name)
	}
}

// watched notes what /readyz says of a deployment, once for each change.
func (f *fixture) watched(ctx context.Context, deployment string) (said func() []string) {
	var pages []string
	var all sync.WaitGroup
	url, began := f.Deployments[id(f.t, deployment)].HTTP+"/readyz", time.Now()
	all.Go(func() {
		for last := ""; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			var bad []string
			code, text, _ := strings.Cut(page(url), " ")
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "[-]") {
					bad = append(bad, strings.TrimSpace(line))
				}
			}
			if now := code + " " + strings.Join(bad, "; "); now != last {
				pages = append(pages, fmt.Sprintf("%5.1f s: %s", time.Since(began).Seconds(), now))
				last = now
			}
		}
	})
	return func() []string { all.Wait(); return pages }
}

// logged is what a process has logged beyond a size.
func logged(t *testing.T, path string, since int) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw[min(since, len(raw)):])
}

// Three nodes under Patroni switch over in order, and lose their leader under load with commits that no
// standby has. The deployments of targets reach them by a DSN with all hosts, and through HAProxy.
func TestClustersPatroni(t *testing.T) {
	chosen(t)
	for _, synchronous := range []bool{false, true} {
		t.Run(map[bool]string{false: "asynchronous", true: "synchronous"}[synchronous], func(t *testing.T) {
			c := startNodes(t, synchronous)
			east := "  - { deployment: a.example.com/eastus2, version: v1 }\n"
			f := start(t, strings.TrimSpace(services)+"\n"+east, map[string]string{
				aWest: c.hosts("west"),
				aEast: c.proxied("east"),
			})
			for i := range targets {
				f.mustPut(fmt.Sprintf("%stargets/%d", aWest, i), nil)
				f.mustPut(fmt.Sprintf("%stargets/%d", aEast, i), nil)
			}
			f.settled()
			f.through("switchover", 2, false, c.switchover)
			f.through("crash", 3, !synchronous, func() {
				n := c.leader()
				senders := c.behind(n)
				time.Sleep(time.Second) // of writes that no standby gets
				c.crash(n, senders)
				c.eventually("another node leads", func() bool {
					l := c.answering("/primary")
					return l != nil && l != n
				})
			})
		})
	}
}

// through lets something happen under load, and looks at both sides afterwards.
func (f *fixture) through(event string, epoch int64, loses bool, happen func()) {
	f.t.Helper()
	places := map[string]string{"all hosts in the DSN": aWest, "HAProxy": aEast}
	logs, pages := map[string]int{}, map[string]func() []string{}
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	for way, at := range places {
		logs[way] = len(logged(f.t, f.Deployments[id(f.t, at)].Log(), 0))
		pages[way] = f.watched(ctx, at)
	}
	l := f.load(event, both)
	began := time.Now()
	happen()
	f.t.Logf("%s: done after %.1f s", event, time.Since(began).Seconds())
	for _, at := range places {
		f.agreed(strings.Trim(at, "/"), epoch)
	}
	f.t.Logf("%s: all have compared their references after %.1f s", event, time.Since(began).Seconds())
	l.flows()
	l.end()
	cancel()
	f.settled()

	lost := 0
	for name, w := range l.writers {
		f.t.Logf("%s: %s: %d written, at most %.1f s without one", event, name, len(w.done), w.longest.Seconds())
		for text, n := range w.errors {
			f.t.Logf("    %d times: %s", n, text)
		}
		require.Empty(f.t, w.odd, "definite answers")
		for _, written := range w.done {
			if !f.exists(written) {
				require.True(f.t, strings.HasPrefix(written, aWest) || strings.HasPrefix(written, aEast),
					"%s is in another database", written)
				lost++
			}
		}
	}
	f.t.Logf("%s: %d acknowledged targets are lost", event, lost)
	require.True(f.t, loses || lost == 0)
	for way, at := range places {
		name := strings.Trim(at, "/")
		for _, said := range pages[way]() {
			f.t.Logf("%s: readyz, %s: %s", event, way, said)
		}
		out, code := f.run("status", name)
		require.Zero(f.t, code, out)
		require.Contains(f.t, out, fmt.Sprintf("the database was failed over or restored %s, last noticed",
			map[int64]string{2: "1 time", 3: "2 times"}[epoch]))
		f.t.Logf("%s: status, %s: %s", event, way, out)
		require.Contains(f.t, page(f.Deployments[id(f.t, name)].HTTP+"/metrics"),
			fmt.Sprintf("\ndbcontroller_epoch %d\n", epoch))
		log := logged(f.t, f.Deployments[id(f.t, name)].Log(), logs[way])
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, "is available again") {
				f.t.Logf("%s: log, %s: %s", event, way, line)
			}
		}
		require.NotContains(f.t, log, `"level":"error"`)
		require.Equal(f.t, 1, strings.Count(log, "the database is unavailable"), way)
		require.Equal(f.t, 1, strings.Count(log, "the database is available again"), way)
		for i := range targets {
			require.Equal(f.t, codes.FailedPrecondition, status.Code(f.delete(fmt.Sprintf("%stargets/%d", at, i))),
				"live holders block it")
		}
	}
	require.Zero(f.t, f.status(f.t, strings.Trim(bWest, "/")).GetDanglingReferences())
	f.verified()
}
