package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// rightsTo returns the rights to block customers.
func rightsTo(from, to int) (out []string) {
	for n := from; n <= to; n++ {
		out = append(out, "BLOCK "+customer(fmt.Sprint(n)))
	}
	return out
}

// A role, and a caller, may have a limited number of rights that no row uses, so that it cannot hold back the
// deletions of any number of resources of others.
func TestRightsThatNoRowUsesAreFew_I20(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.Stores[a.ID(shop)].Tune(shadow.Tuning{Quotas: peer.Quotas{Unused: 3}})
	ctx := context.Background()
	refused := func(right []string) {
		t.Helper()
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, right)
		a.AnswerRequests(shop)
		_, err := a.shop.Exec(ctx, `SELECT dbcontroller.acquired($1, interval '0')`, right)
		var pg *pgconn.PgError
		require.True(t, errors.As(err, &pg), "%v", err)
		require.Equal(t, "RD002", pg.Code)
		require.Contains(t, pg.Message, "has 3 rights to block resources of "+crm+" that no row uses")
		require.Contains(t, pg.Message, "--max-unused-rights")
	}
	a.acquire(rightsTo(1, 3))
	refused(rightsTo(4, 4))
	require.Equal(t, 3, a.Count(crm, "tentative"))

	// A right to act refuses no deletion, and is no use of the right to block.
	for n := 1; n <= 4; n++ {
		a.acquire([]string{"ACT " + customer(fmt.Sprint(n))})
	}
	refused(rightsTo(5, 5))
	require.Equal(t, 3, a.Count(crm, "tentative"))

	// Another caller has a number of its own; rows that use rights make room.
	_, err := a.Pools[a.ID(shop)].Exec(ctx, `SELECT dbcontroller.acquire_as($1, 'users/ann')`, rightsTo(5, 5))
	require.NoError(t, err)
	a.AnswerRequests(shop)
	a.Settle()
	require.Equal(t, 4, a.Count(crm, "tentative"))
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1), ('j', 2)`)
	a.acquire(rightsTo(4, 4))
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('k', 4)`)
	a.acquire(rightsTo(6, 7))
	refused(rightsTo(8, 8))

	// Unused rights are returned.
	a.returned()
	a.acquire(rightsTo(8, 9))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The blockade of a right that was asked for is confirmed when a row uses the right, and removed when the
// right is returned.
func TestARightIsConfirmedByItsUse_I3_I8(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.acquire(rightsTo(1, 2))
	a.Expire(crm)
	require.NoError(t, a.Resolve(a.ID(crm)))
	require.Equal(t, 2, a.Count(crm, "tentative"), "undecided while nothing uses them")
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)

	// A question for a plan confirms nothing.
	_ = a.planned("2")
	require.Equal(t, 2, a.Count(crm, "tentative"))

	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.returned()
	a.Expire(crm)
	require.NoError(t, a.Resolve(a.ID(crm)))
	require.Zero(t, a.Count(crm, "tentative"))
	require.Equal(t, 1, a.Count(crm, "blockade"))
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/i")
	a.MustDelete(customer("2"))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A role asks for rights, and its region goes silent: the deletions of their targets wait, and name the
// command by which an operator releases the rights. When the region is back it ends them, and asks anew for
// the rights that rows use meanwhile.
func TestRightsOfASilentDeploymentAreReleased_I3_I8_I31(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx, west := context.Background(), a.Stores[a.ID(crm)]
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('used', 1)`)
	a.returned()
	a.Expire(crm)
	require.NoError(t, a.Resolve(a.ID(crm)))
	a.acquire(rightsTo(2, 4))
	a.SetDown(shop, true)
	a.Expire(crm)
	_, err := a.Delete(customer("2"))
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	require.ErrorContains(t, err, "db-controller force-release "+crm+" --unconfirmed-of "+shop)
	_, err = a.Delete(customer("1"))
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	require.NotContains(t, err.Error(), "--unconfirmed-of", "rows use this one")

	var keys []string
	for token := ""; ; {
		page, next, err := west.Operate.Unconfirmed(ctx, a.ID(shop), 2, token)
		require.NoError(t, err)
		for _, r := range page {
			require.Empty(t, r.Refused)
			require.Equal(t, shop, r.Other)
			keys = append(keys, r.Key)
		}
		if token = next; token == "" {
			break
		}
	}
	require.Len(t, keys, 3)
	_, _, err = west.Operate.Unconfirmed(ctx, a.ID(shop), 2, "x")
	require.ErrorAs(t, err, new(*peer.InvalidError))
	released, err := west.Operate.ForceRelease(ctx, keys, false, "ticket 1", "operator/eve")
	require.NoError(t, err)
	require.Equal(t, keys, released)
	require.Equal(t, 3, endings(a.Box, crm))
	a.MustDelete(customer("2"))
	a.MustDelete(customer("3"))
	_, err = a.Delete(customer("1"))
	require.ErrorAs(t, err, new(*peer.UnavailableError), "a right that rows use stays")

	// Meanwhile the application there goes on writing under the rights.
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('late', 3), ('good', 4)`)
	a.SetDown(shop, false)
	a.again()
	require.Zero(t, endings(a.Box, crm))
	_ = a.lacks(`INSERT INTO invoices (id, customer_id) VALUES ('x', 2)`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('y', 4)`)
	_, err = a.Delete(customer("4"))
	require.ErrorContains(t, err, "invoices/good")
	require.Equal(t, []string{"//" + crm + "/customers/3 true"},
		a.rows(a.shop, `SELECT target || ' ' || missing FROM dbcontroller.lacking`), "it is reported")

	// The releases change nothing when they are repeated.
	released, err = west.Operate.ForceRelease(ctx, keys, false, "ticket 1", "operator/eve")
	require.NoError(t, err)
	require.Empty(t, released)
	confirmed := releasable(t, west, "customers/1", "BLOCKADE")
	require.Contains(t, confirmed.Refused, "has references under it")
	_, err = west.Operate.ForceRelease(ctx, []string{confirmed.Key}, false, "ticket 1", "operator/eve")
	require.ErrorAs(t, err, new(*peer.InvalidError))
	a.exec(a.shop, `DELETE FROM invoices WHERE id = 'late'`)
	a.again()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A used right is confirmed, whether a row or a body uses it, and stays so when it is asked for again.
func TestAUsedRightIsNotReleased_I3_I8(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	unconfirmed := func() []shadow.Releasable {
		t.Helper()
		a.Expire(crm)
		require.NoError(t, a.Resolve(a.ID(crm)))
		page, _, err := a.Stores[a.ID(crm)].Operate.Unconfirmed(t.Context(), a.ID(shop), 10, "")
		require.NoError(t, err)
		return page
	}
	a.acquire(rightsTo(1, 2))
	require.Len(t, unconfirmed(), 2)
	a.MustPut("//"+shop+"/letters/l", harness.Body{"customer": customer("1")})
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 2)`)
	a.returned()
	require.Empty(t, unconfirmed())
	require.Zero(t, a.Count(crm, "tentative"))

	// It is about to end for a moment, and asked for meanwhile.
	a.exec(a.shop,
		`INSERT INTO dbcontroller.ending (target_id, until) SELECT id, now() + interval '5 s' FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL`)
	a.acquire(rightsTo(1, 3))
	require.Zero(t, a.Count(crm, "tentative")-1, "that of the new one")
	a.SetDown(shop, true)
	page, _, err := a.Stores[a.ID(crm)].Operate.Unconfirmed(t.Context(), a.ID(shop), 10, "")
	require.NoError(t, err)
	require.Empty(t, page, "it has not expired yet")
	a.Expire(crm)
	page, _, err = a.Stores[a.ID(crm)].Operate.Unconfirmed(t.Context(), a.ID(shop), 10, "")
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, "customers/3", page[0].Name)
}

// A question about a right to act that is not confirmed yet is answered.
func TestAnUnconfirmedRightToActIsUndecided(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{"ACT " + customer("1")})
	a.AnswerRequests(shop)
	a.Expire(crm)
	require.NoError(t, a.Resolve(a.ID(crm)))
	a.Settle()
	require.Zero(t, a.Count(crm, "tentative"))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
