package main

import (
	"context"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// metrics observes the nodes, and reads the outstanding work from the store at each scrape. Names and uids of resources are
// no labels.
type metrics struct {
	store *shadow.Store

	batches *prometheus.CounterVec
	items   *prometheus.CounterVec
	errors  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	resets  *prometheus.CounterVec
	primed  *prometheus.GaugeVec
	objects *prometheus.GaugeVec
	priming *prometheus.GaugeVec

	failures failures

	differences   *prometheus.GaugeVec
	auditedAt     prometheus.Gauge
	unaudited     prometheus.Gauge
	auditedBodies prometheus.Counter

	mu    sync.Mutex
	heard map[watchKey]time.Time // guarded by mu
}

type watchKey struct{ watch, deployment string }

var (
	outstandingDesc = prometheus.NewDesc("dbcontroller_outstanding_work", "Pieces of outstanding work, by group and deployment.", []string{"group", "deployment"}, nil)
	oldestDesc      = prometheus.NewDesc("dbcontroller_outstanding_work_oldest_seconds", "Age of the oldest piece of outstanding work.", []string{"group", "deployment"}, nil)
	lagDesc         = prometheus.NewDesc("dbcontroller_watch_lag_seconds", "Time since the last message of a watch; an idle watch sends one every five seconds.", []string{"watch", "deployment"}, nil)
	epochDesc       = prometheus.NewDesc("dbcontroller_epoch", "Number of epochs of the database; more than one after a failover or a restore.", nil, nil)
	unconfirmedDesc = prometheus.NewDesc("dbcontroller_unconfirmed_deployments", "Deployments that have not confirmed their references in the current epoch; nothing is deleted until they have.", nil, nil)
	danglingDesc    = prometheus.NewDesc("dbcontroller_dangling_references", "References whose targets do not exist any more; a person decides.", nil, nil)
	delegationsDesc = prometheus.NewDesc("dbcontroller_delegations", "Resources of another deployment to which this one may refer without asking, by right.", []string{"deployment", "right"}, nil)
	delegatedDesc   = prometheus.NewDesc("dbcontroller_delegated_references_total", "References that this process has written without asking.", nil, nil)
	shardsDesc      = prometheus.NewDesc("dbcontroller_shards", "Shards of the ring that a process of the deployment works on.", []string{"process"}, nil)
	upDesc          = prometheus.NewDesc("dbcontroller_outstanding_work_up", "Whether the outstanding work could be read.", nil, nil)
)

// liveHeap is go_gc_heap_live_bytes: the memory that the last garbage collection left.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}

func newPrometheus() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(newBuildInfo(), collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func newMetrics(registry *prometheus.Registry, store *shadow.Store) *metrics {
	handler := []string{"handler", "deployment"}
	m := &metrics{
		store: store, heard: map[watchKey]time.Time{},
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dbcontroller_handler_batches_total", Help: "Runs of a handler."}, handler),
		items:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dbcontroller_handler_items_total", Help: "Pieces of work, or deletions, that were passed to a handler."}, handler),
		errors:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dbcontroller_handler_errors_total", Help: "Runs of a handler that failed and are retried."}, handler),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dbcontroller_handler_seconds", Help: "Duration of a run of a handler.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"handler"}),
		resets:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dbcontroller_watch_lost_total", Help: "Watches that ended and were opened again."}, []string{"watch", "deployment"}),
		primed:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dbcontroller_watch_primed", Help: "Whether a watch has reached its end of snapshot."}, []string{"watch", "deployment"}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dbcontroller_watch_snapshot_objects", Help: "Objects in the last snapshot of a watch."}, []string{"watch", "deployment"}),
		priming: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dbcontroller_watch_snapshot_seconds", Help: "Duration of the last snapshot of a watch."}, []string{"watch", "deployment"}),
	}
	m.differences = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dbcontroller_audit_differences", Help: "Differences that the last audit found, by kind."}, []string{"kind"})
	m.auditedAt = prometheus.NewGauge(prometheus.GaugeOpts{Name: "dbcontroller_audit_timestamp_seconds", Help: "Time of the end of the last audit."})
	m.unaudited = prometheus.NewGauge(prometheus.GaugeOpts{Name: "dbcontroller_audit_unreachable_deployments", Help: "Deployments that did not answer the last audit."})
	m.auditedBodies = prometheus.NewCounter(prometheus.CounterOpts{Name: "dbcontroller_audited_bodies_total", Help: "Bodies from which audits have derived references."})
	registry.MustRegister(m.differences, m.auditedAt, m.unaudited, m.auditedBodies)
	registry.MustRegister(m.batches, m.items, m.errors, m.seconds, m.resets, m.primed, m.objects, m.priming, &cachedCollector{Collector: m})
	return m
}

// HandlerRan is constraint.Observer.
func (m *metrics) HandlerRan(handler string, d schema.DeploymentID, items int, took time.Duration, err error) {
	m.batches.WithLabelValues(handler, d.String()).Inc()
	m.items.WithLabelValues(handler, d.String()).Add(float64(items))
	m.seconds.WithLabelValues(handler).Observe(took.Seconds())
	m.failures.ran(handler, d, err)
	if err != nil {
		m.errors.WithLabelValues(handler, d.String()).Inc()
	}
}

// WatchPrimed is constraint.Observer.
func (m *metrics) WatchPrimed(watch string, d schema.DeploymentID, p constraint.Primed) {
	if p.Ended {
		m.forget(watch, d)
		return
	}
	if !p.Done {
		m.resets.WithLabelValues(watch, d.String()).Inc()
		m.primed.WithLabelValues(watch, d.String()).Set(0)
		return
	}
	m.primed.WithLabelValues(watch, d.String()).Set(1)
	m.objects.WithLabelValues(watch, d.String()).Set(float64(p.Objects))
	m.priming.WithLabelValues(watch, d.String()).Set(p.Took.Seconds())
}

// forget removes the series of a watch, except the counter of its losses.
func (m *metrics) forget(watch string, d schema.DeploymentID) {
	for _, gauge := range []*prometheus.GaugeVec{m.primed, m.objects, m.priming} {
		gauge.DeleteLabelValues(watch, d.String())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.heard, watchKey{watch, d.String()})
}

// WatchHeard is constraint.Observer.
func (m *metrics) WatchHeard(watch string, d schema.DeploymentID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard[watchKey{watch, d.String()}] = time.Now()
}

// audited records the result of an audit.
func (m *metrics) audited(done shadow.Verified, found map[shadow.DifferenceKind]int) {
	m.differences.Reset()
	for kind, n := range found {
		m.differences.WithLabelValues(string(kind)).Set(float64(n))
	}
	m.auditedAt.SetToCurrentTime()
	m.unaudited.Set(float64(len(done.Unreachable)))
	m.auditedBodies.Add(float64(done.Bodies))
}

// Describe is prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- outstandingDesc
	ch <- oldestDesc
	ch <- lagDesc
	ch <- upDesc
	ch <- epochDesc
	ch <- unconfirmedDesc
	ch <- danglingDesc
	ch <- shardsDesc
	ch <- delegationsDesc
	ch <- delegatedDesc
}

// Collect is prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	outstanding, err := m.store.Outstanding(ctx)
	up := 1.0
	if err != nil {
		up = 0
	}
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up)
	for _, o := range outstanding {
		ch <- prometheus.MustNewConstMetric(outstandingDesc, prometheus.GaugeValue, float64(o.Count), o.Group, o.Deployment)
		ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, o.Oldest, o.Group, o.Deployment)
	}
	if e, err := m.store.Epoch(ctx); err == nil {
		waiting := len(e.Unconfirmed)
		if e.Awaiting {
			waiting++ // the registry
		}
		ch <- prometheus.MustNewConstMetric(epochDesc, prometheus.GaugeValue, float64(e.Ordinal))
		ch <- prometheus.MustNewConstMetric(unconfirmedDesc, prometheus.GaugeValue, float64(waiting))
		ch <- prometheus.MustNewConstMetric(danglingDesc, prometheus.GaugeValue, float64(e.Dangling))
	}
	if members, err := m.store.Members(ctx); err == nil {
		for _, member := range members {
			ch <- prometheus.MustNewConstMetric(shardsDesc, prometheus.GaugeValue, float64(len(member.Shards)), member.Name)
		}
	}
	if delegations, err := m.store.Delegations(ctx); err == nil {
		for _, d := range delegations {
			ch <- prometheus.MustNewConstMetric(delegationsDesc, prometheus.GaugeValue, float64(d.ActingHeld), d.Deployment.String(), "acting")
		}
	}
	ch <- prometheus.MustNewConstMetric(delegatedDesc, prometheus.CounterValue, float64(m.store.DelegatedWrites()))
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, at := range m.heard {
		ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, time.Since(at).Seconds(), k.watch, k.deployment)
	}
}
