package shadow_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// While an operator has paused deletions, no resource is marked or removed: not by users, not for others, not
// at last. References are written all the same, and the deletions go on afterwards.
func TestPausedDeletionsGoOnWhenTheyAreResumed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west, east := b.Stores[b.ID(aWest)], b.Stores[b.ID(bEast)]
	pause := func(at *shadow.Store, of schema.DeploymentID, paused bool) {
		t.Helper()
		require.NoError(t, at.Operate.Pause(t.Context(), of, "", paused, "ticket 1", "operator/eve"))
	}
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()

	pause(west, b.ID(aWest), true)
	_, err := b.Delete(target)
	require.ErrorIs(t, err, peer.ErrPaused)
	require.ErrorContains(t, err, "an operator has paused deletions until db-controller resume")
	b.MustPut(holder2, body{"cascade": target})
	paused, err := west.Operate.Pauses(t.Context())
	require.NoError(t, err)
	require.Len(t, paused, 1)
	paused[0].At = time.Time{}
	require.Equal(t, shadow.Pause{Of: b.ID(aWest), Reason: "ticket 1", By: "operator/eve"}, paused[0])
	pause(west, b.ID(aWest), false)

	pause(east, b.ID(aWest), true) // the work there for the deletions of a
	b.MustDelete(target)
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, err, peer.ErrPaused)
	require.NotNil(t, b.Get(holder))
	stuck, err := west.Operate.Stuck(t.Context(), time.Nanosecond, "", 10)
	require.NoError(t, err)
	require.Len(t, stuck.Resources, 1)
	require.Equal(t, "targets/t", stuck.Resources[0].Name)
	require.Contains(t, stuck.Resources[0].Conditions[0].Message, b.ID(bEast).String())
	none, err := west.Operate.Stuck(t.Context(), time.Hour, "", 10)
	require.NoError(t, err)
	require.Empty(t, none.Resources)
	pause(east, b.ID(aWest), false)
	pause(east, b.ID(aWest), false) // changes nothing

	pause(east, b.ID(bEast), true) // all deletions there
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.ErrorIs(t, err, peer.ErrPaused)
	pause(east, b.ID(bEast), false)
	b.Settle()
	b.Gone(target, holder, holder2)
	decisions, err := east.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, decisions, 4)
	require.Equal(t, "DELETIONS_RESUMED", decisions[0].What)
	require.Equal(t, "operator/eve", decisions[0].By)
	b.Audit()
}

// Each handler stops by itself, as a whole or for one deployment, in every process and after a restart; the
// others go on, and nothing is lost. A resume rings the bell that ends back-offs.
func TestAPausedHandlerGoesOnWhenItIsResumed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	a, holders := b.ID(aWest), b.ID(bEast)
	pause := func(at, of schema.DeploymentID, handler schema.Handler, paused bool) {
		t.Helper()
		require.NoError(t, b.Stores[at].Operate.Pause(t.Context(), of, handler, paused, "ticket 2", "operator/eve"))
	}
	b.MustPut(target, nil)

	pause(holders, a, schema.OwnedPending, true) // for one deployment
	pause(holders, a, schema.OwnedPending, true) // changes nothing
	b.MustPut(holder, body{"asyncCascade": target})
	_, err := b.Do(holders, schema.Confirm)
	require.ErrorIs(t, err, peer.ErrHandlerPaused)
	require.ErrorContains(t, err,
		"owned-pending: an operator has paused the handler until db-controller resume --handler")
	second := b.SecondProcess(bEast, shadow.Config{})
	require.ErrorIs(t, second.Operate.CheckHandler(t.Context(), schema.OwnedPending, a), peer.ErrHandlerPaused,
		"the pause is in the database")
	require.NoError(t, b.Stores[holders].Operate.CheckHandler(t.Context(), schema.OwnedPending, b.ID(aEast)),
		"the other deployments are served")
	require.NoError(t, b.Stores[holders].Operate.CheckHandler(t.Context(), schema.SubscribedDeleting, a),
		"the other handlers work")
	retries := b.Stores[holders].Operate.ListenRetries(t.Context())
	pause(holders, a, schema.OwnedPending, false)
	require.Equal(t, a, <-retries)
	b.Settle()

	pause(holders, holders, schema.SubscribedDeleting, true) // for all
	b.MustDelete(target)
	_, err = b.Act(holders, a)
	require.ErrorIs(t, err, peer.ErrHandlerPaused)
	require.NotNil(t, b.Get(holder))
	pauses, err := b.Stores[holders].Operate.Pauses(t.Context())
	require.NoError(t, err)
	require.Len(t, pauses, 1)
	require.Equal(t, schema.SubscribedDeleting, pauses[0].Handler)
	require.Equal(t, "ticket 2", pauses[0].Reason)
	pause(holders, holders, schema.SubscribedDeleting, false)
	require.Equal(t, schema.DeploymentID{}, <-retries, "all work is tried")

	pause(a, a, schema.OwnedDeleting, true)
	_, err = b.Act(holders, a)
	require.NoError(t, err)
	_, err = b.Do(a, schema.Finalise)
	require.ErrorIs(t, err, peer.ErrHandlerPaused)
	b.Gone(holder)
	require.NotNil(t, b.Get(target), "it waits for the handler alone")
	pause(a, a, schema.OwnedDeleting, false)
	b.Settle()
	b.Gone(target)
	decisions, err := b.Stores[holders].Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, decisions, 4)
	require.Equal(t, "SUBSCRIBED_DELETING_RESUMED", decisions[0].What)
	require.Equal(t, "OWNED_PENDING_PAUSED", decisions[3].What)
	b.Audit()
}

// While deletions are paused, no row of an attached table is deleted: not for a deletion elsewhere, not
// because its target is missing.
func TestPausedDeletionsKeepRowsOfTables(t *testing.T) {
	t.Parallel()
	services := strings.Replace(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
		"region: eu, behaviour: CASCADE_DELETE, missing: delete", 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations, cfg.Times.MissingGrace = true, time.Millisecond
	}, crm, shop), t: t}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'cascades')`)
	a.attach()
	a.Settle()
	operate := a.Stores[a.ID(shop)].Operate
	require.NoError(t, operate.Pause(t.Context(), a.ID(shop), "", true, "ticket 3", "operator/eve"))
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (2, 'stays'), (7, 'missing')`)
	require.Eventually(t, func() bool { // it is noted first, and acted upon after the grace
		a.exec(a.shop, `UPDATE dbcontroller.lacking SET since = since - interval '1 min', due = '-infinity'`)
		_, err := a.Stores[a.ID(shop)].RightRequests.AcquireForRows(t.Context())
		return errors.Is(err, peer.ErrPaused)
	}, wait.Limit, time.Millisecond)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Capture(a.ID(crm))
	_, err := a.Act(a.ID(shop), a.ID(crm))
	require.ErrorIs(t, err, peer.ErrPaused)
	require.Equal(t, []string{"cascades", "missing", "stays"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`))

	require.NoError(t, operate.Pause(t.Context(), a.ID(shop), "", false, "ticket 3", "operator/eve"))
	a.again()
	require.Equal(t, []string{"stays"}, a.rows(a.shop, `SELECT note FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
