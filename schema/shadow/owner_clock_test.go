package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// The grace period of an owner that is not there yet, or does not refer to its ownee yet, is over when it is
// so by two clocks: the clock of the ownee's database has jumped.
func TestOneClockEndsNoGracePeriod_I16(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	jump := func() {
		exec(t, b, aWest, `UPDATE dbcontroller.owner_reference SET created_at = created_at - interval '1 hour'`)
		b.Settle()
	}
	absent, required := targetName("absent"), targetName("required")
	mustOwn(t, b, absent, nil, owner(t, holder, "Holder"))
	b.MustPut(holder2, nil)
	o := owner(t, holder2, "Holder")
	o.Requires = true
	mustOwn(t, b, required, nil, o)
	b.Settle()
	store.SetClock(func() time.Time { return time.Now().Add(-time.Hour) })
	jump()
	require.NotNil(t, b.Get(absent))
	require.NotNil(t, b.Get(required))
	store.SetClock(time.Now)
	b.MustPut(holder, nil)
	b.MustPut(holder2, body{"unset": required})
	b.Settle()
	require.NotNil(t, b.Get(absent))
	require.NotNil(t, b.Get(required))
	mustOwn(t, b, targetName("late"), nil, owner(t, "//"+bEast+"/holders/never", "Holder"))
	jump()
	b.Gone(targetName("late"))
	b.Audit()
}

// The cause of a deletion is kept until it ends, for any absence of a deployment: other deployments are told
// the same at any time.
func TestTheCauseOfADeletionIsKeptUntilItEnds_I17(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(holder, nil)
	b.MustPut(holder2, body{"near": body{"cascade": holder}})
	unset := owner(t, holder2, "Holder")
	unset.UnsetOnDelete = true
	mustOwn(t, b, targetName("owned"), nil, owner(t, holder, "Holder"), unset)
	b.Settle()
	b.SetDown(aWest, true)
	b.MustDelete(holder)
	b.Settle()
	tidy := func(store *shadow.Store) {
		exec(t, b, bEast, `UPDATE dbcontroller.removal SET decided_at = decided_at - interval '98 days'`)
		exec(t, b, bEast, `UPDATE dbcontroller.cause SET noted_at = noted_at - interval '98 days'`)
		for more := true; more; {
			var err error
			more, err = store.Admin.Tidy(context.Background())
			require.NoError(t, err)
		}
	}
	tidy(b.Stores[b.ID(bEast)])
	require.Equal(t, 2, b.Count(bEast, "removal"))
	require.NotZero(t, b.Count(bEast, "cause"))
	b.SetDown(aWest, false)
	b.Settle()
	b.Gone(holder, holder2, targetName("owned"))
	b.Audit()
	tidy(b.Stores[b.ID(bEast)])
	require.Zero(t, b.Count(bEast, "removal"))
	require.Zero(t, b.Count(bEast, "cause"))
}
