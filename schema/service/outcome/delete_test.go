package outcome

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema/peer"
)

func TestDeletesAreCountedByTheirResults(t *testing.T) {
	t.Parallel()
	seen := map[DeleteResult]bool{}
	for _, c := range []struct {
		result peer.DeleteResult
		err    error
		want   DeleteResult
	}{
		{peer.DeleteResult{Removed: true}, nil, DeleteRemoved},
		{peer.DeleteResult{}, nil, DeleteGoesOn},
		{peer.DeleteResult{}, &peer.BlockedError{}, DeleteBlocked},
		{peer.DeleteResult{}, &peer.BlockedError{Undecided: true}, DeleteUndecided},
		{peer.DeleteResult{}, &peer.UnavailableError{Err: peer.ErrPaused}, DeleteUnavailable},
		{peer.DeleteResult{}, &peer.ProtectedError{}, DeleteProtected},
		{peer.DeleteResult{}, errors.New("fault"), DeleteFailed},
		{peer.DeleteResult{}, peer.ErrNotFound, DeleteNotFound},
	} {
		got := OfDelete(c.result, Status(zap.NewNop(), c.err))
		require.Equal(t, c.want, got, "%v", c.err)
		seen[got] = true
	}
	require.Len(t, DeleteResults, len(seen))
}
