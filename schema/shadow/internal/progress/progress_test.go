package progress

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

func newTally() *tally { return &tally{notes: map[uuid.UUID]*note{}} }

func member(state peer.State, how peer.How, cause *schema.Cause) *plan.Member {
	return &plan.Member{State: state, Why: plan.Reason{How: how, Cause: cause}}
}

func TestATallyCountsActiveMembersOnce(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Minute)
	cause := &schema.Cause{ID: uuid.New(), Root: "//a/root", At: began}
	both := Counts{Found: 1, Removed: 1}
	for name, c := range map[string]struct {
		member *plan.Member
		counts Counts
		want   Counts
		ended  bool
	}{
		"the root, removed at once": {member(peer.Active, peer.Requested, cause), both, both, true},
		"the root, marked":          {member(peer.Active, peer.Requested, cause), Counts{Found: 1}, Counts{Found: 1}, false},
		"a cascade":                 {member(peer.Active, peer.Cascaded, cause), both, both, false},
		"marked before":             {member(peer.Deleting, peer.Cascaded, cause), both, Counts{}, false},
		"of unknown cause":          {member(peer.Active, peer.Cascaded, nil), both, Counts{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tally := newTally()
			tally.member(c.member, c.counts)
			if c.want == (Counts{}) {
				require.Empty(t, tally.notes)
			} else {
				require.Equal(t, note{c.want, "//a/root"}, *tally.notes[cause.ID])
			}
			require.Equal(t, c.ended, len(tally.began) == 1)
		})
	}
}

func TestABookAddsUpWhatTransactionsDo(t *testing.T) {
	t.Parallel()
	b := &Book{notes: map[uuid.UUID]*note{}}
	one, two := uuid.New(), uuid.New()
	b.take(map[uuid.UUID]*note{one: {Counts{Found: 2}, "//a/1"}})
	b.take(map[uuid.UUID]*note{one: {Counts{Removed: 1, Unset: 3}, "//a/1"}, two: {Counts{Found: 1}, "//a/2"}})
	require.Equal(t, note{Counts{Found: 2, Removed: 1, Unset: 3}, "//a/1"}, *b.notes[one])
	require.Equal(t, note{Counts{Found: 1}, "//a/2"}, *b.notes[two])
}

func TestABookIsBounded(t *testing.T) {
	t.Parallel()
	b := &Book{notes: map[uuid.UUID]*note{}}
	known := uuid.New()
	b.take(map[uuid.UUID]*note{known: {}})
	for range maxNotes + 10 {
		b.take(map[uuid.UUID]*note{uuid.New(): {}})
	}
	require.Len(t, b.notes, maxNotes)
	b.take(map[uuid.UUID]*note{known: {Counts: Counts{Found: 1}}})
	require.EqualValues(t, 1, b.notes[known].Found, "deletions that it has go on")
}

// A transaction of the application's own is no db.Marked: nothing is known of its commit, so nothing is counted.
func TestOnlyCommitsOfTheStoreAreCounted(t *testing.T) {
	t.Parallel()
	b, r := New(&db.DB{Now: time.Now})
	r.Unset(nil, &schema.Cause{ID: uuid.New()})
	require.Empty(t, b.notes)
	r.Unset(&db.Marked{}, &schema.Cause{ID: uuid.New()})
	require.Empty(t, b.notes, "before the commit")
}
