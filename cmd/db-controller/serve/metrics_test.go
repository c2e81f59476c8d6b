package serve

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/shadow"
)

// watched lists the gauges of watches.
func watched(t *testing.T, m *metrics) (names []string) {
	t.Helper()
	ch := make(chan prometheus.Metric, 20)
	m.collectTimes(ch)
	close(ch)
	for metric := range ch {
		var out dto.Metric
		assert.NoError(t, metric.Write(&out))
		name := describes.FindStringSubmatch(metric.Desc().String())[1]
		names = append(names, strings.TrimPrefix(name, "dbcontroller_watch_")+" "+out.GetLabel()[0].GetValue())
	}
	return names
}

// A watch that has ended for good, because its deployment was removed or another process took over its
// shards, has no gauges: its lag would grow for ever, and it would stay primed. While the database is away
// watches end with the lease of the process: their series stay, and the lag grows.
func TestAWatchThatHasEndedHasNoMetricsOnceTheDatabaseIsRead(t *testing.T) {
	m := newMetrics(nil)
	here, there := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}
	for _, d := range []schema.DeploymentID{here, there} {
		m.WatchPrimed("deletions", d, constraint.Primed{Began: true})
		m.WatchHeard("deletions", d)
		m.WatchPrimed("deletions", d, constraint.Primed{Done: true, Objects: 1, Took: time.Second})
	}
	m.WatchPrimed("deletions", there, constraint.Primed{}) // lost, and opened again
	assert.Len(t, watched(t, m), 8)
	m.WatchPrimed("deletions", there, constraint.Primed{Ended: true})
	assert.Len(t, watched(t, m), 8, "the database is away")
	assert.Len(t, m.watchList(), 1, "the status has only watches that run")
	m.forgetEnded()
	assert.ElementsMatch(t, []string{"lag_seconds " + here.String(), "primed " + here.String(), "snapshot_objects " +
		here.String(), "snapshot_seconds " + here.String()}, watched(t, m))
	m.WatchPrimed("deletions", here, constraint.Primed{Ended: true})
	m.WatchPrimed("deletions", here, constraint.Primed{Began: true})
	m.forgetEnded()
	assert.Len(t, watched(t, m), 4, "it began again")
}

// A watch that has never been answered has a lag from its start: an alert sees that it is missing.
func TestAWatchHasALagFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(nil)
		m.WatchPrimed("deletions", schema.DeploymentID{Service: "a.example.com", Region: "eastus2"},
			constraint.Primed{Began: true})
		time.Sleep(time.Minute)
		// the stream could not be opened
		m.WatchPrimed("deletions", schema.DeploymentID{Service: "a.example.com", Region: "eastus2"},
			constraint.Primed{})
		ch := make(chan prometheus.Metric, 20)
		m.collectTimes(ch)
		close(ch)
		values := map[string]float64{}
		for metric := range ch {
			var out dto.Metric
			assert.NoError(t, metric.Write(&out))
			values[describes.FindStringSubmatch(metric.Desc().String())[1]] = out.GetGauge().GetValue()
		}
		assert.Equal(t, map[string]float64{"dbcontroller_watch_lag_seconds": 60, "dbcontroller_watch_primed": 0},
			values)
	})
}

// A database that is away makes no series vanish: alerts on them would end.
func TestMetricsOfADatabaseThatIsAwayKeepTheirSeries(t *testing.T) {
	m := newMetrics(nil)
	m.last = readings{
		outstanding: []shadow.Outstanding{{Group: "confirm", Deployment: "b", Count: 3, Oldest: 10}}, at: time.Now().
				Add(-time.Minute),
		epoch: &shadow.EpochStatus{Ordinal: 2}, members: []peer.Member{{Name: "p"}},
		pauses: []shadow.Pause{{
			Of:      schema.DeploymentID{Service: "a.example.com", Region: "r"},
			Handler: schema.OwnedPending,
		}},
	}
	ch := make(chan prometheus.Metric, 20)
	m.last.collect(ch)
	m.collectTimes(ch)
	close(ch)
	values := map[string]float64{}
	for metric := range ch {
		var out dto.Metric
		assert.NoError(t, metric.Write(&out))
		values[describes.FindStringSubmatch(metric.Desc().String())[1]] = out.GetGauge().GetValue()
	}
	assert.InDelta(t, 70, values["dbcontroller_outstanding_work_oldest_seconds"], 5, "the age grows")
	assert.EqualValues(t, 3, values["dbcontroller_outstanding_work"])
	assert.EqualValues(t, 1, values["dbcontroller_paused"])
	assert.EqualValues(t, 2, values["dbcontroller_epoch"])
	assert.NotContains(t, values, "dbcontroller_audit_timestamp_seconds",
		"no audit has ended: 0 would be the oldest of all")
	m.audited(shadow.Verified{}, nil)
	ch = make(chan prometheus.Metric, 20)
	m.collectTimes(ch)
	assert.Len(t, ch, 1)
}

type registryDouble struct {
	registered error
	last       time.Time
	followed   bool
	rightsLost bool
}

func (r registryDouble) Registered() error        { return r.registered }
func (r registryDouble) Heard() (time.Time, bool) { return r.last, r.followed }
func (r registryDouble) RightsLost() bool         { return r.rightsLost }

func TestTheRegistryHasMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		client registryDouble
		want   int
	}{
		"at the start": {registryDouble{registered: errors.New("not yet")}, 3},
		"followed":     {registryDouble{last: time.Now(), followed: true, rightsLost: true}, 4},
	} {
		ch := make(chan prometheus.Metric, 4)
		registryCollector{c.client}.Collect(ch)
		assert.Len(t, ch, c.want, name)
		for range 3 { // registered, connected, rights lost
			var out dto.Metric
			assert.NoError(t, (<-ch).Write(&out))
			assert.Equal(t, truth(c.client.followed), out.GetGauge().GetValue(), name)
		}
	}
}

// gathered returns the values of counters and gauges by name and labels.
func gathered(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	assert.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			name := f.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// only gathers some of the collectors of a process: others would read its database.
func only(collectors ...prometheus.Collector) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors...)
	return r
}

func TestRunsOfHandlersAreCounted(t *testing.T) {
	m := newMetrics(nil)
	west := schema.DeploymentID{Service: "a.example.com", Region: "west"}
	m.HandlerRan("confirm", west, constraint.HandlerRun{Items: 20, Took: time.Second})
	again := time.Now().Add(time.Minute)
	m.HandlerRan("confirm", west, constraint.HandlerRun{
		Items: 5, Took: time.Second, Err: errors.New("refused"),
		Next: again,
	})
	m.HandlerRan("release", west, constraint.HandlerRun{Items: 1, Took: time.Second})
	values := gathered(t, only(m.batches, m.items, m.errors, m.seconds))
	assert.Equal(t, map[string]float64{
		"dbcontroller_handler_batches_total a.example.com/west confirm": 2,
		"dbcontroller_handler_batches_total a.example.com/west release": 1,
		"dbcontroller_handler_items_total a.example.com/west confirm":   25,
		"dbcontroller_handler_items_total a.example.com/west release":   1,
		"dbcontroller_handler_errors_total a.example.com/west confirm":  1,
		"dbcontroller_handler_seconds confirm":                          2, "dbcontroller_handler_seconds release": 1,
	}, values)
	if failed := m.failures.list(); assert.Len(t, failed, 1, "the status names the failure") {
		assert.Equal(t, again, failed[0].Next)
	}
}

func TestTheStatusListsWatchesWithTheirLosses(t *testing.T) {
	m := newMetrics(nil)
	here, there := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}
	m.WatchPrimed("shadows-1", here, constraint.Primed{Done: true, Objects: 3, Took: time.Second})
	for range 2 {
		m.WatchPrimed("deletions", there, constraint.Primed{})
	}
	m.WatchHeard("deletions", here)
	list := m.watchList()
	assert.Len(t, list, 3)
	assert.Equal(t, []string{
		"deletions a.example.com/eastus2", "deletions a.example.com/us-west2",
		"shadows-1 a.example.com/us-west2",
	},
		[]string{list[0].Name + " " + list[0].Deployment, list[1].Name + " " + list[1].Deployment, list[2].Name + " " +
			list[2].Deployment})
	assert.EqualValues(t, 2, list[0].Lost)
	assert.False(t, list[0].Primed)
	assert.False(t, list[1].Heard.IsZero())
	assert.True(t, list[2].Primed)
	assert.EqualValues(t, 2,
		gathered(t, only(m.resets))["dbcontroller_watch_lost_total a.example.com/eastus2 deletions"])
}

// An audit without a kind of difference removes the series of that kind: an alert on it ends.
func TestAnAuditReplacesTheOneBefore(t *testing.T) {
	m := newMetrics(nil)
	m.audited(shadow.Verified{Bodies: 10, Unreachable: map[schema.DeploymentID]error{{}: errors.New("refused")}},
		map[shadow.DifferenceKind]int{"A": 2, "B": 1})
	m.audited(shadow.Verified{Bodies: 5}, map[shadow.DifferenceKind]int{"B": 3})
	assert.Equal(t, map[string]float64{
		"dbcontroller_audit_differences B": 3, "dbcontroller_audit_unreachable_deployments": 0,
		"dbcontroller_audited_bodies_total": 15,
	}, gathered(t, only(m.differences, m.unaudited, m.auditedBodies)))
}

// The process that leads the deployment audits it. An earlier leader would show the differences of its last
// audit, and an audit that gets older, for ever.
func TestAnAuditIsForgottenWhenAnotherProcessLeads(t *testing.T) {
	m := newMetrics(nil)
	m.process = "a:1"
	m.audited(shadow.Verified{Bodies: 10, Unreachable: map[schema.DeploymentID]error{{}: errors.New("refused")}},
		map[shadow.DifferenceKind]int{"A": 2})
	series := func() map[string]float64 { return gathered(t, only(m.differences, m.unaudited)) }
	m.forgetAudit(nil)
	m.forgetAudit([]peer.Member{
		{Name: "a:1", Shards: []uint32{schema.LeadShard, 1}},
		{Name: "b:1", Shards: []uint32{2}},
	})
	assert.Equal(t, map[string]float64{
		"dbcontroller_audit_differences A":           2,
		"dbcontroller_audit_unreachable_deployments": 1,
	}, series())
	m.forgetAudit([]peer.Member{{Name: "a:1", Shards: []uint32{1}}, {Name: "b:1", Shards: []uint32{schema.LeadShard}}})
	assert.Equal(t, map[string]float64{"dbcontroller_audit_unreachable_deployments": 0}, series())
	assert.Empty(t, watched(t, m), "nor a time")
}

// An audit that never ends is overdue from the time at which it was to begin, also the first one of a
// process. One that fails changes nothing. A process that does not audit, because another one leads or audits
// are off, has no time.
func TestAnAuditThatDoesNotEndIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, began := newMetrics(nil), time.Now()
		assert.Zero(t, m.auditDue())
		here, pause := false, time.Hour
		m.audits = func() (bool, time.Duration) { return here, pause }
		assert.Zero(t, m.auditDue())
		time.Sleep(time.Minute)
		here = true
		assert.Equal(t, began.Add(61*time.Minute), m.auditDue())
		time.Sleep(5 * time.Hour)
		assert.Equal(t, began.Add(61*time.Minute), m.auditDue(), "none has ended")
		m.audited(shadow.Verified{}, nil)
		assert.Equal(t, time.Now().Add(time.Hour), m.auditDue())
		pause = 2 * time.Hour
		assert.Equal(t, time.Now().Add(2*time.Hour), m.auditDue(), "the pace has changed")
		pause = 0
		assert.Zero(t, m.auditDue(), "no audits")
		pause, here = time.Hour, false
		assert.Zero(t, m.auditDue())
		time.Sleep(24 * time.Hour)
		here = true
		assert.Equal(t, time.Now().Add(time.Hour), m.auditDue(), "it leads again")
		ch := make(chan prometheus.Metric, 2)
		m.collectTimes(ch)
		assert.Len(t, ch, 2, "the last audit, and the next one")
	})
}

// All results of deletes have a series before the first one: an alert on an increase sees it.
func TestResultsOfDeletesHaveSeriesFromTheStart(t *testing.T) {
	r := prometheus.NewRegistry()
	deleted := newDeletes(r)
	values := gathered(t, r)
	assert.Len(t, values, len(outcome.DeleteResults))
	for name, n := range values {
		assert.Zero(t, n, name)
	}
	deleted(outcome.DeleteResults[0], time.Second)
	newDeletionEnded(r)(time.Second)
	values = gathered(t, r)
	assert.EqualValues(t, 1, values["dbcontroller_delete_seconds "+string(outcome.DeleteResults[0])])
	assert.EqualValues(t, 1, values["dbcontroller_deletion_seconds"])
}

func TestRefusalsAreCountedByRole(t *testing.T) {
	r := prometheus.NewRegistry()
	refused := newRefused(r)
	for _, name := range []string{"ann", "bob"} {
		refused("calls", identity.Identity{Role: identity.RoleUser, Name: name})
	}
	assert.Equal(t, map[string]float64{"dbcontroller_refused_total user calls": 2}, gathered(t, r),
		"a label for each user would have no bound")
}

func TestADryRunPrintsSQLAlsoWhenNothingIsMissing(t *testing.T) {
	assert.Equal(t, "-- nothing to do: the database has the newest schema", dryRunText(nil))
	assert.Equal(t, "A\nB", dryRunText([]string{"A", "B"}))
}
