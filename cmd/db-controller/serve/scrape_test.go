package serve

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
)

type countedCollector struct{ reads atomic.Int64 }

var countedDesc = prometheus.NewDesc("reads", "How often it was read.", nil, nil)

func (c *countedCollector) Describe(ch chan<- *prometheus.Desc) { ch <- countedDesc }

func (c *countedCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(countedDesc, prometheus.GaugeValue, float64(c.reads.Add(1)))
}

// Continuous scrapes read the database as often as one scrape a second does.
func TestScrapesReadTheDatabaseOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &countedCollector{}
		registry := prometheus.NewRegistry()
		registry.MustRegister(&cachedCollector{Collector: c})
		scrape := func() string {
			w := httptest.NewRecorder()
			metricsHandler(registry).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			return w.Body.String()
		}
		for range 100 {
			assert.Contains(t, scrape(), "reads 1\n")
		}
		time.Sleep(collectAge + time.Millisecond)
		assert.Contains(t, scrape(), "reads 2\n")
	})
}
