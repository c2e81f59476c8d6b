package serve

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Quotas are those of the newest environment, for references to this deployment; before there is one, the
// settings count alone.
func TestQuotasFollowTheEnvironment(t *testing.T) {
	t.Parallel()
	var env *schema.Environment
	of := quotaOf(func() *schema.Environment {
		return env
	}, schema.DeploymentID{Service: "iam.example.com", Region: "eu"})
	holder := schema.DeploymentID{Service: "devices.example.com", Region: "us"}
	require.Zero(t, of(holder))
	env = &schema.Environment{}
	require.Zero(t, of(holder))
	f, err := schema.ParseFile("f",
		strings.NewReader(
			"rights: {quotas: [{holders: '*/us', targets: iam.example.com/*, blocking: 5}, {holders: '*/*', targets: '*/us', tentative: 1}]}"))
	require.NoError(t, err)
	env.Rights = f.Rights
	require.Equal(t, peer.Quotas{Blocking: 5}, of(holder))
}
