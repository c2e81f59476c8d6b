package serve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// followed is the client of the registry, as the metrics see it.
type followed interface {
	Registered() error
	Heard() (last time.Time, followed bool)
	RightsLost() bool
}

type registryCollector struct{ client followed }

var (
	registeredDesc = prometheus.NewDesc("dbcontroller_registered", "Whether the deployment is registered, at the address of the process that speaks for it.", nil, nil)
	connectedDesc  = prometheus.NewDesc("dbcontroller_registry_connected", "Whether the process follows the registry.", nil, nil)
	heardDesc      = prometheus.NewDesc("dbcontroller_registry_heard_timestamp_seconds", "Time of the last message of the registry, which sends one every five seconds; no series before the first.", nil, nil)
	rightsLostDesc = prometheus.NewDesc("dbcontroller_rights_lost", "Whether the registry lacks the last declared rights, which stay in use here: 1 until they are applied again.", nil, nil)
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

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
