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

// pauses are the handlers that are paused for a deployment.
type pauses map[schema.Handler]schema.DeploymentID

func (p pauses) CheckHandler(_ context.Context, handler schema.Handler, of schema.DeploymentID) error {
	if paused, ok := p[handler]; ok && paused == of {
		return peer.ErrHandlerPaused
	}
	return nil
}

func TestAPausedHandlerDoesNothingAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	elsewhere := schema.DeploymentID{Service: "a.example.com", Region: "mars"}
	for name, c := range map[string]struct {
		paused  pauses
		confirm bool // the batch with Confirm is refused
		final   bool
		resolve bool
		act     bool
	}{
		"nothing is paused": {pauses{}, false, false, false, false},
		"for another deployment": {pauses{
			schema.OwnedPending: elsewhere, schema.OwnedDeleting: elsewhere,
			schema.SubscribedDeleting: elsewhere,
		}, false, false, false, false},
		"owned pending":       {pauses{schema.OwnedPending: there}, true, false, true, false},
		"owned deleting":      {pauses{schema.OwnedDeleting: there}, false, true, false, false},
		"subscribed deleting": {pauses{schema.SubscribedDeleting: there}, false, false, false, true},
		"everything that is owned": {
			pauses{schema.OwnedPending: there, schema.OwnedDeleting: there},
			true, true,
			true, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paused := func(err error) bool {
				if err != nil {
					require.ErrorIs(t, err, peer.ErrHandlerPaused)
				}
				return err != nil
			}
			whole := handlers.PausableTable{Table: table(t, actions()), Pauses: c.paused}
			for action := schema.Confirm; action.String() != "unknown"; action++ {
				want := c.confirm
				if action == schema.Finalise || action == schema.DropOwners {
					want = c.final
				}
				_, err := whole.Handle(t.Context(), there, []schema.Work{{Seq: 1, Action: action}})
				require.Equal(t, want, paused(err), action)
			}
			r := &resolving{}
			require.Equal(t, c.resolve, paused(handlers.PausableResolve{
				Handler: &handlers.Resolve{Store: r, Peers: r},
				Pauses:  c.paused,
			}.Resolve(t.Context(), there)))
			s := &subscribed{}
			_, err := handlers.PausableSubscribedDeleting{SubscribedDeleting: &handlers.SubscribedDeleting{
				Store: s,
				Epoch: s, Peers: s,
			}, Pauses: c.paused}.
					Handle(t.Context(), there, []schema.Deletion{{UID: uuid.New()}}, "p1", nil, false)
			require.Equal(t, c.act, paused(err))
			require.Equal(t, !c.act, len(s.steps) > 0, "what is paused is neither acted upon nor acknowledged")
		})
	}
}
