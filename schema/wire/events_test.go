package wire_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

func TestBrokenEventsOfDeletionsAreErrors(t *testing.T) {
	t.Parallel()
	upsert := func(
		d *schemav1.WatchImportedServiceDeletionsResponse_Deletions,
	) *schemav1.WatchImportedServiceDeletionsResponse {
		return &schemav1.WatchImportedServiceDeletionsResponse{
			Event: &schemav1.WatchImportedServiceDeletionsResponse_Upsert{Upsert: d},
		}
	}
	resource := wire.ResourceRef("Device", "devices/d", uuid.UUID{1})
	for says, d := range map[string]*schemav1.WatchImportedServiceDeletionsResponse_Deletions{
		"1 resources, but 0 notices: want one notice for each resource": {Resources: []*schemav1.ResourceRef{resource}},
		"0 resources, but 1 notices":                                    {Notices: []int64{1}},
		"a uid has 16 bytes": {Resources: []*schemav1.ResourceRef{
			{Uid: []byte{1}},
		}, Notices: []int64{1}},
	} {
		_, err := wire.DeletionEvent(upsert(d))
		require.ErrorContains(t, err, says)
	}
	event, err := wire.DeletionEvent(upsert(&schemav1.WatchImportedServiceDeletionsResponse_Deletions{
		Resources: []*schemav1.ResourceRef{resource}, Notices: []int64{7},
	}))
	require.NoError(t, err)
	require.Equal(t, int64(7), event.Items[0].Seq)
	require.Nil(t, event.Items[0].Cause)
}

// A newer server may send events that this version lacks: they are skipped. A broken event ends the watch.
func TestUnknownEventsAreSkipped(t *testing.T) {
	work, err := wire.WorkEvent(&schemav1.WatchResourceShadowsResponse{}, map[string]schema.DeploymentID{})
	require.NoError(t, err)
	require.Zero(t, work)
	deletion, err := wire.DeletionEvent(&schemav1.WatchImportedServiceDeletionsResponse{})
	require.NoError(t, err)
	require.Zero(t, deletion)
	_, err = wire.WorkEvent(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Upsert{
		Upsert: &schemav1.WatchResourceShadowsResponse_Work{
			Items: []*schemav1.WorkItem{{Id: 1, Deployment: "nonsense"}},
		},
	}}, map[string]schema.DeploymentID{})
	require.Error(t, err)
}
