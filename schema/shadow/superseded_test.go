package shadow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

// described is a model of a version as it is described now.
func described(t *testing.T, services string, version schema.ServiceVersion) *schema.Model {
	t.Helper()
	file, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)
	model, err := schema.NewModel(version, file.Services)
	require.NoError(t, err)
	return model
}

// S9: v1 is described again while v2 runs, and switched to. A process that was paused has the earlier
// descriptor of v1: a field that blocks now would have no reference in its writes.
func TestAProcessComparesTheDigestOfAVersionNotItsName_I26(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	asleep := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	b.Settle()
	anew := strings.Replace(versions, "      - { path: dropped,",
		"      - { path: added, targets: [a.example.com/Target], behaviour: BLOCK }\n      - { path: dropped,", 1)
	require.NotEqual(t, versions, anew)
	model := described(t, anew, schema.ServiceVersion{Service: "b.example.com", Version: "v1"})
	require.NoError(t, b.Stores[b.ID(bEast)].Admin.Switch(ctx, model))
	b.Settle()
	write := []peer.Write{{Name: "holders/h", Body: body{"added": targetName("t")}}}
	_, err := asleep.Write.SaveRequested(ctx, uuid.New(),
		[]peer.Write{{Name: "holders/h", Body: body{"added": 1}, Mode: peer.Update}})
	require.ErrorIs(t, err, peer.ErrAborted, "its refusals are not kept either")
	short, cancel := context.WithTimeout(ctx, 300e6)
	defer cancel()
	_, err = asleep.Write.Save(short, write)
	require.ErrorIs(t, err, peer.ErrAborted)
	b.Gone(holder)
	select {
	case <-asleep.Gate.Superseded():
	default:
		t.Error("the node manager is not notified")
	}
	runs, _, err := asleep.Attempts.Look(ctx, asleep.Model())
	require.NoError(t, err)
	require.False(t, runs)
	asleep.Admin.Refresh(model) // keeps the descriptor that it switched to
	require.NotEqual(t, model.Digest, asleep.Model().Digest)
	require.NoError(t, asleep.Admin.Switch(ctx, model))
	_, err = asleep.Write.Save(ctx, write)
	require.NoError(t, err)
	b.Settle()
	_, err = b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// A kind is derived again when its version is described again, which only the digest shows.
func TestAVersionDescribedAgainIsDerivedAgain_I26(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t")})
	anew := strings.Replace(versions, "      - { path: dropped,",
		"      - { path: added, targets: [a.example.com/Target], behaviour: BLOCK }\n      - { path: dropped,", 1)
	_, before, _, err := b.Stores[b.ID(bEast)].Operate.Status(ctx)
	require.NoError(t, err)
	require.NoError(t, b.Stores[b.ID(bEast)].Admin.Switch(ctx,
		described(t, anew, schema.ServiceVersion{Service: "b.example.com", Version: "v1"})))
	_, after, _, err := b.Stores[b.ID(bEast)].Operate.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, before+1, after)
	b.Settle()
	_, err = b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// After another process has switched the version, a process asks for no blockades that it could not commit,
// for any retries of a write.
func TestASupersededProcessEstablishesNothing_I26(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	asleep := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	asked := 0
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error { asked++; return nil }
	var err error
	for limit := time.Second / 2; limit < wait.Limit; limit *= 2 { // enough for the first try, on a busy machine too
		short, cancel := context.WithTimeout(ctx, limit)
		_, err = asleep.Write.Save(short, []peer.Write{{Name: "holders/h", Body: body{"block": targetName("t")}}})
		if cancel(); errors.Is(err, peer.ErrAborted) {
			break
		}
	}
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Zero(t, asked)
	require.Zero(t, b.Count(bEast, "work"), "nothing has to be released")
	require.Zero(t, b.Count(aWest, "tentative"))
}

// Nor does such a process establish references for others: it could take a name for the wrong kind.
func TestASupersededProcessAcceptsNoBlockade_I26(t *testing.T) {
	t.Parallel()
	b, ctx := newVersions(t, nil), context.Background()
	b.MustPut(targetName("t"), nil)
	asleep := b.SecondProcess(aWest, shadow.Config{})
	b.Switch(aWest, "v2")
	_, err := asleep.Targets.Establish(ctx, b.ID(bEast), newAttempt(), []peer.EstablishReference{{
		HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Target",
		TargetName: "targets/t", Behaviour: schema.Block,
	}})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Zero(t, b.Count(aWest, "blockade"))
}
