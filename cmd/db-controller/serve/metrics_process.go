package serve

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema/shadow"
)

// newBuildInfo describes the binary in labels, as Prometheus does.
func newBuildInfo() prometheus.Collector {
	b := cli.ThisBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dbcontroller_build_info", Help: "The build of the process; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "go": b.Go},
	})
	info.Set(1)
	return info
}

// poolCollector reads the state of a pool of connections, which stays readable while the database is away.
type poolCollector struct{ pools []*pgxpool.Pool }

var (
	connectionsDesc = prometheus.NewDesc("dbcontroller_postgres_connections", "Connections of the pool, by state.",
		[]string{"state"}, nil)
	mostDesc = prometheus.NewDesc("dbcontroller_postgres_connections_max", "Connections that the pool may have.",
		nil, nil)
	acquiresDesc = prometheus.NewDesc("dbcontroller_postgres_acquires_total",
		"Connections that were taken from the pool.", nil, nil)
	waitsDesc = prometheus.NewDesc("dbcontroller_postgres_acquire_waits_total",
		"Connections that were waited for because none was idle.", nil, nil)
	waitedDesc = prometheus.NewDesc("dbcontroller_postgres_acquire_seconds_total",
		"Time spent taking connections from the pool.", nil, nil)
	givenUpDesc = prometheus.NewDesc("dbcontroller_postgres_acquires_canceled_total",
		"Calls that ended before they had a connection.", nil, nil)
)

// Describe is prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectionsDesc, mostDesc, acquiresDesc, waitsDesc, waitedDesc, givenUpDesc} {
		ch <- d
	}
}

// Collect is prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	var acquired, idle, constructing int32
	var acquires, waits, givenUp int64
	var waited time.Duration
	for _, p := range c.pools {
		s := p.Stat()
		acquired, idle, constructing = acquired+s.AcquiredConns(), idle+s.IdleConns(),
			constructing+s.ConstructingConns()
		acquires, waits, givenUp = acquires+s.AcquireCount(), waits+s.EmptyAcquireCount(),
			givenUp+s.CanceledAcquireCount()
		waited += s.AcquireDuration()
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(connectionsDesc, float64(acquired), "acquired")
	gauge(connectionsDesc, float64(idle), "idle")
	gauge(connectionsDesc, float64(constructing), "constructing")
	gauge(mostDesc, float64(c.pools[0].Config().MaxConns)) // all pools together: see postgres.Lanes
	counter(acquiresDesc, float64(acquires))
	counter(waitsDesc, float64(waits))
	counter(waitedDesc, waited.Seconds())
	counter(givenUpDesc, float64(givenUp))
}

// standbyCollector counts the reads that a standby may answer.
type standbyCollector struct{ of *shadow.Standby }

var standbyDesc = prometheus.NewDesc("dbcontroller_standby_reads_total",
	"Reads of people that the standby of --postgres-read may answer, by outcome: answered by it, or by the primary because the standby failed or found nothing (failed), was too late or away (late), or because the caller had written, or seen the latest state, a moment before (recent).", []string{"outcome"}, nil)

// Describe is prometheus.Collector.
func (c standbyCollector) Describe(ch chan<- *prometheus.Desc) { ch <- standbyDesc }

// Collect is prometheus.Collector.
func (c standbyCollector) Collect(ch chan<- prometheus.Metric) {
	for outcome, n := range c.of.Reads() {
		ch <- prometheus.MustNewConstMetric(standbyDesc, prometheus.CounterValue, float64(n), outcome.String())
	}
}
