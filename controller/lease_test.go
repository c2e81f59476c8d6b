package controller_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/controller"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// lossy is a client whose answers to creates of shards' leases are lost, and whose guards do not arrive while it is held.
type lossy struct {
	*cuttable
	lost, held atomic.Bool
}

var errLost = errors.New("the answer was lost")

func (c *lossy) Create(ctx context.Context, r *controller.Resource) (*controller.Resource, error) {
	made, err := c.cuttable.Create(ctx, r)
	if c.lost.Load() && strings.Contains(r.GetName(), "devices-shard-") {
		return nil, errLost
	}
	return made, err
}

func (c *lossy) Update(ctx context.Context, r *controller.Resource, mask ...string) (*controller.Resource, error) {
	if c.held.Load() && strings.Contains(r.GetName(), "devices-shard-") {
		return nil, errLost
	}
	return c.cuttable.Update(ctx, r, mask...)
}

// A process whose answers are lost takes the shards that it has made, when it sees their leases: under the terms of those leases. One
// that was removed meanwhile, which it has not seen, it does not take.
func TestAShardIsAdoptedAfterALostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("d", nil))
		conn := &lossy{cuttable: &cuttable{Client: clientOf(false, m)}}
		conn.lost.Store(true)
		conn.held.Store(true)
		stored := func(lease string) *resourcev1.Resource {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.stored[strings.TrimPrefix(lease, "//"+here.String()+"/")]
		}
		var term atomic.Pointer[controller.Term]
		var stale atomic.Int32
		end := running(t, controller.New(conn, devices).Share(controller.Sharing{Writer: conn, Kind: leases, Prefix: "leases/devices-", Shards: 1, Duration: leaseTime}),
			controller.Func(func(ctx context.Context, _ controller.Request, _ *controller.View) (controller.Result, error) {
				if of, ok := controller.TermOf(ctx); ok {
					if stored(of.Lease).GetUid() != of.UID {
						stale.Add(1)
					}
					term.Store(&of)
				}
				return controller.Result{}, nil
			}))
		pass(leaseTime)
		const lease = "leases/devices-shard-0"
		first := stored(lease).GetUid()
		ranBefore := term.Load()
		conn.deaf.Store(true)
		m.write(gone(lease)) // by an operator
		conn.held.Store(false)
		pass(leaseTime)
		ranDeaf := term.Load()
		conn.deaf.Store(false)
		pass(2 * leaseTime)
		last, now := term.Load(), stored(lease)
		require.NoError(t, end())
		require.NotEmpty(t, first, "the create took effect")
		require.Nil(t, ranBefore, "nothing runs before the lease is taken")
		require.Nil(t, ranDeaf, "a lease that was removed is not taken")
		require.Zero(t, stale.Load())
		require.NotNil(t, last, "the shard is taken, although no answer has arrived")
		require.Equal(t, now.GetUid(), last.UID)
		require.NotEqual(t, first, last.UID)
	})
}

// The runs of a process that cannot renew its membership have ended after two thirds of the duration: before another process may remove it.
func TestAMembershipThatIsNotRenewedEndsBeforeItsDuration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		m.write(device("d", nil))
		conn := &cuttable{Client: clientOf(false, m)}
		var runs atomic.Int32
		end := running(t, controller.New(conn, devices).Share(controller.Sharing{Writer: conn, Kind: leases, Prefix: "leases/devices-", Shards: 1, Duration: leaseTime}),
			controller.Func(func(ctx context.Context, _ controller.Request, _ *controller.View) (controller.Result, error) {
				runs.Add(1)
				defer runs.Add(-1)
				<-ctx.Done()
				return controller.Result{}, ctx.Err()
			}))
		pass(leaseTime)
		during := runs.Load()
		conn.away.Store(true)
		time.Sleep(leaseTime*2/3 + time.Second)
		synctest.Wait()
		after := runs.Load()
		conn.away.Store(false)
		require.NoError(t, end())
		require.EqualValues(t, 1, during)
		require.Zero(t, after, "a run goes on although the membership was not renewed for more than two thirds of its duration")
	})
}

var _ controller.Writer = (*lossy)(nil)
