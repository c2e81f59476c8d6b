package handlers_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// resolving has expired blockades, and the holders' deployment that decides about them.
type resolving struct {
	steps
	expired int // blockades
	verdict peer.Verdict
	answer  func(asked int) (*peer.Answers, error)
	read    error
	settle  error
}

func (r *resolving) ExpiredHolders(context.Context) ([]schema.DeploymentID, error) {
	return []schema.DeploymentID{there}, r.read
}

func (r *resolving) Expired(_ context.Context, _ schema.DeploymentID, limit int) ([]peer.Question, error) {
	n := min(limit, r.expired)
	r.add("read", n)
	return make([]peer.Question, n), r.read
}

func (r *resolving) Resolve(_ context.Context, _ schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	r.add("ask", len(questions))
	if r.answer != nil {
		return r.answer(len(questions))
	}
	return r.verdicts(len(questions)), nil
}

func (r *resolving) verdicts(n int) *peer.Answers {
	a := &peer.Answers{Epoch: epoch}
	for range n {
		a.Verdicts = append(a.Verdicts, r.verdict)
	}
	return a
}

func (r *resolving) Settle(_ context.Context, _ schema.DeploymentID, questions []peer.Question,
	answers *peer.Answers,
) error {
	r.add("settle", len(questions), answers.Epoch == epoch)
	for _, v := range answers.Verdicts {
		if v != peer.Undecided {
			r.expired--
		}
	}
	return r.settle
}

func (r *resolving) resolve(t *testing.T) error {
	t.Helper()
	return (&handlers.Resolve{Store: r, Peers: r}).Resolve(t.Context(), there)
}

func TestExpiredBlockadesAreSettledByTheHoldersVerdict_I5(t *testing.T) {
	t.Parallel()
	for _, verdict := range []peer.Verdict{peer.Held, peer.GoneVerdict} {
		r := &resolving{expired: 3, verdict: verdict}
		require.NoError(t, r.resolve(t))
		require.Equal(t, steps{"read 3", "ask 3", "settle 3 true"}, r.steps)
	}
}

func TestWithoutExpiredBlockadesNobodyIsAsked(t *testing.T) {
	t.Parallel()
	r := &resolving{}
	require.NoError(t, r.resolve(t))
	require.Equal(t, steps{"read 0"}, r.steps)
}

func TestMoreBlockadesThanOneCallTakesAreAskedAboutInTurn_I21(t *testing.T) {
	t.Parallel()
	r := &resolving{expired: 2300, verdict: peer.GoneVerdict}
	require.NoError(t, r.resolve(t))
	require.Equal(t, steps{
		"read 1000", "ask 1000", "settle 1000 true", "read 1000", "ask 1000", "settle 1000 true", "read 300", "ask 300",
		"settle 300 true",
	}, r.steps)
}

// Undecided blockades stay, and would be read again: the run ends, and the next look asks.
func TestUndecidedBlockadesAreNotAskedAboutAtOnceAgain_I5(t *testing.T) {
	t.Parallel()
	r := &resolving{expired: 2300, verdict: peer.Undecided}
	require.NoError(t, r.resolve(t))
	require.Equal(t, steps{"read 1000", "ask 1000", "settle 1000 true"}, r.steps)
	require.Equal(t, 2300, r.expired)
}

// I5: time alone removes nothing.
func TestBlockadesOfAnUnreachableDeploymentStay_I5(t *testing.T) {
	t.Parallel()
	r := &resolving{expired: 3, answer: func(int) (*peer.Answers, error) { return nil, errUnreachable }}
	err := r.resolve(t)
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "resolve at a.example.com/us-west2")
	require.Equal(t, steps{"read 3", "ask 3"}, r.steps)
}

func TestTooFewVerdictsSettleNothing_I5(t *testing.T) {
	t.Parallel()
	r := &resolving{expired: 3, answer: func(asked int) (*peer.Answers, error) {
		return (&resolving{}).verdicts(asked - 1), nil
	}}
	require.ErrorContains(t, r.resolve(t), "2 answers to 3 questions")
	require.Equal(t, steps{"read 3", "ask 3"}, r.steps)
}

func TestAFailureToSettleEndsTheRun(t *testing.T) {
	t.Parallel()
	r := &resolving{expired: 2300, verdict: peer.GoneVerdict, settle: peer.ErrStaleEpoch}
	require.ErrorIs(t, r.resolve(t), peer.ErrStaleEpoch)
	require.Len(t, r.steps, 3)
}

func TestTheHoldersOfExpiredBlockadesAreNamed(t *testing.T) {
	t.Parallel()
	holders, err := (&handlers.Resolve{Store: &resolving{}}).Expired(t.Context())
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{there}, holders)
	_, err = (&handlers.Resolve{Store: &resolving{read: errDatabase}}).Expired(t.Context())
	require.ErrorIs(t, err, errDatabase)
}
