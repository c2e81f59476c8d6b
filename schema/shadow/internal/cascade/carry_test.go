package cascade

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A uid of version 7 is between the bounds when it was made less than an hour ago, and a random one is not.
func TestBriefUIDsAreThoseOfTheLastHour(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) uuid.UUID {
		id := uuid.Must(uuid.NewV7())
		of, _ := briefUIDs(time.Now().Add(brief - d)) // the time of the first bound
		copy(id[:6], of[:6])
		return id
	}
	from, until := briefUIDs(time.Now())
	between := func(id uuid.UUID) bool {
		return bytes.Compare(id[:], from[:]) >= 0 && bytes.Compare(id[:], until[:]) <= 0
	}
	require.True(t, between(uuid.Must(uuid.NewV7())))
	require.True(t, between(at(59*time.Minute)))
	require.False(t, between(at(61*time.Minute)))
	require.False(t, between(uuid.Nil))
	require.False(t, between(uuid.MustParse("f47ac10b-58cc-4372-a567-0e02b2c3d479")))
}
