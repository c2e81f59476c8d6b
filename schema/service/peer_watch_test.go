package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A newer server may send events that this version lacks: they are skipped. A broken event ends the watch.
func TestUnknownEventsAreSkipped(t *testing.T) {
	work, err := workEvent(&schemav1.WatchResourceShadowsResponse{}, map[string]schema.DeploymentID{})
	require.NoError(t, err)
	require.Zero(t, work)
	deletion, err := deletionEvent(&schemav1.WatchImportedServiceDeletionsResponse{})
	require.NoError(t, err)
	require.Zero(t, deletion)
	_, err = workEvent(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Upsert{
		Upsert: &schemav1.WatchResourceShadowsResponse_Work{Items: []*schemav1.WorkItem{{Id: 1, Deployment: "nonsense"}}},
	}}, map[string]schema.DeploymentID{})
	require.Error(t, err)
}
