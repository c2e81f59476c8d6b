package handlers_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// messagePeers is the other deployment, which takes messages.
type messagePeers struct {
	*steps
	unknown []peer.AttemptID
	err     error
	epoch   uuid.UUID // of the last message
}

func (p *messagePeers) Confirm(_ context.Context, _ schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error) {
	p.epoch = c.Epoch
	p.add("confirm", len(c.Attempts))
	return &peer.Confirmed{Unknown: p.unknown}, p.err
}

func (p *messagePeers) Release(_ context.Context, _ schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
	attempts []peer.AttemptID,
) error {
	p.epoch = epoch
	p.add("release", len(keys), len(attempts))
	return p.err
}

func (p *messagePeers) DropOwners(_ context.Context, _ schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion,
	releases []peer.OwnerRelease,
) ([]uuid.UUID, bool, error) {
	p.epoch = epoch
	p.add("let go", len(deleted), len(releases))
	return nil, false, p.err
}

// messaging has the three handlers of messages over one store and one other deployment.
type messaging struct {
	did   steps
	store *messageStore
	peers *messagePeers
}

func newMessaging(m peer.Messages) *messaging {
	x := &messaging{}
	x.store, x.peers = &messageStore{steps: &x.did, messages: m}, &messagePeers{steps: &x.did}
	return x
}

func (x *messaging) handlers() map[string]handlers.Handler {
	return map[string]handlers.Handler{
		"confirm": &handlers.Confirm{Store: x.store, Repair: x.store, Peers: x.peers},
		"release": &handlers.Release{Store: x.store, Peers: x.peers},
		"let go":  &handlers.ReleaseOwner{Store: x.store, Peers: x.peers},
	}
}

var owed = peer.Messages{
	Confirm: []peer.AttemptID{uuid.New(), uuid.New()},
	Release: []peer.BlockadeKey{{Path: "target"}}, Abandon: []peer.AttemptID{uuid.New()},
	OwnerReleases: []peer.OwnerRelease{{Owner: uuid.New(), Ownee: uuid.New()}},
}

// The message comes before its work is removed: a crash in between sends it twice, which has no effect.
func TestAMessageIsDeliveredBeforeItsWorkIsRemoved(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]steps{
		"confirm": {"read [1 2]", "confirm 2", "repair 0", "delivered [1 2]"},
		"release": {"read [1 2]", "release 1 1", "delivered [1 2]"},
		"let go":  {"read [1 2]", "let go 0 1", "delivered [1 2]"},
	} {
		x := newMessaging(owed)
		waiting, err := x.handlers()[action].Handle(t.Context(), there, []int64{1, 2})
		require.NoError(t, err)
		require.Empty(t, waiting)
		require.Equal(t, want, x.did)
		require.Equal(t, epoch, x.peers.epoch,
			"the epoch of the database that they were read from: a later one refuses them")
	}
}

func TestAMessageThatIsNotTakenKeepsItsWork(t *testing.T) {
	t.Parallel()
	for action, text := range map[string]string{
		"confirm": "confirm at", "release": "release at",
		"let go": "let go of ownees at",
	} {
		x := newMessaging(owed)
		x.peers.err = errUnreachable
		_, err := x.handlers()[action].Handle(t.Context(), there, []int64{1, 2})
		require.ErrorIs(t, err, errUnreachable)
		require.ErrorContains(t, err, text+" a.example.com/us-west2: ")
		require.NotContains(t, x.did, "delivered [1 2]")
	}
}

func TestAStaleMessageIsRefusedAndKeepsItsWork(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"confirm", "release", "let go"} {
		x := newMessaging(owed)
		x.peers.err = peer.ErrStaleEpoch
		_, err := x.handlers()[action].Handle(t.Context(), there, []int64{1})
		require.ErrorIs(t, err, peer.ErrStaleEpoch)
		require.NotContains(t, x.did, "delivered [1]")
	}
}

func TestWorkThatIsDoneAlreadyIsRemovedWithoutACall(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"confirm", "release", "let go"} {
		x := newMessaging(peer.Messages{})
		_, err := x.handlers()[action].Handle(t.Context(), there, []int64{1})
		require.NoError(t, err)
		require.Equal(t, steps{"read [1]", "delivered [1]"}, x.did, action)
	}
}

func TestMessagesThatCannotBeReadAreNotSent(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"confirm", "release", "let go"} {
		x := newMessaging(owed)
		x.store.read = errDatabase
		_, err := x.handlers()[action].Handle(t.Context(), there, []int64{1})
		require.ErrorIs(t, err, errDatabase)
		require.Equal(t, steps{"read [1]"}, x.did, action)
	}
}

func TestWorkThatCannotBeRemovedIsDoneAgain(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"confirm", "release", "let go"} {
		x := newMessaging(owed)
		x.store.delivered = errDatabase
		_, err := x.handlers()[action].Handle(t.Context(), there, []int64{1})
		require.ErrorIs(t, err, errDatabase)
	}
}

// The target's database may have lost blockades: they are repaired before the confirm counts as delivered.
func TestAnAttemptThatIsUnknownThereIsRepairedFirst_I1(t *testing.T) {
	t.Parallel()
	x := newMessaging(owed)
	x.peers.unknown = owed.Confirm[:1]
	_, err := x.handlers()["confirm"].Handle(t.Context(), there, []int64{1})
	require.NoError(t, err)
	require.Equal(t, steps{"read [1]", "confirm 2", "repair 1", "delivered [1]"}, x.did)
}

func TestAnAttemptThatCannotBeRepairedKeepsItsWork_I1(t *testing.T) {
	t.Parallel()
	x := newMessaging(owed)
	x.peers.unknown, x.store.repair = owed.Confirm, errDatabase
	_, err := x.handlers()["confirm"].Handle(t.Context(), there, []int64{1})
	require.ErrorIs(t, err, errDatabase)
	require.Equal(t, steps{"read [1]", "confirm 2", "repair 2"}, x.did)
}

// A release names dropped references by their keys, and aborted attempts as a whole; either is reason enough.
func TestDroppedReferencesAndAbortedAttemptsAreReleased_I8(t *testing.T) {
	t.Parallel()
	for _, m := range []peer.Messages{{Release: owed.Release}, {Abandon: owed.Abandon}} {
		x := newMessaging(m)
		_, err := x.handlers()["release"].Handle(t.Context(), there, []int64{1})
		require.NoError(t, err)
		require.Len(t, x.did, 3)
		require.Contains(t, x.did[1], "release")
	}
}
