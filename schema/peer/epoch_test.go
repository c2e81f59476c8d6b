package peer_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// An epoch is later than the epochs that other deployments know, also when the clock goes back. An epoch
// that they refuse does not count.
func TestAnEpochIsLaterThanTheKnownOnes_I8(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	at := func(d time.Duration) *uuid.UUID {
		id := peer.EpochAfter(now.Add(d))
		return &id
	}
	for name, c := range map[string]struct {
		known []*uuid.UUID
		want  time.Duration
	}{
		"none":              {[]*uuid.UUID{nil}, 0},
		"the clock goes on": {[]*uuid.UUID{at(-time.Millisecond), nil}, 0},
		"it stands still":   {[]*uuid.UUID{at(0)}, 10 * time.Second},
		"it went back": {
			[]*uuid.UUID{at(-time.Hour), at(time.Hour), at(time.Minute)},
			time.Hour + 10*time.Second,
		},
		"it had been ahead, and is corrected": {[]*uuid.UUID{at(3 * time.Hour)}, 0},
	} {
		epoch := peer.EpochAfter(now, c.known...)
		require.Equal(t, now.Add(c.want), peer.AttemptTime(epoch), name)
		require.Equal(t, uuid.Version(7), epoch.Version(), name)
	}
	require.Greater(t, peer.FirstNumber(*at(time.Millisecond)), peer.FirstNumber(*at(0))+999)
}
