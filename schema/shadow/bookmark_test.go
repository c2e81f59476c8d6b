package shadow_test

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/wait"
)

// A bookmark of an idle watch has a new position, although nothing of the watch was written: blockades and
// entries that an older copy of the database lacks are revealed by it, which no notice follows.
func TestBookmarksOfAnIdleWatchMoveOn_I2_I23(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	here, l := counted(t, b, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tokens := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- here.Read.WatchDeletions(ctx, b.ID(bEast), "", func(e schema.Event[schema.Deletion]) error {
			tokens <- e.Token
			return nil
		})
	}()
	first := <-tokens
	l.await(t, 2)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	var now int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
		`SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int`).Scan(&now))
	require.Less(t, placeOf(t, first), now)
	l.await(t, 5)
	require.Eventually(t, func() bool { return placeOf(t, <-tokens) >= now }, wait.Limit, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// placeOf returns the first transaction id that a token has not seen.
func placeOf(t *testing.T, token string) int {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(token)
	require.NoError(t, err)
	const mac = 16
	parts := strings.Split(string(raw[mac:]), "|") // format, key, epoch, filter, position, witness
	require.Len(t, parts, 6)
	_, position, ok := strings.Cut(parts[4], ":")
	require.True(t, ok)
	xmax, _, _ := strings.Cut(position, ":")
	n, err := strconv.Atoi(xmax)
	require.NoError(t, err)
	return n
}
