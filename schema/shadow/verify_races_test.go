package shadow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// lostBlockade leaves a holder that blocks a target, whose blockade is lost.
func lostBlockade(t *testing.T) *harness.Box {
	t.Helper()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `DELETE FROM dbcontroller.blockade`)
	require.NoError(t, err)
	return b
}

// repairs verifies a deployment with repairs, and returns the kinds of the differences.
func repairs(t *testing.T, b *harness.Box, deployment string) (kinds []shadow.DifferenceKind, err error) {
	t.Helper()
	_, err = b.Stores[b.ID(deployment)].Verify.Verify(t.Context(), shadow.Verification{
		Repair: true, Settle: time.Millisecond, Report: func(d shadow.Difference) error {
			kinds = append(kinds, d.Kind)
			return nil
		},
	})
	return kinds, err
}

// A reference that was dropped and written again while the other deployment was asked about the former one is
// another one.
func TestAReferenceThatWasWrittenAgainIsNotLost_I8(t *testing.T) {
	t.Parallel()
	b := lostBlockade(t)
	b.AfterCheckReferences = func([]peer.Known) {
		b.AfterCheckReferences = nil
		b.MustPut(holder, body{})
		b.MustPut(holder, body{"block": target})
	}
	kinds, err := repairs(t, b, bEast)
	require.NoError(t, err)
	require.Empty(t, kinds)
	b.Settle()
	b.Audit()
}

// A reference that was dropped while it was established again leaves no blockade.
func TestAReferenceThatWasDroppedIsNotEstablishedAgain_I8_I13(t *testing.T) {
	t.Parallel()
	b := lostBlockade(t)
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		b.MustPut(holder, body{})
	}
	_, err := repairs(t, b, bEast)
	require.NoError(t, err)
	require.Nil(t, b.AfterEstablish)
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	b.MustDelete(target)
	b.Settle()
	b.Audit()
}

// An answer of another version, which this one does not know, is neither held nor lost: a repair goes no
// further.
func TestARepairDoesNotGoOnWithUnknownAnswers_I8(t *testing.T) {
	t.Parallel()
	b := lostBlockade(t)
	b.AfterCheckReferences = func(known []peer.Known) {
		for i := range known {
			known[i] = peer.KnownNot
		}
	}
	out, err := b.Stores[b.ID(bEast)].Verify.Verify(t.Context(), shadow.Verification{
		Repair: true,
		Settle: time.Millisecond,
	})
	require.NoError(t, err)
	require.ErrorContains(t, out.Unreachable[b.ID(aWest)], "runs another version")
}

// A blockade whose release is under way is no difference: it is looked at twice.
func TestABlockadeThatIsBeingReleasedIsNoDifference_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.MustPut(holder, body{}) // its release is not delivered yet
	asked := 0
	b.OnResolve = func(schema.DeploymentID) error {
		if asked++; asked == 2 {
			b.Settle()
		}
		return nil
	}
	kinds, err := repairs(t, b, aWest)
	require.NoError(t, err)
	require.Equal(t, 2, asked)
	require.Empty(t, kinds)
	b.Audit()
}

// A repair is given up when the database of the holder fails over, or the deployment of the target is
// decommissioned, while it is asked: the reference keeps its attempt.
func TestARepairBesideAFailoverOrADecommissioningIsGivenUp_I8_I15_I26(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]string{
		"failover":        `UPDATE dbcontroller.meta SET epoch = gen_random_uuid()`,
		"decommissioning": `INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by) SELECT id, 2, 'x', 'x' FROM dbcontroller.deployment WHERE service || '/' || region = '` + aWest + `'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := lostBlockade(t)
			attempt := func() (id string) {
				require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
					`SELECT attempt::text FROM dbcontroller.reference`).Scan(&id))
				return id
			}
			before := attempt()
			b.AfterEstablish = func() {
				b.AfterEstablish = nil
				_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), event)
				require.NoError(t, err)
			}
			_, _ = repairs(t, b, bEast)
			require.Nil(t, b.AfterEstablish)
			require.Equal(t, before, attempt())
		})
	}
}
