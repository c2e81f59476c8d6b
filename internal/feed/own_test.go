package feed

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A position behind a transaction of this process, which is on disk, and rows of it alone need no flush of
// the log.
func TestAPositionBehindAnOwnCommitIsOnDisk_I23(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at, epoch string
		page      page[string]
		own       bool
	}{
		"its rows": {
			at: "90:101:", epoch: "e1", page: page[string]{xid: "100"},
			own: true,
		},
		"no rows": {at: "90:101:", epoch: "e1", own: true},
		"others that have not ended": {
			at: "90:101:95,97", epoch: "e1", page: page[string]{xid: "100"},
			own: true,
		},
		"another one has ended since": {at: "90:102:", epoch: "e1", page: page[string]{xid: "100"}},
		"a position before it":        {at: "90:100:", epoch: "e1"},
		"rows of another transaction": {at: "90:101:", epoch: "e1", page: page[string]{xid: "97"}},
		"rows of several transactions": {
			at: "90:101:", epoch: "e1",
			page: page[string]{xid: "100", several: true},
		},
		"further rows": {
			at: "90:101:", epoch: "e1",
			page: page[string]{xid: "100", full: true},
		},
		"a row that is too large for this page": {at: "90:101:", epoch: "e1", page: page[string]{needs: 1}},
		"another server":                        {at: "90:101:", epoch: "e2", page: page[string]{xid: "100"}},
		"a server without an epoch":             {at: "90:101:", page: page[string]{xid: "100"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLog(Config{})
			at, err := parsePosition(c.at)
			require.NoError(t, err)
			c.page.present.epoch = c.epoch
			require.False(t, c.page.isOwn(&l.own, at), "nothing was committed")
			l.Committed("", "100")
			require.False(t, c.page.isOwn(&l.own, at), "of no epoch")
			l.Committed("e1", "100")
			l.Committed("e1", "99") // the commits tell of themselves in any order
			require.Equal(t, c.own, c.page.isOwn(&l.own, at))
			l.Committed("e3", "7")
			require.False(t, c.page.isOwn(&l.own, at), "a later epoch has other ids")
		})
	}
}

func TestTheTransactionOfRows(t *testing.T) {
	t.Parallel()
	one, two := "1", "2"
	p := page[string]{}
	p.wrote(&one)
	p.wrote(&one)
	require.Equal(t, "1", p.xid)
	require.False(t, p.several)
	p.wrote(&two)
	require.True(t, p.several)
	p = page[string]{}
	p.wrote(nil)
	require.True(t, p.several, "of an unknown one")
}

// A watch that an own commit has woken delivers its rows while the log is not on disk as far as others have
// written it. Otherwise it waits.
func TestAWatchWaitsForNoDiskBehindAnOwnCommit_I23(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDatabase()
		d.lags = true
		l, f := followed(d, 5, nil)
		f.Written = true
		st, err := l.state(t.Context(), d)
		require.NoError(t, err)
		at, err := parsePosition(st.at)
		require.NoError(t, err)
		w := open(t.Context(), l, f, l.token(st, at, f.Filter), nil)
		time.Sleep(time.Second)
		received := func(flushes int, want ...string) {
			t.Helper()
			l.cfg.Wake.Wake(topic)
			time.Sleep(100 * time.Millisecond)
			texts, _, seen := w.state()
			require.Equal(t, want, texts)
			require.Len(t, want, seen, "the token covers them")
			d.mu.Lock()
			defer d.mu.Unlock()
			require.Equal(t, flushes, min(1, d.flushes))
			d.flushes = 0
		}
		write := func(text string) int {
			xid := d.begin(text)
			d.end(xid, true)
			return xid
		}
		write("a")
		received(1, "a")
		l.Committed(d.epoch, strconv.Itoa(write("b")))
		received(0, "a", "b")
		late := d.begin("c")
		l.Committed(d.epoch, strconv.Itoa(write("d")))
		received(0, "a", "b", "d")
		d.end(late, true) // perhaps without waiting for the disk
		received(1, "a", "b", "d", "c")
		l.Committed(d.epoch, strconv.Itoa(write("e")))
		write("f")
		received(1, "a", "b", "d", "c", "e", "f")
		for i := range 7 { // more than a page
			write(strconv.Itoa(i))
		}
		l.Committed(d.epoch, strconv.Itoa(d.next-1))
		received(1, "a", "b", "d", "c", "e", "f", "0", "1", "2", "3", "4", "5", "6")
		w.cancel()
		require.ErrorIs(t, <-w.done, context.Canceled)
	})
}
