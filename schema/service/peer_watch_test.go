package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// A newer server may say more than this one understands, which is no reason to end a watch; what is broken is one.
func TestEventsThatAreNotUnderstoodArePassedOver(t *testing.T) {
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
