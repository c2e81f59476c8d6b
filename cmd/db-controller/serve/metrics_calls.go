package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// measuredPeers measures how long other deployments take to establish references.
type measuredPeers struct {
	*peers.Peers
	seconds *prometheus.HistogramVec
}

func newMeasuredPeers(to *prometheus.Registry, of *peers.Peers) measuredPeers {
	m := measuredPeers{of, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "dbcontroller_establish_seconds",
		Help:    "Duration of the establishing of references in another deployment, refusals included.",
		Buckets: prometheus.ExponentialBuckets(0.001, 5, 6),
	}, []string{"deployment"})}
	to.MustRegister(m.seconds)
	return m
}

// Establish is peer.Establisher.
func (m measuredPeers) Establish(ctx context.Context, target schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	began := time.Now()
	out, err := m.Peers.Establish(ctx, target, attempt, refs)
	m.seconds.WithLabelValues(target.String()).Observe(time.Since(began).Seconds())
	return out, err
}

// newDeletionEnded returns a function that measures deletions from the request until their root is removed.
func newDeletionEnded(to *prometheus.Registry) func(took time.Duration) {
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "dbcontroller_deletion_seconds",
		Help:    "Duration of deletions from the request until the resource is removed.",
		Buckets: prometheus.ExponentialBuckets(0.004, 5, 9),
	})
	to.MustRegister(seconds)
	return func(took time.Duration) { seconds.Observe(took.Seconds()) }
}

// newDeletes returns a function that counts the deletes of users and their durations, by result. All results
// have a series from the start, so that the first one is an increase.
func newDeletes(to *prometheus.Registry) func(result outcome.DeleteResult, took time.Duration) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dbcontroller_delete_seconds", Help: "Duration of deletes by users until their answer, by result.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
	}, []string{"result"})
	to.MustRegister(seconds)
	for _, r := range outcome.DeleteResults {
		seconds.WithLabelValues(string(r))
	}
	return func(result outcome.DeleteResult, took time.Duration) {
		seconds.WithLabelValues(string(result)).Observe(took.Seconds())
	}
}
