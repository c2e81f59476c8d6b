package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A process that is behind a switch calls no name wrong or missing that fits no pattern of its version, or is
// of another kind there, and leaves no kind out of a list.
func TestAProcessBehindASwitchRefusesNothingForGood_I15_I26(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, movedNames, nil, aWest), context.Background()
	id := b.ID(aWest)
	behind := b.SecondProcess(aWest, shadow.Config{})
	b.Switch(aWest, "v2")
	for _, name := range []string{"targets/t", "others/o"} {
		b.MustPut("//"+aWest+"/"+name, nil)
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, name := range []string{"targets/t", "others/missing"} {
		update := []peer.Write{{Name: name, Body: body{"n": 1.0}, Mode: peer.Update}}
		for what, call := range map[string]func() error{
			"get":     func() error { _, err := behind.Read.Get(ctx, name); return err },
			"explain": func() error { _, err := behind.Operate.Explain(ctx, name); return err },
			"plan":    func() error { _, err := behind.Deletions.PlanDelete(ctx, name); return err },
			"delete": func() error {
				_, err := behind.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name})
				return err
			},
			"protect": func() error {
				_, err := behind.Write.SetBlockDeletion(ctx, name, uuid.Nil, true)
				return err
			},
			"status": func() error {
				_, err := behind.Write.UpdateStatus(ctx, name, uuid.Nil, []byte(`{}`), nil)
				return err
			},
			"releasable": func() error { _, _, err := behind.Operate.Releasable(ctx, name, 1, ""); return err },
			"update":     func() error { _, err := behind.Write.Save(short(), update); return err },
			"requested": func() error {
				_, err := behind.Write.SaveRequested(short(), uuid.New(), update)
				return err
			},
			"would update": func() error { _, err := behind.Write.ValidateBatch(short(), update, ""); return err },
			"in a transaction": func() error {
				return within(short(), behind, b.Pools[id], update...)
			},
			"referrers": func() error {
				_, err := behind.Operate.Referrers(ctx,
					shadow.ReferrersRequest{Target: schema.FullName{Deployment: id, Name: name}, Limit: 1})
				return err
			},
		} {
			require.ErrorIs(t, call(), peer.ErrAborted, "%s %s", what, name)
		}
	}
	_, err := behind.Write.Save(short(), []peer.Write{{Name: "others/o", Body: body{"n": 1.0}, Mode: peer.Update}})
	require.ErrorIs(t, err, peer.ErrAborted)
	for _, kind := range []string{"Other", ""} {
		_, _, err := behind.Read.List(ctx, shadow.ListRequest{Kind: kind, Limit: 10})
		require.ErrorIs(t, err, peer.ErrAborted, "list %q", kind)
	}
	require.ErrorIs(t, behind.Read.WatchResources(short(), "Other", "", "", func(schema.Event[peer.Resource]) error {
		return nil
	}), peer.ErrAborted)
	select {
	case <-behind.Gate.Superseded():
	default:
		t.Error("the node manager is not notified")
	}

	// A write goes on as soon as the process has adopted the version; then refusals are definite again.
	written := make(chan error, 1)
	go func() {
		_, err := behind.Write.Save(ctx, []peer.Write{{Name: "others/o", Body: body{"n": 2.0}, Mode: peer.Update}})
		written <- err
	}()
	<-time.After(wait.Poll) // the write waits, mostly
	require.NoError(t, behind.Admin.Adopt(ctx, b.Stores[id].Model()))
	require.NoError(t, <-written)
	_, err = behind.Read.Get(ctx, "targets/missing")
	require.ErrorIs(t, err, peer.ErrNotFound)
	_, err = behind.Read.Get(ctx, "none/n")
	require.ErrorAs(t, err, new(*peer.InvalidError))
	found, _, err := behind.Read.List(ctx, shadow.ListRequest{Limit: 10})
	require.NoError(t, err)
	require.Len(t, found, 2)
}

// A watch that is limited to the names that its caller may read goes on after a switch, with the kinds that
// only the new version has.
func TestALimitedWatchOutlivesASwitch_I23_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, movedNames, nil, aWest)
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	all := []grant.NameRange{grant.AllNames}
	seen := make(chan string, 10)
	go func() {
		_ = shadow.WatchResourcesAs(ctx, b.Stores[b.ID(aWest)],
			shadow.WatchRequest{Within: grant.Within{"Target": all, "Other": all}},
			func(r peer.Resource) (string, error) { return r.Kind + " " + r.Name, nil },
			func(e schema.Event[string]) error {
				for _, item := range e.Items {
					seen <- item
				}
				return nil
			})
	}()
	next := func() string {
		select {
		case name := <-seen:
			return name
		case <-ctx.Done():
			return "nothing"
		}
	}
	b.MustPut(target, nil)
	require.Equal(t, "Target targets/t", next())
	b.Switch(aWest, "v2")
	b.MustPut("//"+aWest+"/others/o", nil)
	require.Equal(t, "Target others/o", next())
	b.MustPut("//"+aWest+"/targets/u", nil)
	require.Equal(t, "Other targets/u", next())
}
