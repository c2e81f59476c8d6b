package controller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/controller"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// lossy is a client whose answers to creates of shards' leases are lost, and whose guards do not arrive while
// it is held.
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

// A process whose answers are lost takes the shards that it has made, when it sees their leases: under the
// terms of those leases. One that was removed meanwhile, which it has not seen, it does not take.
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
		end := running(t, controller.New(conn, devices).
			Share(controller.Sharing{
				Writer: conn, Kind: leases, Prefix: "leases/devices-", Shards: 1,
				Duration: leaseTime,
			}),
			controller.Func(
				func(ctx context.Context, _ controller.Request, _ *controller.View) (controller.Result, error) {
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

// slow is a client whose updates arrive at once, and are answered late.
type slow struct {
	*cuttable
	sent atomic.Pointer[time.Time] // of the last update that arrived
}

func (c *slow) Update(ctx context.Context, r *controller.Resource, mask ...string) (*controller.Resource, error) {
	now := time.Now()
	updated, err := c.cuttable.Update(ctx, r, mask...)
	if err == nil {
		c.sent.Store(&now)
		time.Sleep(leaseTime / 10)
	}
	return updated, err
}

// standing is a reconciler whose runs last until their contexts end.
type standing struct{ began, runs, ended atomic.Int32 }

func (s *standing) Reconcile(ctx context.Context, _ controller.Request, _ *controller.View) (controller.Result, error) {
	s.began.Add(1)
	s.runs.Add(1)
	<-ctx.Done()
	s.runs.Add(-1)
	s.ended.Add(1)
	return controller.Result{}, ctx.Err()
}

func alone(t *testing.T, m *memory, conn interface {
	controller.Source
	controller.Writer
},
) (r *standing, end func() error) {
	t.Helper()
	m.write(device("d", nil), device("e", nil)) // one runs, the other waits for its end
	r = &standing{}
	return r, running(t, controller.New(conn, devices).
		Share(controller.Sharing{
			Writer: conn, Kind: leases, Prefix: "leases/devices-", Shards: 1,
			Duration: leaseTime,
		}), r)
}

// The runs of a process that cannot renew its membership have ended two thirds of the duration after the last
// call that renewed it, or made it: before another process may remove it. The answers to those calls may have
// come late.
func TestAMembershipThatIsNotRenewedEndsBeforeItsDuration(t *testing.T) {
	for name, c := range map[string]struct{ before, joins time.Duration }{
		"never renewed": {before: leaseTime / 7, joins: leaseTime / 10}, // the first tick makes the membership
		"renewed":       {before: 2 * leaseTime},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMemory(here)
				conn := &slow{cuttable: &cuttable{Client: clientOf(false, m)}}
				began := time.Now()
				conn.sent.Store(&began)
				r, end := alone(t, m, conn)
				pass(c.before)
				during := r.runs.Load()
				conn.away.Store(true)
				pass(time.Until(conn.sent.Load().Add(c.joins + leaseTime*2/3 + time.Millisecond)))
				after, begun := r.runs.Load(), r.began.Load()
				conn.away.Store(false)
				require.NoError(t, end())
				require.EqualValues(t, 1, during)
				require.EqualValues(t, 1, begun, "a run begins after the end of the membership")
				require.Zero(t, after,
					"a run goes on although the membership was not renewed for more than two thirds of its duration")
			})
		})
	}
}

// A process whose membership was removed notices that with the next renewal, and not at the end of the
// membership.
func TestARemovedMembershipEndsWithTheNextRenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMemory(here)
		conn := &slow{cuttable: &cuttable{Client: clientOf(false, m)}}
		r, end := alone(t, m, conn)
		for pass(leaseTime); time.Since(*conn.sent.Load()) > leaseTime/6; {
			pass(100 * time.Millisecond)
		}
		m.mu.Lock()
		var members []string
		for name := range m.stored {
			if strings.HasPrefix(name, "leases/devices-member-") {
				members = append(members, name)
			}
		}
		m.mu.Unlock()
		require.Len(t, members, 1)
		conn.deaf.Store(true) // nor does its watch tell
		m.write(gone(members[0]))
		pass(leaseTime/3 + leaseTime/10)
		ended, runs := r.ended.Load(), r.runs.Load()
		conn.deaf.Store(false)
		pass(2 * leaseTime)
		again := r.runs.Load()
		require.NoError(t, end())
		require.EqualValues(t, 1, ended, "the run of the removed membership")
		require.Zero(t, runs)
		require.EqualValues(t, 1, again, "under the next membership")
	})
}

// The contexts of the runs of a shard end when another process is to have it.
func TestTheRunsOfAShardThatIsGivenUpEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCrew(t)
		c.takes = 1000 * leaseTime
		end1, _ := c.join(1)
		pass(leaseTime)
		end2, _ := c.join(2)
		pass(leaseTime)
		require.NotEmpty(t, c.runs[2])
		require.NoError(t, end1())
		require.NoError(t, end2())
	})
}

// Processes that share the resources share the clean-ups as well.
func TestACleanUpIsOfOneProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, d := newMemory(here), &doors{}
		var ends []func() error
		for range 2 {
			conn := clientOf(false, m)
			ends = append(ends, running(t, controller.New(conn, devices).Finalizer("badge", d, d.close).
				Share(controller.Sharing{Writer: conn, Kind: leases, Prefix: "leases/devices-", Duration: leaseTime}),
				&recorder{}))
		}
		pass(2 * leaseTime)
		var names []string
		for i := range 20 {
			r := device(fmt.Sprint(i), nil)
			r.State, r.Finalizers = resourcev1.Resource_STATE_DELETING, []string{"badge"}
			m.write(r)
			names = append(names, r.GetName())
		}
		pass(time.Second)
		closed, _ := d.seen()
		for _, end := range ends {
			require.NoError(t, end())
		}
		require.ElementsMatch(t, names, closed)
	})
}

var _ controller.Writer = (*lossy)(nil)
