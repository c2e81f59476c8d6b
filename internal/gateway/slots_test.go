package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/test/wait"
)

// A caller's calls wait for one another, at most maxWaiting of them, and take nothing from other callers.
func TestACallerTakesItsOwnSlots(t *testing.T) {
	t.Parallel()
	s := newSlots()
	enter := func(ctx context.Context, who string, stream bool) (func(), codes.Code) {
		leave, err := s.enter(ctx, who, stream)
		return leave, status.Code(err)
	}
	var leaves []func()
	for range maxCalls {
		leave, code := enter(t.Context(), "ann", false)
		require.Equal(t, codes.OK, code)
		leaves = append(leaves, leave)
	}
	for range maxStreams {
		leave, code := enter(t.Context(), "ann", true)
		require.Equal(t, codes.OK, code)
		leaves = append(leaves, leave)
	}
	_, code := enter(t.Context(), "ann", true)
	require.Equal(t, codes.ResourceExhausted, code, "a watch is refused at once")

	waiting, end := context.WithCancel(t.Context())
	results := make(chan codes.Code, maxWaiting)
	for range maxWaiting {
		go func() {
			_, code := enter(waiting, "ann", false)
			results <- code
		}()
	}
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.of["ann"].users == maxCalls+maxStreams+maxWaiting
	}, wait.Limit, time.Millisecond)
	_, code = enter(t.Context(), "ann", false)
	require.Equal(t, codes.ResourceExhausted, code, "too many wait")
	leave, code := enter(t.Context(), "bob", false)
	require.Equal(t, codes.OK, code)
	leave()
	end()
	for range maxWaiting {
		require.Equal(t, codes.Canceled, <-results)
	}
	for _, leave := range leaves {
		leave()
	}
	require.Empty(t, s.of, "nothing is kept of callers without requests")
	require.Empty(t, s.calls)
	require.Empty(t, s.streams)
}

// All callers together have a bound; a call of a caller that gives up takes no place of the others.
func TestAllCallersTogetherHaveABound(t *testing.T) {
	t.Parallel()
	s := newSlots()
	var leaves []func()
	for i := range maxAllCalls {
		leave, err := s.enter(t.Context(), string(rune('a'+i)), false)
		require.NoError(t, err)
		leaves = append(leaves, leave)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.enter(gone, "late", false)
	require.Equal(t, codes.Canceled, status.Code(err))
	leaves[0]()
	leave, err := s.enter(t.Context(), "late", false)
	require.NoError(t, err)
	leave()
}
