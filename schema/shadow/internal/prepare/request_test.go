package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// stored is the answer to a repeated request after a refusal was recorded.
func stored(t *testing.T, err error) error {
	t.Helper()
	refusal, known := refusalOutcome(err)
	require.True(t, known)
	raw, merr := json.Marshal(refusal)
	require.NoError(t, merr)
	var o Outcome
	require.NoError(t, json.Unmarshal(raw, &o))
	return o.err()
}

func TestARepeatedRequestGetsTheSameRefusal(t *testing.T) {
	t.Parallel()
	at := schema.DeploymentID{Service: "a.example.com", Region: "west"}
	for name, err := range map[string]error{
		"not found": fmt.Errorf("things/1: %w", peer.ErrNotFound),
		"exists":    fmt.Errorf("things/1: %w", peer.ErrExists),
		"conflict":  fmt.Errorf("things/1: %w: it is at revision 3, not 2", peer.ErrConflict),
		"deleting":  fmt.Errorf("things/1: %w", peer.ErrDeleting),
		"invalid":   &peer.InvalidError{Resource: "things/1", Err: errors.New("body: no such field")},
		"protected": &peer.ProtectedError{Name: "things/1", By: []schema.FullName{{Deployment: at, Name: "things/2"}}},
		"blocked": &peer.BlockedError{
			Name: "things/1", Deployment: at, Total: 1,
			Holders: []peer.Holder{{
				Name: schema.FullName{Deployment: at, Name: "holders/1"}, Path: "ref",
				Target: schema.FullName{Deployment: at, Name: "things/1"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again := stored(t, err)
			require.EqualError(t, again, err.Error())
			for _, is := range []error{peer.ErrNotFound, peer.ErrExists, peer.ErrConflict, peer.ErrDeleting} {
				require.Equal(t, errors.Is(err, is), errors.Is(again, is), "%v", is)
			}
			require.True(t, peer.Definite(again))
		})
	}
}

// A definite refusal that no write or delete has today is not stored: without its reason it would be read as
// a success.
func TestARefusalThatCannotBeStoredIsNotReadAsASuccess_I29(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		peer.ErrNotDeleting, peer.ErrDenied, peer.ErrDecommissioned, peer.ErrPosition,
		peer.ErrReset, peer.ErrRequestReused,
	} {
		require.True(t, peer.Definite(err))
		o, known := refusalOutcome(fmt.Errorf("things/1: %w", err))
		require.False(t, known, "%v", err)
		require.Empty(t, o)
	}
	o, known := refusalOutcome(fmt.Errorf("things/1: %w", peer.ErrNotFound))
	require.True(t, known)
	require.Error(t, o.err())
}

func TestManyRefusalsAreStoredByNumber(t *testing.T) {
	t.Parallel()
	refused := &peer.RefusedError{}
	for range peer.MaxNamedHolders + 20 {
		refused.Refusals = append(refused.Refusals, peer.Refusal{})
	}
	var again *peer.RefusedError
	require.ErrorAs(t, stored(t, refused), &again)
	require.Len(t, again.Refusals, peer.MaxNamedHolders)
	require.Equal(t, refused.Total(), again.Total())
}

func TestAnOutcomeWithoutARefusalIsNoError(t *testing.T) {
	t.Parallel()
	require.NoError(t, Outcome{Deleted: &peer.DeleteResult{Removed: true}}.err())
}

func TestARequestWithoutAnIdIsNotRecorded(t *testing.T) {
	t.Parallel()
	var none *Request
	require.NoError(t, none.record(t.Context(), nil, Outcome{}))
	none.Queue(nil, Outcome{})
}
