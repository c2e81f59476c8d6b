package cascade

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

func newTally() *deletionTally { return &deletionTally{notes: map[uuid.UUID]*deletionCounts{}} }

func member(state peer.State, how peer.How, cause *schema.Cause) *plan.Member {
	return &plan.Member{State: state, Why: plan.Reason{How: how, Cause: cause}}
}

func TestATallyCountsActiveMembersOnce(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Minute)
	cause := &schema.Cause{ID: uuid.New(), Root: "//a/root", At: began}
	both := DeletionCounts{Found: 1, Removed: 1}
	for name, c := range map[string]struct {
		member *plan.Member
		counts DeletionCounts
		want   DeletionCounts
		ended  bool
	}{
		"the root, removed at once": {member(peer.Active, peer.Requested, cause), both, both, true},
		"the root, marked": {
			member(peer.Active, peer.Requested, cause),
			DeletionCounts{Found: 1},
			DeletionCounts{Found: 1},
			false,
		},
		"a cascade":        {member(peer.Active, peer.Cascaded, cause), both, both, false},
		"marked before":    {member(peer.Deleting, peer.Cascaded, cause), both, DeletionCounts{}, false},
		"of unknown cause": {member(peer.Active, peer.Cascaded, nil), both, DeletionCounts{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tally := newTally()
			tally.member(c.member, c.counts)
			if c.want == (DeletionCounts{}) {
				require.Empty(t, tally.notes)
			} else {
				require.Equal(t, deletionCounts{c.want, "//a/root"}, *tally.notes[cause.ID])
			}
			require.Equal(t, c.ended, len(tally.began) == 1)
		})
	}
}

func TestABookAddsUpWhatTransactionsDo(t *testing.T) {
	t.Parallel()
	b := &Book{notes: map[uuid.UUID]*deletionCounts{}}
	one, two := uuid.New(), uuid.New()
	b.take(map[uuid.UUID]*deletionCounts{one: {DeletionCounts{Found: 2}, "//a/1"}})
	b.take(map[uuid.UUID]*deletionCounts{
		one: {DeletionCounts{Removed: 1, Unset: 3}, "//a/1"},
		two: {DeletionCounts{Found: 1}, "//a/2"},
	})
	require.Equal(t, deletionCounts{DeletionCounts{Found: 2, Removed: 1, Unset: 3}, "//a/1"}, *b.notes[one])
	require.Equal(t, deletionCounts{DeletionCounts{Found: 1}, "//a/2"}, *b.notes[two])
}

func TestABookIsBounded(t *testing.T) {
	t.Parallel()
	b := &Book{notes: map[uuid.UUID]*deletionCounts{}}
	known := uuid.New()
	b.take(map[uuid.UUID]*deletionCounts{known: {}})
	for range maxNotes + 10 {
		b.take(map[uuid.UUID]*deletionCounts{uuid.New(): {}})
	}
	require.Len(t, b.notes, maxNotes)
	b.take(map[uuid.UUID]*deletionCounts{known: {DeletionCounts: DeletionCounts{Found: 1}}})
	require.EqualValues(t, 1, b.notes[known].Found, "deletions that it has go on")
}

// A transaction of the application's own is no db.Marked: nothing is known of its commit, so nothing is
// counted.
func TestOnlyCommitsOfTheStoreAreCounted(t *testing.T) {
	t.Parallel()
	b, r := NewBook(&db.DB{Now: time.Now})
	r.Unset(nil, &schema.Cause{ID: uuid.New()})
	require.Empty(t, b.notes)
	r.Unset(&db.Marked{}, &schema.Cause{ID: uuid.New()})
	require.Empty(t, b.notes, "before the commit")
}
