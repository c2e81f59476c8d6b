package deletion

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// At its limit a look-ahead leaves deployments out: that is no silence which can end, and the refusal is
// definite.
func TestADeletionBeyondTheLimitIsNotAtomic_I35(t *testing.T) {
	t.Parallel()
	at := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	unasked := []peer.Unasked{{Deployment: at, Why: peer.LimitReached}}
	require.ErrorIs(t, whole(&plan.Walk{Truncated: true, Unasked: unasked}, "targets/t"), peer.ErrNotAtomic)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, whole(&plan.Walk{Unasked: unasked}, "targets/t"), &unavailable)
	require.NoError(t, whole(&plan.Walk{}, "targets/t"))
}
