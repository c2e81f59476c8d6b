package peer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// refused draws refusals, in the order in which they are paged.
func refused(t *rapid.T) *peer.RefusedError {
	e := &peer.RefusedError{More: rapid.IntRange(0, 3).Draw(t, "more")}
	for range rapid.IntRange(1, 20).Draw(t, "n") {
		e.Refusals = append(e.Refusals, peer.Refusal{
			Holder: rapid.SampledFrom([]string{"a", "a/b", "b", `"`, "ü"}).Draw(t, "holder"),
			Path:   rapid.SampledFrom([]string{"p", "p.q"}).Draw(t, "path"),
			Target: schema.FullName{Deployment: iam, Name: rapid.SampledFrom([]string{"t/1", "t/2", "t/10"}).Draw(t,
				"target")},
			Reason: rapid.SampledFrom(peer.Reasons()).Draw(t, "reason"),
		})
	}
	_ = e.Sorted()
	e.Refusals = slices.CompactFunc(e.Refusals, func(a, b peer.Refusal) bool { return slices.Equal(a.Key(), b.Key()) })
	return e
}

// Pages of any size list each refusal once, in order; the page after the last one is the whole list, since
// the refusals may have changed.
func TestPagesListEachRefusalOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := refused(t)
		size := rapid.IntRange(1, 7).Draw(t, "size")
		var listed []peer.Refusal
		for token := ""; len(listed) < len(all.Refusals); {
			page, err := all.After(token)
			require.NoError(t, err)
			require.Equal(t, all.More, page.More)
			rows := page.Refusals[:min(size, len(page.Refusals))]
			listed = append(listed, rows...)
			token = peer.TokenAfter(rows[len(rows)-1])
		}
		require.Equal(t, all.Refusals, listed)
		again, err := all.After(peer.TokenAfter(listed[len(listed)-1]))
		require.NoError(t, err)
		require.Equal(t, all, again)
	})
	_, err := (&peer.RefusedError{}).After("no token")
	require.ErrorAs(t, err, new(*peer.InvalidError))
}

// Every reason has a sentence and a standing; the one that decides is never more final than another one.
func TestReasonsOfRefusalsAreComplete(t *testing.T) {
	t.Parallel()
	reasons := peer.Reasons()
	require.True(t, slices.IsSorted(reasons))
	require.Greater(t, len(reasons), 10)
	for _, r := range reasons {
		require.NotEmpty(t, r.Says(), r)
		text := peer.Refusal{Holder: "devices/d", Path: "account", Target: schema.FullName{
			Deployment: iam,
			Name:       "accounts/a",
		}, Reason: r, Detail: "why"}.String()
		require.Equal(t, "devices/d: account: //iam.example.com/us-west2/accounts/a "+r.Says()+": why", text)
	}
	newer := peer.Reason("OF_A_NEWER_VERSION")
	require.Equal(t, peer.Later, newer.Standing(), "an unknown reason is not final")
	require.Contains(t, peer.Refusal{Reason: newer}.String(), "OF_A_NEWER_VERSION")
	rapid.Check(t, func(t *rapid.T) {
		e := refused(t)
		decides := e.Deciding().Reason.Standing()
		require.True(t, e.All(func(r peer.Reason) bool { return r.Standing() >= decides }))
		require.Equal(t, peer.Definite(e), decides == peer.Final)
		require.Equal(t, e.Only(e.Refusals[0].Reason), !slices.ContainsFunc(e.Refusals, func(r peer.Refusal) bool {
			return r.Reason != e.Refusals[0].Reason
		}))
	})
	require.False(t, (&peer.RefusedError{More: 2}).Only(peer.TargetMissing), "refusals that are not listed are unknown")
}

// An error about a database names both and the remedy; one about an input names its field.
func TestErrorsNameTheirSubject(t *testing.T) {
	t.Parallel()
	e := &peer.DatabaseError{Deployment: iam, Known: uuid.UUID{1}, Spoken: uuid.UUID{2}}
	for _, part := range []string{
		"iam.example.com/us-west2 runs over database " + e.Spoken.String(),
		"instead of its recorded database " + e.Known.String(),
		"db-controller decommission iam.example.com/us-west2 --former-database",
	} {
		require.ErrorContains(t, e, part)
	}
	wrong := errors.New("want a number")
	require.EqualError(t, &peer.InvalidError{Resource: "projects/p", Err: wrong}, "projects/p: want a number")
	require.EqualError(t, &peer.InvalidError{Err: wrong}, "want a number")
	require.ErrorIs(t, &peer.InvalidError{Err: wrong}, wrong)
	require.ErrorContains(t, &peer.UnavailableError{Deployments: []schema.DeploymentID{iam}, Err: peer.ErrPaused},
		"an operator has paused deletions until db-controller resume: iam.example.com/us-west2")
	require.EqualError(t, peer.Unasked{Deployment: iam, Why: peer.LimitReached},
		fmt.Sprintf(
			"iam.example.com/us-west2 was not asked: the deletion exceeds the limit of %d resources for a look-ahead",
			peer.PlanLimit))
	for how, want := range map[peer.How]string{
		peer.Requested: "REQUESTED", peer.Cascaded: "CASCADED",
		peer.Disowning: "OWNER_GONE", 0: "UNKNOWN",
	} {
		require.Equal(t, want, how.String())
	}
}

// A try that ended with its time has changed nothing and is repeated; one whose commit is unknown is not, nor
// one with another reason.
func TestATryThatRanOutOfTimeHasGivenUp(t *testing.T) {
	t.Parallel()
	timedOut, unreachable := peer.Unasked{Deployment: iam, Why: peer.TimedOut}, peer.Unasked{
		Deployment: devices,
		Why:        peer.Unreachable,
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{context.DeadlineExceeded, true},
		{fmt.Errorf("lock: %w", context.DeadlineExceeded), true},
		{fmt.Errorf("%w: %w", peer.ErrUnknown, context.DeadlineExceeded), false},
		{context.Canceled, false},
		{nil, false},
		{&peer.UnavailableError{Unasked: []peer.Unasked{timedOut}}, true},
		{&peer.UnavailableError{Unasked: []peer.Unasked{timedOut, unreachable}}, false},
		{&peer.UnavailableError{Err: context.DeadlineExceeded}, false},
	} {
		require.Equal(t, c.want, peer.GaveUp(c.err), "%v", c.err)
	}
}

func TestADeadlineOfTheCallerCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := peer.WithDefaultTimeout(t.Context(), 5*time.Second)
		defer cancel()
		deadline, _ := ctx.Deadline()
		require.Equal(t, 5*time.Second, time.Until(deadline))
		longer, cancelLonger := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLonger()
		same, done := peer.WithDefaultTimeout(longer, 5*time.Second)
		done()
		require.NoError(t, same.Err(), "the caller's context is the caller's to end")
		deadline, _ = same.Deadline()
		require.Equal(t, time.Hour, time.Until(deadline))
	})
}

// A blocker names two resources, each with the deployment that it is in.
func TestABlockerIsInTheDeploymentOfItsHolder(t *testing.T) {
	t.Parallel()
	b := peer.PlanBlocker{Holder: holder(1, "accounts/a"), UID: uuid.UUID{1}, TargetUID: uuid.UUID{2}}
	require.Equal(t, peer.PlanTarget{Deployment: devices, UID: uuid.UUID{1}}, b.HolderResource())
	require.Equal(t, peer.PlanTarget{Deployment: iam, UID: uuid.UUID{2}}, b.Target())
	require.True(t, peer.Via{}.IsZero())
	require.False(t, peer.Via{Target: b.Target()}.IsZero())
	owner := peer.OwnerReference{Owner: schema.FullName{Deployment: iam, Name: "accounts/a"}, Kind: "Account"}
	require.Equal(t, schema.KindID{Service: "iam.example.com", Kind: "Account"}, owner.KindID())
	require.True(t, peer.BlockadeKey{Path: peer.RightPath}.OfRight())
	require.False(t, peer.BlockadeKey{Path: "account"}.OfRight())
}

// A write without a person, such as a derivation after a version switch, may refer to all resources.
func TestARightToReferIsOfItsWrite(t *testing.T) {
	t.Parallel()
	require.Nil(t, peer.PersonFrom(t.Context()).Refer)
	denied := errors.New("denied")
	ctx := peer.WithPerson(t.Context(), peer.Person{Refer: func(context.Context, []schema.FullName) ([]bool, error) {
		return nil, denied
	}})
	_, err := peer.PersonFrom(ctx).Refer(ctx, nil)
	require.ErrorIs(t, err, denied)
}
