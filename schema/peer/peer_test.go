package peer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

var (
	iam     = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}
	devices = schema.DeploymentID{Service: "devices.example.com", Region: "us-west2"}
	billing = schema.DeploymentID{Service: "billing.example.com", Region: "eastus2"}
)

func holder(i int, target string) peer.Holder {
	return peer.Holder{
		Name: schema.FullName{Deployment: devices, Name: fmt.Sprintf("devices/d%d", i)}, Path: "account",
		Target: schema.FullName{Deployment: iam, Name: target},
	}
}

func TestABlockedDeleteNamesItsBlockers(t *testing.T) {
	t.Parallel()
	e := &peer.BlockedError{Name: "projects/p", Deployment: iam}
	e.Add(holder(1, "projects/p/keys/k"))
	e.Add(holder(2, "projects/p"))
	e.Add(holder(3, "projects/p"))
	const d = "//devices.example.com/us-west2/devices/"
	require.EqualError(t, e, "projects/p cannot be deleted: it is referred to by "+d+"d2 (account), "+d+
		"d3 (account); "+
		"//iam.example.com/us-west2/projects/p/keys/k, which would be deleted with it, is referred to by "+d+
		"d1 (account)")
	e.AtLeast, e.Unanswered = true, []schema.DeploymentID{billing}
	require.ErrorContains(t, e,
		"and perhaps more: the look-ahead was incomplete; could not be asked whether their holders still refer: billing.example.com/eastus2")
}

func TestManyBlockersAreCountedAndFewAreNamed(t *testing.T) {
	t.Parallel()
	e := &peer.BlockedError{Name: "projects/p", Deployment: iam, Undecided: true}
	for i := range peer.MaxNamedHolders + 20 {
		e.Add(holder(i, "projects/p"))
	}
	require.Len(t, e.Holders, peer.MaxNamedHolders)
	require.Equal(t, peer.MaxNamedHolders+20, e.Total)
	require.ErrorContains(t, e, "it may be referred to, if undecided writes commit, by")
	require.ErrorContains(t, e, "d4 (account) and 115 more")
	require.NotContains(t, e.Error(), "d5 ")
}

func TestAProtectedDeleteNamesFiveMembers(t *testing.T) {
	t.Parallel()
	e := &peer.ProtectedError{Name: "projects/p"}
	for i := range 7 {
		e.By = append(e.By, holder(i, "").Name)
	}
	require.ErrorContains(t, e, "block_deletion is set on //devices.example.com/us-west2/devices/d0, ")
	require.ErrorContains(t, e, "devices/d4 and 2 more")
}

func TestAnUnavailableDeploymentIsNamedWithItsReason(t *testing.T) {
	t.Parallel()
	deployments := []schema.DeploymentID{iam, devices}
	require.EqualError(t, &peer.UnavailableError{Deployments: deployments, Err: errors.New("refused")},
		"iam.example.com/us-west2, devices.example.com/us-west2 cannot be reached: refused")
	recovering := &peer.UnavailableError{Deployments: deployments, Err: peer.ErrRecovering}
	require.ErrorContains(t, recovering,
		"confirmed their references: iam.example.com/us-west2, devices.example.com/us-west2")
	require.ErrorIs(t, recovering, peer.ErrRecovering)
	require.EqualError(t, &peer.UnavailableError{Err: errors.New("x"), Unasked: []peer.Unasked{
		{Deployment: iam, Why: peer.TimedOut}, {
			Deployment: devices, Why: peer.TimedOut,
			After: 1500 * time.Millisecond,
		}, {Deployment: billing, Why: peer.Unreachable, Detail: "refused"},
	}}, "iam.example.com/us-west2 was not asked: no time was left; give the request a longer deadline; "+
		"devices.example.com/us-west2 did not answer within 1.5s; billing.example.com/eastus2 cannot be reached: refused")
}

// Only a definite refusal is recorded with its request id: a repeated request gets it again.
func TestDefiniteRefusals(t *testing.T) {
	t.Parallel()
	refused := func(reasons ...peer.Reason) error {
		e := &peer.RefusedError{}
		for _, r := range reasons {
			e.Refusals = append(e.Refusals, peer.Refusal{Reason: r})
		}
		return e
	}
	for _, err := range []error{
		refused(peer.TargetMissing), refused(peer.TargetMissing, peer.TargetDeleting), &peer.BlockedError{},
		&peer.ProtectedError{},
		&peer.InvalidError{Err: errors.New("x")}, peer.ErrNotFound, fmt.Errorf("put: %w", peer.ErrConflict),
		peer.ErrDenied, peer.ErrTooManyRemovals,
	} {
		require.True(t, peer.Definite(err), "%T %v", err, err)
	}
	for _, err := range []error{
		refused(peer.TargetMissing, peer.NotImported), refused(peer.QuotaExceeded), &peer.RefusedError{},
		&peer.BlockedError{Undecided: true},
		&peer.UnavailableError{Err: peer.ErrNotFound}, fmt.Errorf("%w: %w", peer.ErrUnknown, peer.ErrNotFound),
		peer.ErrAborted, context.Canceled, nil,
	} {
		require.False(t, peer.Definite(err), "%T %v", err, err)
	}
}

func TestTheRefusalWithTheLowestStandingDecides(t *testing.T) {
	t.Parallel()
	e := &peer.RefusedError{Refusals: []peer.Refusal{
		{Holder: "a", Reason: peer.TargetMissing},
		{Holder: "b", Reason: peer.TargetClosing},
		{Holder: "c", Reason: peer.NotImported},
	}}
	require.Equal(t, "c", e.Deciding().Holder)
	require.Equal(t, "a", (&peer.RefusedError{Refusals: e.Refusals[:1]}).Deciding().Holder)
}

func TestRefusalsArePagedInTheirOrder(t *testing.T) {
	t.Parallel()
	e := &peer.RefusedError{}
	for _, name := range []string{"c", "a", "b"} {
		e.Add(&peer.RefusedError{
			Refusals: []peer.Refusal{{Holder: name, Path: "p", Reason: peer.TargetMissing}},
			More:     1,
		})
	}
	e.Add(nil)
	require.Equal(t, 6, e.Total())
	require.ErrorContains(t, e.Sorted(), "a: p: ")
	follows, err := peer.Follows(peer.TokenAfter(e.Refusals[0]))
	require.NoError(t, err)
	require.False(t, follows(e.Refusals[0]))
	require.True(t, follows(e.Refusals[1]))
	all, err := peer.Follows("")
	require.NoError(t, err)
	require.True(t, all(e.Refusals[0]))
	_, err = peer.Follows("not a token")
	require.ErrorAs(t, err, new(*peer.InvalidError))
}

// The caller keeps the rest of its time for other work; without a deadline there is nothing to divide.
func TestACallHasAPartOfTheRemainingTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		part, done := peer.InPart(ctx, 2, 3)
		defer done()
		deadline, _ := part.Deadline()
		require.Equal(t, 6*time.Second, time.Until(deadline))
		part, done = peer.InPart(t.Context(), 2, 3)
		defer done()
		_, limited := part.Deadline()
		require.False(t, limited)
	})
}

func TestACallThatRanOutOfTimeIsNotUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.Equal(t, peer.Unasked{Deployment: iam, Why: peer.Unreachable, Detail: "refused"},
			peer.NotAsked(ctx, iam, began, errors.New("refused")))
		<-ctx.Done()
		require.Equal(t, peer.Unasked{Deployment: iam, Why: peer.TimedOut, After: 2 * time.Second, Detail: "refused"},
			peer.NotAsked(ctx, iam, began, errors.New("refused")))
	})
}

func TestEachUnaskedDeploymentIsNamedOnce(t *testing.T) {
	t.Parallel()
	require.Equal(t, []peer.Unasked{{Deployment: billing}, {Deployment: iam}},
		peer.SortUnasked([]peer.Unasked{{Deployment: iam}, {Deployment: billing}, {Deployment: iam}}))
}

// Owners that failed stay as work; an owner that is already removed has none that could fail.
func TestTheWorkOfFailedOwnersStays(t *testing.T) {
	t.Parallel()
	one, two := uuid.New(), uuid.New()
	d := &peer.Disowned{
		Owners: []schema.Deletion{{UID: one}, {UID: two}}, IDs: []int64{11, 12},
		Seqs: []int64{1, 2, 3, 4}, Of: []int64{11, 12, 0, 11}, To: 5,
	}
	done := d.Except([]uuid.UUID{one})
	require.Equal(t, &peer.Disowned{
		Owners: []schema.Deletion{{UID: two}}, IDs: []int64{12}, Seqs: []int64{2, 3},
		Of: []int64{12, 0}, To: 5,
	}, done)
	require.Equal(t, []int64{1, 4}, d.Without(done))
}

func TestAnAttemptShowsItsTime(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Millisecond)
	at := peer.AttemptTime(uuid.Must(uuid.NewV7()))
	require.False(t, at.Before(before))
	require.False(t, at.After(time.Now()))
}

func TestTheFlagsOfAnOwnerAreBits(t *testing.T) {
	t.Parallel()
	require.Zero(t, peer.OwnerReference{}.Flags())
	require.Equal(t, peer.FlagRequires|peer.FlagUnsetOnDelete, peer.OwnerReference{
		Requires:      true,
		UnsetOnDelete: true,
	}.Flags())
	require.Equal(t, int16(7), peer.OwnerReference{Controller: true, Requires: true, UnsetOnDelete: true}.Flags())
}
