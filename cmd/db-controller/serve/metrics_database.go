package serve

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

var (
	outstandingDesc = prometheus.NewDesc("dbcontroller_outstanding_work",
		"Pieces of outstanding work, by group and deployment.", []string{"group", "deployment"}, nil)
	oldestDesc = prometheus.NewDesc("dbcontroller_outstanding_work_oldest_seconds",
		"Age of the oldest piece of outstanding work.", []string{"group", "deployment"}, nil)
	lagDesc = prometheus.NewDesc("dbcontroller_watch_lag_seconds",
		"Time since the last message of a watch, or since its start before the first; an idle watch sends one every five seconds.", []string{"watch", "deployment"}, nil)
	primedDesc = prometheus.NewDesc("dbcontroller_watch_primed",
		"Whether a watch has reached its end of snapshot.", []string{"watch", "deployment"}, nil)
	objectsDesc = prometheus.NewDesc("dbcontroller_watch_snapshot_objects",
		"Objects in the last snapshot of a watch; no series before the first.", []string{"watch", "deployment"}, nil)
	primingDesc = prometheus.NewDesc("dbcontroller_watch_snapshot_seconds",
		"Duration of the last snapshot of a watch; no series before the first.", []string{"watch", "deployment"}, nil)
	epochDesc = prometheus.NewDesc("dbcontroller_epoch",
		"Number of epochs of the database; more than one after a failover or a restore.", nil, nil)
	unconfirmedDesc = prometheus.NewDesc("dbcontroller_unconfirmed_deployments",
		"Deployments that have not compared their references since this database, or theirs, failed over; deletions of what they may refer to wait for them.", nil, nil)
	danglingDesc = prometheus.NewDesc("dbcontroller_dangling_references",
		"References whose targets do not exist any more; a person decides.", nil, nil)
	delegationsDesc = prometheus.NewDesc("dbcontroller_delegations",
		"Resources of another deployment to which this one may refer without asking, by right.",
		[]string{"deployment", "right"}, nil)
	attachedDesc = prometheus.NewDesc("dbcontroller_attached_rows",
		"Of attached tables: values whose right is asked for, with the deleted rows (waiting), and values whose target does not exist (incomplete).", []string{"state"}, nil)
	delegatedDesc = prometheus.NewDesc("dbcontroller_delegated_references_total",
		"References that this process has written without asking.", nil, nil)
	shardsDesc = prometheus.NewDesc("dbcontroller_shards",
		"Shards of the ring that a process of the deployment works on.", []string{"process"}, nil)
	pausedDesc = prometheus.NewDesc("dbcontroller_paused",
		"1 for each pause by an operator: deletions, or a handler; of the deployment itself, or for another one. No series without pauses.", []string{"what", "deployment"}, nil)
	upDesc = prometheus.NewDesc("dbcontroller_outstanding_work_up",
		"Whether the outstanding work could be read.", nil, nil)
	runningDesc = prometheus.NewDesc("dbcontroller_deletions_running",
		"Deletions with resources in DELETING here, or with holders here that were counted and are not removed yet.",
		nil, nil)
	leftDesc = prometheus.NewDesc("dbcontroller_deletions_resources_left",
		"Resources of running deletions that are not removed here yet: those in DELETING, and holders that were counted.", nil, nil)
	auditDueDesc = prometheus.NewDesc("dbcontroller_audit_due_timestamp_seconds",
		"When the next audit begins, or has begun if it has not ended; no series in a process that does not audit.",
		nil, nil)
	auditedAtDesc = prometheus.NewDesc("dbcontroller_audit_timestamp_seconds",
		"Time of the end of the last audit; no series before the first.", nil, nil)
)

// readings are the metrics that are read from the database. A part that cannot be read stays as it was, so
// that its series do not vanish while the database is away.
type readings struct {
	outstanding []shadow.Outstanding
	at          time.Time // of outstanding
	epoch       *shadow.EpochStatus
	members     []peer.Member
	delegations []shadow.Delegations
	deletions   *shadow.DeletionsLeft
	attached    *attachedRows
	pauses      []shadow.Pause
}

type attachedRows struct{ waiting, incomplete int64 }

// read reports whether the outstanding work could be read.
func (r *readings) read(ctx context.Context, store *shadow.Store) bool {
	outstanding, err := store.Admin.Outstanding(ctx)
	if err == nil {
		r.outstanding, r.at = outstanding, time.Now()
	}
	if e, err := store.Operate.Epoch(ctx); err == nil {
		r.epoch = &e
	}
	if members, err := store.Members(ctx); err == nil {
		r.members = members
	}
	if delegations, err := store.Targets.Delegations(ctx); err == nil {
		r.delegations = delegations
	}
	if left, err := store.Progress.DeletionsLeft(ctx); err == nil {
		r.deletions = &left
	}
	if waiting, incomplete, err := store.DeletedRows.Waiting(ctx); err == nil {
		r.attached = &attachedRows{waiting: waiting, incomplete: incomplete}
	}
	if pauses, err := store.Operate.Pauses(ctx); err == nil {
		r.pauses = pauses
	}
	return err == nil
}

// Describe is prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		outstandingDesc, oldestDesc, lagDesc, primedDesc, objectsDesc, primingDesc, upDesc, epochDesc, unconfirmedDesc,
		danglingDesc, shardsDesc, delegationsDesc, attachedDesc, delegatedDesc, auditedAtDesc, auditDueDesc,
		runningDesc, leftDesc, pausedDesc,
	} {
		ch <- d
	}
}

// Collect is prometheus.Collector. cachedCollector calls it once at a time.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	up := 0.0
	if m.last.read(ctx, m.store) {
		up = 1
		m.forgetEnded()
		m.forgetAudit(m.last.members)
	}
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up)
	ch <- prometheus.MustNewConstMetric(delegatedDesc, prometheus.CounterValue,
		float64(m.store.Write.DelegatedWrites()))
	m.last.collect(ch)
	m.collectTimes(ch)
}

func (r *readings) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, o := range r.outstanding {
		gauge(outstandingDesc, float64(o.Count), o.Group, o.Deployment)
		gauge(oldestDesc, o.Oldest+time.Since(r.at).Seconds(), o.Group, o.Deployment)
	}
	if e := r.epoch; e != nil {
		waiting := len(e.Unconfirmed)
		if e.Awaiting {
			waiting++ // the registry
		}
		gauge(epochDesc, float64(e.Ordinal))
		gauge(unconfirmedDesc, float64(waiting))
		gauge(danglingDesc, float64(e.Dangling))
	}
	if r.deletions != nil {
		gauge(runningDesc, float64(r.deletions.Running))
		gauge(leftDesc, float64(r.deletions.Resources))
	}
	if a := r.attached; a != nil {
		gauge(attachedDesc, float64(a.waiting), "waiting")
		gauge(attachedDesc, float64(a.incomplete), "incomplete")
	}
	for _, p := range r.pauses {
		gauge(pausedDesc, 1, cmp.Or(p.Handler.Text(), "deletions"), p.Of.String())
	}
	for _, member := range r.members {
		gauge(shardsDesc, float64(len(member.Shards)), member.Name)
	}
	for _, d := range r.delegations {
		gauge(delegationsDesc, float64(d.ActingHeld), d.Deployment.String(), "acting")
		gauge(delegationsDesc, float64(d.BlockHeld), d.Deployment.String(), "block")
	}
}

// collectTimes collects the metrics that need no database.
func (m *metrics) collectTimes(ch chan<- prometheus.Metric) {
	if due := m.auditDue(); !due.IsZero() {
		ch <- prometheus.MustNewConstMetric(auditDueDesc, prometheus.GaugeValue, float64(due.Unix()))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.auditedAt.IsZero() {
		ch <- prometheus.MustNewConstMetric(auditedAtDesc, prometheus.GaugeValue, float64(m.auditedAt.Unix()))
	}
	for k, w := range m.watches {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, k.watch, k.deployment)
		}
		since, primed := w.heard, 0.0
		if since.IsZero() {
			since = w.began
		}
		if w.primed {
			primed = 1
		}
		gauge(lagDesc, time.Since(since).Seconds())
		gauge(primedDesc, primed)
		if w.took > 0 {
			gauge(objectsDesc, float64(w.objects))
			gauge(primingDesc, w.took.Seconds())
		}
	}
}
