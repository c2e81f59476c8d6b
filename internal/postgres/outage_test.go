package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/db-controller/db-controller/internal/postgres"
)

// A database that refuses writes is known as such from the first refusal until it takes writes again, also in
// an outage of another kind.
func TestRefusedWritesAreKnownUntilTheDatabaseTakesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, said := observer.New(zap.InfoLevel)
		log, outage := postgres.LogOutageOnce(zap.New(core))
		var space atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- outage.Follow(ctx, func(_ context.Context, refused error) error {
				if !errors.Is(refused, postgres.ErrDiskFull) || !space.Load() {
					return errors.New("it is asked whether there is space")
				}
				return nil
			})
		}()
		require.NoError(t, outage.Refuses(ctx))
		log.Error("request failed", zap.Error(&pgconn.PgError{Code: "57P01"}))
		require.NoError(t, outage.Refuses(ctx))
		log.Error("request failed", zap.Error(fmt.Errorf("put: %w", &pgconn.PgError{Code: "53100"})))
		require.ErrorIs(t, outage.Refuses(ctx), postgres.ErrDiskFull)
		require.Equal(t, postgres.ErrDiskFull.Error(), said.All()[1].Message, "one line for each kind")
		time.Sleep(time.Hour)
		require.ErrorIs(t, outage.Refuses(ctx), postgres.ErrDiskFull)
		space.Store(true)
		time.Sleep(2 * time.Second)
		require.NoError(t, outage.Refuses(ctx))
		cancel()
		require.NoError(t, <-done)
	})
}

// All lines about one outage become one line, also with different messages; the end of the outage is one
// line, and the next outage is one line. Lines with other errors are not changed.
func TestAnOutageIsOneLineAStateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, said := observer.New(zap.InfoLevel)
		log, outage := postgres.LogOutageOnce(zap.New(core))
		same, _ := postgres.LogOutageOnce(log.With(zap.String("of", "x")))
		var works atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- outage.Follow(ctx, func(context.Context, error) error {
				if works.Load() {
					return nil
				}
				return errors.New("away")
			})
		}()
		away := fmt.Errorf("read: %w", &pgconn.PgError{Code: "57P01"})
		fails := func() {
			for range 30 {
				log.Error("request failed", zap.Error(away), zap.String("request_id", "r"), zap.Int("tries", 1))
				same.Warn("the lease could not be renewed", zap.Error(away))
				time.Sleep(100 * time.Millisecond)
			}
		}
		messages := func() (out []string) {
			for _, e := range said.TakeAll() {
				text := e.Level.String() + " " + e.Message
				if id, ok := e.ContextMap()["request_id"]; ok {
					text += fmt.Sprintf(" (request %v)", id)
				}
				require.NotContains(t, e.ContextMap(), "tries")
				out = append(out, text)
			}
			return out
		}
		fails()
		time.Sleep(time.Hour)
		fails()
		require.Equal(t, []string{"warn the database is unavailable, retrying (request r)"}, messages())
		log.Warn("something else", zap.Error(errors.New("broken")))
		log.Info("nothing failed")
		log.Info("a watch ended", zap.Error(io.EOF))
		require.Equal(t, []string{"warn something else", "info nothing failed", "info a watch ended"}, messages())
		works.Store(true)
		time.Sleep(5 * time.Second)
		require.Equal(t, []string{"info the database is available again"}, messages())
		fails()
		require.Len(t, messages(), 1)
		cancel()
		require.NoError(t, <-done)
	})
}
