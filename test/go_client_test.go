package test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// A program with the Go client, as a user: typed errors, another region as the door, a watch across a
// restart.
func TestTheGoClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "ann"})
	require.NoError(t, err)
	c, err := client.New(client.File{Registry: f.RegistryAddress, Certs: certs}, "")
	require.NoError(t, err)
	t.Cleanup(c.Close)

	const target, holderName = aEast + "targets/t", bWest + "holders/h"
	created, err := c.Create(ctx, &resourcev1.Resource{Name: target})
	require.NoError(t, err)
	require.Equal(t, target, client.FullName(created))
	_, err = c.Create(ctx, &resourcev1.Resource{Name: target})
	require.ErrorIs(t, err, client.ErrExists)

	type holder struct {
		Block        string `json:"block,omitempty"`
		Cascade      string `json:"cascade,omitempty"`
		AsyncUnset   string `json:"asyncUnset,omitempty"`
		AsyncCascade string `json:"asyncCascade,omitempty"`
		Dangling     string `json:"dangling,omitempty"`
		Unset        struct {
			List []string `json:"list,omitempty"`
		} `json:"unset"`
	}
	holders, err := client.KindOf[holder](ctx, c, "b.example.com", "Holder")
	require.NoError(t, err)
	h := client.Object[holder]{Name: holderName, Body: holder{Block: target}}
	h, err = holders.Put(ctx, h)
	require.NoError(t, err)

	_, err = c.Delete(ctx, target, client.Version{})
	require.ErrorIs(t, err, client.ErrBlocked)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, holderName, refused.Holders[0].Name.String())
	_, err = holders.Put(ctx, client.Object[holder]{
		Name: bWest + "holders/none",
		Body: holder{Block: aWest + "targets/none"},
	})
	require.ErrorIs(t, err, client.ErrRefused)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "TARGET_MISSING", refused.Refusals[0].Reason)
	stale := h
	stale.Revision++
	_, err = holders.Put(ctx, stale)
	require.ErrorIs(t, err, client.ErrConflict)

	// b.example.com/west is away: the other region forwards calls that reach the deployment when it is back.
	west := f.Deployments[f.id(bWest+"x/y")]
	seen := make(chan client.Change[holder], 100)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		defer close(watched)
		for e, err := range holders.Watch(watching, "us-west2", client.WatchQuery{}) {
			if err != nil {
				watched <- err
				return
			}
			seen <- e
		}
	}()
	require.Equal(t, holderName, (<-seen).Object.Name)
	require.Equal(t, client.Synced, (<-seen).Type)
	require.NoError(t, west.Kill())
	put := make(chan error, 1)
	go func() {
		_, err := c.Update(ctx, &resourcev1.Resource{Name: holderName, Body: &structpb.Struct{}}, "body.block")
		put <- err
	}()
	require.NoError(t, west.Start())
	require.NoError(t, <-put)
	e := <-seen
	require.Equal(t, client.Upserted, e.Type)
	require.Empty(t, e.Object.Body.Block)
	deleted, err := c.Delete(ctx, target, client.Version{UID: created.GetUid()})
	require.NoError(t, err)
	require.NoError(t, c.WaitGone(ctx, target, created.GetUid(), nil))
	require.NotNil(t, deleted)
	removed, err := holders.Delete(ctx, h)
	require.NoError(t, err)
	require.True(t, removed)
	e = <-seen
	require.Equal(t, client.Deleted, e.Type)
	require.Equal(t, h.UID, e.Object.UID)
	stop()
	require.NoError(t, <-watched)
}
