package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// A DropOwners call of an epoch that lost the owner's deletion is refused: the owner exists again.
func TestDropOwnersOfAnOldEpochCountsForNothing_I16(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	restore := b.Backup(bEast)
	b.MustDelete(holder)
	work := b.Work(b.ID(bEast))
	require.Len(t, work, 1)
	before := b.Stores[b.ID(bEast)]
	told, err := before.Owners.Disowned(t.Context(), b.ID(aEast), []int64{work[0].Seq})
	require.NoError(t, err)
	require.Len(t, told.Owners, 1)
	restore()
	b.Recover(bEast)
	b.Settle()
	require.NotNil(t, b.Get(holder))
	_, _, err = b.Stores[b.ID(aEast)].Owners.DropOwners(t.Context(), b.ID(bEast), told.Epoch, told.Owners, nil)
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	require.Error(t, b.Stores[b.ID(bEast)].Owners.MarkOwneesNotified(t.Context(), told), "the owner still has an ownee")
	b.Settle()
	require.NotNil(t, b.Get(ownee), "its owner exists")
	b.Audit()
}

// A decommissioned deployment that still announces a failover is not waited for.
func TestADecommissionedDeploymentsEpochIsNotWaitedFor_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	decommission(t, b, aWest, bEast, schema.Unset)
	b.Settle()
	_, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()),
		peer.TargetKinds{})
	require.ErrorIs(t, err, peer.ErrDecommissioned)
	b.MustDelete(target)
	b.Gone(target)
}

// Expiries written by a lost server, whose clock was hours ahead of the new server's, delay nothing for
// hours.
func TestTimesOfALostServersClockAreBounded_I28(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
	require.NoError(t, err)
	pool := b.Pools[b.ID(aWest)]
	for _, sql := range []string{
		`UPDATE dbcontroller.blockade SET expires_at = now() + interval '3 hours'`,
		`INSERT INTO dbcontroller.closing SELECT id, gen_random_uuid(), now() + interval '3 hours' FROM dbcontroller.shadow`,
		`INSERT INTO dbcontroller.member (id, name, expires_at) VALUES (gen_random_uuid(), 'lost', now() + interval '3 hours')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	b.Renew(aWest)
	b.Settle()
	var late int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM dbcontroller.blockade WHERE expires_at > now() + interval '1 minute')
		+ (SELECT count(*) FROM dbcontroller.member WHERE expires_at > now() + interval '1 minute') + (SELECT count(*) FROM dbcontroller.closing)`).Scan(&late))
	require.Zero(t, late)
	b.MustPut(holder, body{"block": target}) // the target is not closed
}
