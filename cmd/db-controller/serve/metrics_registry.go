package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	registryserver "github.com/db-controller/db-controller/envregistry/server"
)

// followed is the client of the registry, as the metrics see it.
type followed interface {
	Registered() error
	Heard() (last time.Time, followed bool)
	RightsLost() bool
}

type registryCollector struct{ client followed }

var (
	registeredDesc = prometheus.NewDesc("dbcontroller_registered",
		"Whether the deployment is registered, at the address of the process that speaks for it.", nil, nil)
	connectedDesc = prometheus.NewDesc("dbcontroller_registry_connected", "Whether the process follows the registry.",
		nil, nil)
	heardDesc = prometheus.NewDesc("dbcontroller_registry_heard_timestamp_seconds",
		"Time of the last message of the registry, which sends one every five seconds; no series before the first.",
		nil, nil)
	rightsLostDesc = prometheus.NewDesc("dbcontroller_rights_lost",
		"Whether the registry lacks the last declared rights, which stay in use here: 1 until they are applied again.",
		nil, nil)
)

// Describe is prometheus.Collector.
func (c registryCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{registeredDesc, connectedDesc, rightsLostDesc, heardDesc} {
		ch <- d
	}
}

// Collect is prometheus.Collector.
func (c registryCollector) Collect(ch chan<- prometheus.Metric) {
	last, connected := c.client.Heard()
	ch <- prometheus.MustNewConstMetric(registeredDesc, prometheus.GaugeValue, truth(c.client.Registered() == nil))
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, truth(connected))
	ch <- prometheus.MustNewConstMetric(rightsLostDesc, prometheus.GaugeValue, truth(c.client.RightsLost()))
	if !last.IsZero() {
		ch <- prometheus.MustNewConstMetric(heardDesc, prometheus.GaugeValue, float64(last.Unix()))
	}
}

// environmentCollector reads the environment of a registry. There are no series of it while the database is
// away.
type environmentCollector struct {
	server *registryserver.Server
	log    *zap.Logger
}

var (
	revisionDesc = prometheus.NewDesc("dbcontroller_registry_revision",
		"Revision of the environment, of a registry's process.", nil, nil)
	completeDesc = prometheus.NewDesc("dbcontroller_registry_complete",
		"Whether the registry's list of deployments counts as complete; 0 behind a failover, until all have told the revision that they know, or are applied again.", nil, nil)
	registrationDesc = prometheus.NewDesc("dbcontroller_registry_deployments",
		"Deployments of the environment, by state: registered, awaited (no process of it has registered yet), disabled.", []string{"state"}, nil)
	followersDesc = prometheus.NewDesc("dbcontroller_registry_followers",
		"Watches of the environment that a registry's process serves: one for each process of a deployment.", nil, nil)
)

// Describe is prometheus.Collector.
func (c environmentCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{revisionDesc, completeDesc, registrationDesc, followersDesc} {
		ch <- d
	}
}

// Collect is prometheus.Collector.
func (c environmentCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(followersDesc, float64(c.server.Followers()))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	state, err := c.server.State(ctx)
	if err != nil {
		c.log.Debug("the metrics of the environment could not be read", zap.Error(err))
		return
	}
	gauge(revisionDesc, float64(state.Revision))
	gauge(completeDesc, truth(state.Complete))
	gauge(registrationDesc, float64(state.Registered), "registered")
	gauge(registrationDesc, float64(state.Awaited), "awaited")
	gauge(registrationDesc, float64(state.Disabled), "disabled")
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
