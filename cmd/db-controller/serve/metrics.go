package serve

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/shadow"
)

// metrics observes the nodes, and reads the outstanding work from the store at each scrape. Names and uids of
// resources are no labels.
type metrics struct {
	store   *shadow.Store
	process string // the name of this process; unique in the deployment
	// audits reports whether this process audits the deployment, and the pause between two audits; 0 for
	// none.
	audits func() (here bool, pause time.Duration)

	batches *prometheus.CounterVec
	items   *prometheus.CounterVec
	errors  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	resets  *prometheus.CounterVec

	failures failures

	differences   *prometheus.GaugeVec
	unaudited     prometheus.Gauge
	auditedBodies prometheus.Counter

	mu        sync.Mutex
	watches   map[watchKey]*watchState // guarded by mu
	auditedAt time.Time                // guarded by mu; zero before the first audit
	ledSince  time.Time                // guarded by mu; zero while this process does not audit

	// last are the last readings of the database. Of Collect, which runs once at a time.
	last readings
}

type watchKey struct{ watch, deployment string }

type watchState struct {
	primed  bool
	objects int           // of the last snapshot
	took    time.Duration // of the last snapshot; zero before the first
	began   time.Time
	heard   time.Time // zero before the first message
	lost    int64
	// ended: it is forgotten once the database can be read. Until then it may have ended because the database
	// is away, and its lag grows.
	ended bool
}

// liveHeap is go_gc_heap_live_bytes: the memory that the last garbage collection left.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

func newPrometheus() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(newBuildInfo(), collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func newMetrics(store *shadow.Store) *metrics {
	handler := []string{"handler", "deployment"}
	m := &metrics{
		store: store, watches: map[watchKey]*watchState{},
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dbcontroller_handler_batches_total",
			Help: "Runs of a handler.",
		}, handler),
		items: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dbcontroller_handler_items_total",
			Help: "Pieces of work, or deletions, that were passed to a handler.",
		}, handler),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dbcontroller_handler_errors_total",
			Help: "Runs of a handler that failed and are retried.",
		}, handler),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dbcontroller_handler_seconds", Help: "Duration of a run of a handler.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"handler"}),
		resets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dbcontroller_watch_lost_total",
			Help: "Watches that ended and were opened again.",
		}, []string{"watch", "deployment"}),
	}
	m.differences = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "dbcontroller_audit_differences",
		Help: "Differences that the last audit found, by kind.",
	}, []string{"kind"})
	m.unaudited = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dbcontroller_audit_unreachable_deployments",
		Help: "Deployments that did not answer the last audit.",
	})
	m.auditedBodies = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dbcontroller_audited_bodies_total",
		Help: "Bodies from which audits have derived references.",
	})
	return m
}

// register is called when all parts exist: a scrape reads them.
func (m *metrics) register(to *prometheus.Registry) {
	to.MustRegister(m.differences, m.unaudited, m.auditedBodies)
	to.MustRegister(m.batches, m.items, m.errors, m.seconds, m.resets, &cachedCollector{Collector: m})
}

// HandlerRan is constraint.Observer.
func (m *metrics) HandlerRan(handler string, d schema.DeploymentID, run constraint.HandlerRun) {
	m.batches.WithLabelValues(handler, d.String()).Inc()
	m.items.WithLabelValues(handler, d.String()).Add(float64(run.Items))
	m.seconds.WithLabelValues(handler).Observe(run.Took.Seconds())
	label := handler
	// a success of either task ends what the other one has told
	handler = strings.TrimSuffix(handler, constraint.Again)
	// no failure: status lists the pause
	if errors.Is(run.Err, peer.ErrHandlerPaused) || errors.Is(run.Err, peer.ErrPaused) {
		m.failures.ran(handler, d, nil, time.Time{})
		return
	}
	m.failures.ran(handler, d, cmp.Or(run.Err, run.Failed), run.Next)
	if run.Err != nil {
		m.errors.WithLabelValues(label, d.String()).Inc()
	}
}

// WatchPrimed is constraint.Observer.
func (m *metrics) WatchPrimed(watch string, d schema.DeploymentID, p constraint.Primed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.watch(watch, d)
	w.primed, w.ended = p.Done, p.Ended
	switch {
	case p.Done:
		w.objects, w.took = p.Objects, p.Took
	case !p.Began && !p.Ended:
		w.lost++
		m.resets.WithLabelValues(watch, d.String()).Inc()
	}
}

// WatchHeard is constraint.Observer.
func (m *metrics) WatchHeard(watch string, d schema.DeploymentID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watch(watch, d).heard = time.Now()
}

// watch is called with the lock.
func (m *metrics) watch(name string, d schema.DeploymentID) *watchState {
	key := watchKey{name, d.String()}
	if m.watches[key] == nil {
		m.watches[key] = &watchState{began: time.Now()}
	}
	return m.watches[key]
}

// forgetEnded forgets the watches that have ended, except the counters of their losses.
func (m *metrics) forgetEnded() {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.watches, func(_ watchKey, w *watchState) bool { return w.ended })
}

// watchList is for the status of the deployment.
func (m *metrics) watchList() (out []service.Watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, w := range m.watches {
		if w.ended {
			continue
		}
		out = append(out, service.Watch{
			Name: k.watch, Deployment: k.deployment, Primed: w.primed, Heard: w.heard,
			Lost: w.lost,
		})
	}
	slices.SortFunc(out, func(a, b service.Watch) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Deployment, b.Deployment))
	})
	return out
}

// forgetAudit forgets the last audit when another process leads the deployment, and audits it now.
func (m *metrics) forgetAudit(members []peer.Member) {
	if !slices.ContainsFunc(members, func(p peer.Member) bool {
		return p.Name != m.process && slices.Contains(p.Shards, schema.LeadShard)
	}) {
		return
	}
	m.mu.Lock()
	m.auditedAt = time.Time{}
	m.mu.Unlock()
	m.differences.Reset()
	m.unaudited.Set(0)
}

// auditDue returns when the next audit begins, or has begun if it has not ended; zero when this process does
// not audit. An audit that fails changes nothing: the one after it is as overdue.
func (m *metrics) auditDue() time.Time {
	if m.audits == nil {
		return time.Time{}
	}
	here, pause := m.audits()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !here:
		m.ledSince = time.Time{}
	case m.ledSince.IsZero():
		m.ledSince = time.Now()
	}
	if !here || pause <= 0 {
		return time.Time{}
	}
	from := m.ledSince
	if m.auditedAt.After(from) {
		from = m.auditedAt
	}
	return from.Add(pause)
}

// audited records the result of an audit.
func (m *metrics) audited(done shadow.Verified, found map[shadow.DifferenceKind]int) {
	m.differences.Reset()
	for kind, n := range found {
		m.differences.WithLabelValues(string(kind)).Set(float64(n))
	}
	m.mu.Lock()
	m.auditedAt = time.Now()
	m.mu.Unlock()
	m.unaudited.Set(float64(len(done.Unreachable)))
	m.auditedBodies.Add(float64(done.Bodies))
}
