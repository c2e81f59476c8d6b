package gate

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

func newGate() *Gate { return &Gate{DB: &db.DB{}, epochChanged: make(chan struct{}, 1)} }

// check is the check of a transaction that took the number mark when this process had seen the number seen.
func check(s *Gate, tx *db.Marked, seen, mark int64, found *uuid.UUID) *EpochCheck {
	s.Rollback.Seen.Store(seen)
	p := s.Present(tx)
	p.mark, p.found = mark, found
	return p
}

func TestATransactionBelongsToTheEpochOfItsServer(t *testing.T) {
	t.Parallel()
	epoch, other := uuid.New(), uuid.New()
	for name, c := range map[string]struct {
		seen, mark int64
		found      *uuid.UUID
		is         bool
	}{
		"a greater number":               {10, 11, &epoch, true},
		"the same number: an older copy": {10, 10, &epoch, false},
		"a smaller one: an older copy":   {10, 3, &epoch, false},
		"another server":                 {10, 11, nil, false},
		"another epoch":                  {10, 11, &other, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.is, check(newGate(), &db.Marked{}, c.seen, c.mark, c.found).Is(epoch))
		})
	}
}

func TestAnEpochThatHasEndedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	s, epoch := newGate(), uuid.New()
	require.False(t, check(s, &db.Marked{}, 10, 3, &epoch).Is(epoch))
	require.False(t, check(s, &db.Marked{}, 10, 20, &epoch).Is(epoch), "tries advance the sequence of the older copy")
	next := uuid.New()
	require.True(t, check(s, &db.Marked{}, 10, 21, &next).Is(next))
}

func TestTheNumberOfATransactionIsKeptForItsCommit(t *testing.T) {
	t.Parallel()
	epoch, tx := uuid.New(), &db.Marked{}
	require.True(t, check(newGate(), tx, 10, 12, &epoch).Is(epoch))
	require.EqualValues(t, 12, tx.Mark)
	tx = &db.Marked{}
	require.False(t, check(newGate(), tx, 10, 9, &epoch).Is(epoch))
	require.Zero(t, tx.Mark)
}

func TestAChangedEpochIsSignalledOnce(t *testing.T) {
	t.Parallel()
	s := newGate()
	s.Self = schema.DeploymentID{Service: "a.example.com", Region: "west"}
	for range 3 { // it does not wait for a reader
		var unavailable *peer.UnavailableError
		require.ErrorAs(t, s.RecoveringSelf(), &unavailable)
		require.ErrorIs(t, unavailable, peer.ErrRecovering)
		require.Equal(t, []schema.DeploymentID{s.Self}, unavailable.Deployments)
	}
	require.Len(t, s.EpochChanged(), 1)
}

func TestAnAllowanceIsUsedUpAndComesBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := newAllowance(func() int64 { return 100 }, func() time.Time { return now })
	require.NoError(t, a.Take(1, 60))
	require.NoError(t, a.Take(1, 40))
	require.ErrorIs(t, a.Take(1, 1), peer.ErrQuota)
	require.NoError(t, a.Take(1, 0), "nothing is always allowed")
	require.NoError(t, a.Take(2, 100), "another deployment has its own")
	now = now.Add(30 * time.Minute)
	require.NoError(t, a.Take(1, 50), "half of it in half an hour")
	require.ErrorIs(t, a.Take(1, 1), peer.ErrQuota)
	now = now.Add(100 * time.Hour)
	require.NoError(t, a.Take(1, 100))
	require.ErrorIs(t, a.Take(1, 1), peer.ErrQuota, "it does not add up beyond its size")
	now = now.Add(-time.Hour)
	require.ErrorIs(t, a.Take(1, 1), peer.ErrQuota, "a clock that goes back gives nothing")
}

func TestAnAttemptCommitsInItsEpochAndInTime(t *testing.T) {
	t.Parallel()
	s, epoch := newGate(), uuid.New()
	view := &CommitView{At: time.Now(), Present: check(s, &db.Marked{}, 1, 2, &epoch)}
	require.True(t, view.InEpoch(epoch))
	require.False(t, view.InEpoch(uuid.New()))
	view.ended = true
	require.False(t, view.InEpoch(epoch), "the epoch of a target's database has ended")

	attempt := uuid.Must(uuid.NewV7())
	require.False(t, view.TooLate(attempt))
	view.At = view.At.Add(peer.MaxAttemptAge + time.Minute)
	require.True(t, view.TooLate(attempt))
}

func TestACallerFromAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	who, known, other := schema.DeploymentID{Service: "a.example.com", Region: "west"}, uuid.New(), uuid.New()
	from := func(database uuid.UUID) error {
		return CheckCallerDatabase(peer.WithCallerDatabase(t.Context(), database), who, &known)
	}
	require.NoError(t, from(known))
	var refused *peer.DatabaseError
	require.ErrorAs(t, from(other), &refused)
	require.Equal(t, peer.DatabaseError{Deployment: who, Known: known, Spoken: other}, *refused)
	require.NoError(t, CheckCallerDatabase(t.Context(), who, &known), "the caller has not said it")
	require.NoError(t, CheckCallerDatabase(peer.WithCallerDatabase(t.Context(), other), who, nil), "none is recorded")
}
