package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// A row of an attached table of which nothing is stored has no uid, revision and times.
func TestARowOfATableHasNoTimes(t *testing.T) {
	t.Parallel()
	o, err := client.Decode[map[string]any](&resourcev1.Resource{Name: "orders/1", Deployment: "shop.example.com/eu"})
	require.NoError(t, err)
	require.Empty(t, o.UID)
	require.True(t, o.Created.IsZero())
	require.True(t, o.Updated.IsZero())
}
