package main

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/db-controller/db-controller/constraint"
	"github.com/db-controller/db-controller/schema"
)

// watched lists the gauges of watches; counters are never removed.
func watched(t *testing.T, m *metrics) (names []string) {
	t.Helper()
	m.mu.Lock()
	for key := range m.heard {
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
