package serve

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// watched lists the gauges of watches; counters are never removed.
func watched(t *testing.T, m *metrics) (names []string) {
	t.Helper()
	m.mu.Lock()
	for key := range m.watches {
		names = append(names, "lag "+key.deployment)
	}
	m.mu.Unlock()
	for name, vec := range map[string]*prometheus.GaugeVec{"primed ": m.primed, "objects ": m.objects, "seconds ": m.priming} {
		r := prometheus.NewRegistry()
		assert.NoError(t, r.Register(vec))
		families, err := r.Gather()
		assert.NoError(t, err)
		for _, f := range families {
			for _, s := range f.GetMetric() {
				names = append(names, name+s.GetLabel()[0].GetValue())
			}
		}
	}
	return names
}

// A watch that has ended for good, because its deployment was removed or another process took over its shards, has no gauges:
// its lag would grow for ever, and it would stay primed.
func TestAWatchThatHasEndedHasNoMetrics(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), nil)
	here, there := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}, schema.DeploymentID{Service: "a.example.com", Region: "eastus2"}
	for _, d := range []schema.DeploymentID{here, there} {
		m.WatchHeard("deletions", d)
		m.WatchPrimed("deletions", d, constraint.Primed{Done: true, Objects: 1})
	}
	m.WatchPrimed("deletions", there, constraint.Primed{}) // lost, and opened again
	assert.Len(t, watched(t, m), 8)
	m.WatchPrimed("deletions", there, constraint.Primed{Ended: true})
	assert.ElementsMatch(t, []string{"lag " + here.String(), "primed " + here.String(), "objects " + here.String(), "seconds " + here.String()}, watched(t, m))
}

// A database that is away makes no series vanish: alerts on them would end.
func TestMetricsOfADatabaseThatIsAwayKeepTheirSeries(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), nil)
	m.last = readings{
		outstanding: []shadow.Outstanding{{Group: "confirm", Deployment: "b", Count: 3, Oldest: 10}}, at: time.Now().Add(-time.Minute),
		epoch: &shadow.EpochStatus{Ordinal: 2}, members: []schema.Member{{Name: "p"}},
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
	assert.EqualValues(t, 2, values["dbcontroller_epoch"])
	assert.NotContains(t, values, "dbcontroller_audit_timestamp_seconds", "no audit has ended: 0 would be the oldest of all")
	m.audited(shadow.Verified{}, nil)
	ch = make(chan prometheus.Metric, 20)
	m.collectTimes(ch)
	assert.Len(t, ch, 1)
}

type registryDouble struct {
	registered error
	last       time.Time
	followed   bool
}

func (r registryDouble) Registered() error        { return r.registered }
func (r registryDouble) Heard() (time.Time, bool) { return r.last, r.followed }

func TestTheRegistryHasMetrics(t *testing.T) {
	for name, c := range map[string]struct {
		client registryDouble
		want   int
	}{
		"at the start": {registryDouble{registered: errors.New("not yet")}, 2},
		"followed":     {registryDouble{last: time.Now(), followed: true}, 3},
	} {
		ch := make(chan prometheus.Metric, 4)
		registryCollector{c.client}.Collect(ch)
		assert.Len(t, ch, c.want, name)
		for range 2 { // registered, connected
			var out dto.Metric
			assert.NoError(t, (<-ch).Write(&out))
			assert.Equal(t, truth(c.client.followed), out.GetGauge().GetValue(), name)
		}
	}
}
