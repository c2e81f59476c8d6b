package embed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/test/wait"
)

// poolOf connects as the application, with other settings.
func (w *world) poolOf(t *testing.T, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(w.ApplicationDSN(devices.String()))
	require.NoError(t, err)
	change(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// The mistakes of an application's pool and functions on the first day.
func TestWhatApplicationsDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, projects+"p")
	t.Run("a pool for a pooler of connections has no prepared statements", w.withoutPreparedStatements)
	t.Run("a pool with hooks", w.withHooks)
	t.Run("sessions begin transactions at another level", w.atAnotherLevel)
	t.Run("the caller gives up", w.callerGivesUp)
	t.Run("the function panics", w.functionPanics)
	t.Run("the function saves again", w.functionSavesAgain)
	t.Run("two processes have one certificate", w.twoProcesses)
}

func (w *world) application(t *testing.T, pool *pgxpool.Pool) *embed.Application {
	t.Helper()
	app, err := embed.New(t.Context(), embed.Config{Deployment: devices, Pool: pool, Certs: w.Certs(booking)})
	require.NoError(t, err)
	t.Cleanup(app.Close)
	return app
}

// all writes, reports and deletes a resource with a reference, beside a row.
func (w *world) all(t *testing.T, app *embed.Application, id string) {
	t.Helper()
	ctx := t.Context()
	saved, err := app.Save(ctx,
		[]embed.Write{{
			Name: "devices/" + id, Body: fields{"project": projects + "p", "x": fields{"y": 1.5}},
			Labels: map[string]string{"a": "b"},
		}}, book(id))
	require.NoError(t, err)
	_, err = app.Save(ctx, []embed.Write{{
		Name: "devices/" + id, Body: fields{"project": projects + "p", "x": "other"},
		Revision: saved[0].Revision,
	}}, nil)
	require.NoError(t, err)
	_, err = app.UpdateStatusIn(ctx, embed.Status{Name: "devices/" + id, Status: fields{"phase": "new"}}, nil)
	require.NoError(t, err)
	require.True(t, w.booked(t, id))
	deleted, err := app.DeleteIn(ctx, embed.Delete{Name: "devices/" + id, UID: saved[0].UID}, unbook(id))
	require.NoError(t, err)
	require.True(t, deleted.Removed)
	require.False(t, w.booked(t, id))
}

func (w *world) withoutPreparedStatements(t *testing.T) {
	for name, mode := range map[string]pgx.QueryExecMode{
		"describe": pgx.QueryExecModeCacheDescribe,
		"each":     pgx.QueryExecModeDescribeExec,
	} {
		pool := w.poolOf(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		w.all(t, w.application(t, pool), name)
		require.Equal(t, mode, pool.Config().ConnConfig.DefaultQueryExecMode)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pool := w.poolOf(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		_, err := embed.New(t.Context(), embed.Config{Deployment: devices, Pool: pool, Certs: w.Certs(booking)})
		require.ErrorContains(t, err, "use cache_describe or describe_exec")
	}
}

// withHooks runs an application over a pool whose hooks add credentials and change settings.
func (w *world) withHooks(t *testing.T) {
	asked := 0
	pool := w.poolOf(t, func(c *pgxpool.Config) {
		user := c.ConnConfig.User
		c.ConnConfig.User = "nobody_yet"
		c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error { asked++; conn.User = user; return nil }
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx,
				`SET search_path = public; SET enable_seqscan = on; SET default_transaction_read_only = on`)
			return err
		}
	})
	w.all(t, w.application(t, pool), "hooks")
	require.GreaterOrEqual(t, asked, 2)
}

func (w *world) atAnotherLevel(t *testing.T) {
	w.all(t, w.application(t, w.poolOf(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		c.ConnConfig.RuntimeParams["search_path"] = "public"
	})), "level")
}

func (w *world) callerGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.Save(ctx, []embed.Write{{Name: "devices/up"}}, func(tx pgx.Tx) error {
		err := book("up")(tx)
		cancel()
		return err
	})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, w.booked(t, "up"))
	require.False(t, w.stored(t, things+"devices/up"))
	_, err = w.Save(ctx, []embed.Write{{Name: "devices/up"}}, book("up"))
	require.ErrorIs(t, err, context.Canceled)
	w.all(t, w.Application, "up")
}

func (w *world) functionPanics(t *testing.T) {
	require.Panics(t, func() {
		_, _ = w.Save(t.Context(), []embed.Write{{Name: "devices/panic"}}, func(tx pgx.Tx) error {
			if err := book("panic")(tx); err != nil {
				return err
			}
			panic("mine")
		})
	})
	require.False(t, w.booked(t, "panic"))
	require.Eventually(t, func() bool {
		return w.pool.Stat().AcquiredConns() == 0
	}, wait.Limit, time.Millisecond, "its connection is free")
	w.all(t, w.Application, "panic")
}

// A Save within a function is a transaction of its own: it stays when the outer one is rolled back.
func (w *world) functionSavesAgain(t *testing.T) {
	ctx := t.Context()
	_, err := w.Save(ctx, []embed.Write{{Name: "devices/outer"}}, func(pgx.Tx) error {
		_, err := w.Save(ctx, []embed.Write{{Name: "devices/inner"}}, nil)
		return errors.Join(err, errMine)
	})
	require.ErrorIs(t, err, errMine)
	require.False(t, w.stored(t, things+"devices/outer"))
	require.True(t, w.stored(t, things+"devices/inner"))
}

func (w *world) twoProcesses(t *testing.T) {
	other := w.application(t, w.pool)
	w.all(t, other, "two")
	other.Close()
	_, err := other.Save(t.Context(), []embed.Write{{Name: "devices/closed"}}, book("closed"))
	require.ErrorIs(t, err, embed.ErrClosed)
	w.all(t, w.Application, "two")
}
