package serve

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collectAge bounds the age of metrics from the database, which is read at most once in that time however
// often they are scraped.
const collectAge = time.Second

// cachedCollector reads its collector at most once in collectAge, for all scrapes.
type cachedCollector struct {
	prometheus.Collector

	mu      sync.Mutex
	at      time.Time           // guarded by mu
	metrics []prometheus.Metric // guarded by mu
}

// Collect is prometheus.Collector.
func (c *cachedCollector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.read() {
		ch <- m
	}
}

func (c *cachedCollector) read() []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) <= collectAge {
		return c.metrics
	}
	found := make(chan prometheus.Metric) // closed when the collector has returned
	go func() {
		defer close(found)
		c.Collector.Collect(found)
	}()
	c.metrics = nil
	for m := range found {
		c.metrics = append(c.metrics, m)
	}
	c.at = time.Now()
	return c.metrics
}

// metricsHandler serves at most four scrapes at a time, and refuses further ones with 503.
func metricsHandler(from prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(from, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}
