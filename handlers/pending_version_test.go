package handlers_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// deriveStore returns the outcomes of the steps of each piece of work, in turn.
type deriveStore struct {
	steps
	outcomes map[int64][]peer.Derived
	fail     int64
	then     func()
}

func (s *deriveStore) Derive(_ context.Context, seq int64) (peer.Derived, error) {
	s.add("derive", seq)
	if s.then != nil {
		s.then()
	}
	if seq == s.fail {
		return peer.DerivedNot, errDatabase
	}
	next := s.outcomes[seq][0]
	s.outcomes[seq] = s.outcomes[seq][1:]
	return next, nil
}

func TestAPassOverAKindGoesOnUntilItEnds(t *testing.T) {
	t.Parallel()
	s := &deriveStore{outcomes: map[int64][]peer.Derived{
		1: {peer.DerivedSome, peer.DerivedSome, peer.DerivedAll},
		2: {peer.DerivedAll},
	}}
	waiting, err := (&handlers.Derive{Store: s}).Handle(t.Context(), there, []int64{1, 2})
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Equal(t, steps{"derive 1", "derive 1", "derive 1", "derive 2"}, s.steps)
}

func TestAResourceThatCannotBeDerivedNowWaits(t *testing.T) {
	t.Parallel()
	s := &deriveStore{outcomes: map[int64][]peer.Derived{1: {peer.DerivedNot}, 2: {peer.DerivedAll}}}
	waiting, err := (&handlers.Derive{Store: s}).Handle(t.Context(), there, []int64{1, 2})
	require.NoError(t, err)
	require.Equal(t, []int64{1}, waiting)
}

func TestADerivationThatFailsKeepsNoOtherBack_I20(t *testing.T) {
	t.Parallel()
	s := &deriveStore{fail: 1, outcomes: map[int64][]peer.Derived{2: {peer.DerivedAll}}}
	_, err := (&handlers.Derive{Store: s}).Handle(t.Context(), there, []int64{1, 2})
	require.ErrorIs(t, err, errDatabase)
	require.ErrorContains(t, err, "derive references: ")
	require.Equal(t, steps{"derive 1", "derive 2"}, s.steps)
}

func TestADerivationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := &deriveStore{then: cancel, outcomes: map[int64][]peer.Derived{1: {peer.DerivedSome, peer.DerivedSome}}}
	_, err := (&handlers.Derive{Store: s}).Handle(ctx, there, []int64{1, 2})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, steps{"derive 1"}, s.steps)
}

// upgrading is the store and the ownees' deployment of an upgrade of owner references.
type upgrading struct {
	steps
	upgrade   *peer.Upgrade
	read      error
	remaining []int64 // after each call
	err       error
}

func (u *upgrading) Upgrade(context.Context, []int64) (*peer.Upgrade, error) {
	return u.upgrade, u.read
}

func (u *upgrading) Upgraded(_ context.Context, seqs []int64) error {
	u.add("upgraded", seqs)
	return nil
}

func (u *upgrading) UpgradeOwners(_ context.Context, _ schema.DeploymentID,
	to *peer.Upgrade,
) (remaining int64, err error) {
	u.add("upgrade to", to.Version)
	if u.err != nil {
		return 0, u.err
	}
	remaining, u.remaining = u.remaining[0], u.remaining[1:]
	return remaining, nil
}

func (u *upgrading) handle(t *testing.T) error {
	t.Helper()
	waiting, err := (&handlers.UpgradeOwners{Store: u, Peers: u}).Handle(t.Context(), there, []int64{1, 2})
	require.Empty(t, waiting)
	return err
}

func TestOwnerReferencesAreUpgradedUntilNoneRemains_I26(t *testing.T) {
	t.Parallel()
	u := &upgrading{upgrade: &peer.Upgrade{Version: "v2"}, remaining: []int64{700, 0}}
	require.NoError(t, u.handle(t))
	require.Equal(t, steps{"upgrade to v2", "upgrade to v2", "upgraded [1 2]"}, u.steps)
}

func TestAnUpgradeThatIsDoneAlreadyTellsNobody(t *testing.T) {
	t.Parallel()
	u := &upgrading{}
	require.NoError(t, u.handle(t))
	require.Empty(t, u.steps)
}

func TestAnUpgradeThatIsNotTakenKeepsItsWork_I26(t *testing.T) {
	t.Parallel()
	u := &upgrading{upgrade: &peer.Upgrade{Version: "v2"}, err: errUnreachable}
	err := u.handle(t)
	require.ErrorIs(t, err, errUnreachable)
	require.ErrorContains(t, err, "upgrade owner references at a.example.com/us-west2")
	require.Equal(t, steps{"upgrade to v2"}, u.steps)
}

func TestAnUpgradeThatCannotBeReadTellsNobody(t *testing.T) {
	t.Parallel()
	u := &upgrading{read: errDatabase}
	require.ErrorIs(t, u.handle(t), errDatabase)
	require.Empty(t, u.steps)
}

type cleanUpStore func(schema.DeploymentID) error

func (s cleanUpStore) CleanUpDecommissioned(_ context.Context, d schema.DeploymentID) error {
	return s(d)
}

func TestADecommissionedDeploymentIsWorkedOffOnceForAllItsPieces(t *testing.T) {
	t.Parallel()
	var cleaned []schema.DeploymentID
	h := &handlers.CleanUpDecommissioned{Store: cleanUpStore(func(d schema.DeploymentID) error {
		cleaned = append(cleaned, d)
		return nil
	})}
	waiting, err := h.Handle(t.Context(), there, []int64{1, 2, 3})
	require.NoError(t, err)
	require.Empty(t, waiting)
	require.Equal(t, []schema.DeploymentID{there}, cleaned)
	_, err = (&handlers.CleanUpDecommissioned{Store: cleanUpStore(func(schema.DeploymentID) error {
		return errDatabase
	})}).Handle(t.Context(), there, []int64{1})
	require.ErrorIs(t, err, errDatabase)
}
