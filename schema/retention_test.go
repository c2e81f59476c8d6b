package schema

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetentions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "36h": 36 * time.Hour, "1d12h": 36 * time.Hour,
		"90s": 90 * time.Second, "366d": 366 * day, "1d0h30m": day + 30*time.Minute,
	} {
		got, err := ParseRetention(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := ParseRetention(FormatRetention(got))
		require.NoError(t, err, text)
		require.Equal(t, want, again, FormatRetention(got))
	}
	require.Equal(t, "1d12h", FormatRetention(36*time.Hour))
	require.Equal(t, "1m30s", FormatRetention(90*time.Second))
	for _, text := range []string{"", "d", "7", "7 d", "-7d", "7d-1h", "999ms", "367d", "1w", "99999d", "1.5d"} {
		_, err := ParseRetention(text)
		require.Error(t, err, text)
	}
}
