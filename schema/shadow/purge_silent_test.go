package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// Scheduled deletions that come due reach a deployment that hangs: it is asked for the first one alone, and the
// deletion that concerns nobody else goes in the same pass.
func TestAPurgeWaitsForNoOthersThatHang_I20_I36(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *shadow.Config) { c.Times.DeleteTimeout = 3 * time.Second })
	for i := range 5 {
		name := fmt.Sprintf("//%s/targets/x%d", aWest, i)
		b.MustPut(name, nil)
		b.MustPut(fmt.Sprintf("//%s/holders/x%d", bEast, i), body{"cascade": name})
	}
	alone := "//" + aWest + "/targets/zz"
	b.MustPut(alone, nil)
	b.Settle()
	for i := range 5 {
		schedule(t, b, fmt.Sprintf("//%s/targets/x%d", aWest, i))
	}
	schedule(t, b, alone)
	hung := 0
	b.OnPlan = func(ctx context.Context, to schema.DeploymentID) error {
		if to.String() == bEast {
			hung++
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	exec(t, b, aWest, `UPDATE dbcontroller.freeze SET purge_at = deleted_at WHERE purge_at IS NOT NULL`)
	err := b.Resolve(b.ID(aWest))
	require.ErrorContains(t, err, bEast)
	require.Equal(t, 1, hung)
	b.Gone(alone)
	b.OnPlan = nil
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	for i := range 5 {
		b.Gone(fmt.Sprintf("//%s/targets/x%d", aWest, i), fmt.Sprintf("//%s/holders/x%d", bEast, i))
	}
}
