package shadow_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// An older copy replaces the database under a running process, between two calls of NoticeEpoch: on the same
// server with the same timeline. The copy lacks a blocking reference.
func TestAnOlderCopyOfTheDatabaseDecidesNothing_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	takeOver := b.Copy(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	takeOver()
	_, err := b.Delete(target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	_, err = b.Put("//"+aWest+"/targets/new", body{"peer": target2})
	require.Error(t, err, "a write would be lost when the former database comes back")
	b.Recover(aWest)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.MustDelete(target2)
	b.Audit()
}

// swapped is a process of a deployment on a server that can be replaced by an older copy of its files: system
// identifier and timeline do not distinguish the two.
type swapped struct {
	t             *testing.T
	store         *shadow.Store
	address       *atomic.Value
	primary, copy *harness.Cluster
	reset         func()
}

func newSwapped(t *testing.T, before ...func(*shadow.Store)) *swapped {
	t.Helper()
	s := &swapped{t: t, address: &atomic.Value{}, primary: newServer(t)}
	pool, store := movingPool(t, s.primary, s.address)
	newestXID(t, store, pool, "t", 2)
	for _, do := range before {
		do(store)
	}
	s.store, s.reset = store, pool.Reset
	if len(before) > 0 {
		s.copy = s.primary.Copy() // with a sequence that its log is ahead of
		return s
	}
	pool.Reset()
	s.primary.Stop()
	s.copy = s.primary.Copy()
	s.primary.Start()
	s.address.Store(s.primary.Address())
	return s
}

func (s *swapped) swap() {
	s.t.Helper()
	s.reset()
	s.primary.Stop()
	s.copy.Start()
	s.address.Store(s.copy.Address())
}

var peerOfA = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}

func (s *swapped) establish(name string) {
	s.t.Helper()
	ref := reference("block", schema.Block, uuid.New())
	ref.TargetName = name
	_, err := s.store.Targets.Establish(s.t.Context(), peerOfA, newAttempt(), []peer.EstablishReference{ref})
	require.NoError(s.t, err)
}

// An older copy of the server's files replaces the server: it lacks commits of the process. Each transaction
// that removes or decides detects that, also when it is retried, and the next NoticeEpoch begins a new epoch.
func TestAnOlderCopyOfTheServersFilesDecidesNothing_I3(t *testing.T) {
	t.Parallel()
	s := newSwapped(t)
	s.establish("targets/t0")
	before := s.store.Gate.PresentEpoch()
	s.swap()
	var unavailable *peer.UnavailableError
	for range 10 {
		_, err := s.store.Deletions.Delete(s.t.Context(), shadow.DeleteRequest{Name: "targets/t0"})
		require.ErrorAs(t, err, &unavailable)
	}
	_, err := s.store.Targets.Confirm(t.Context(), peerOfA, peer.Confirm{
		Epoch:    uuid.Must(uuid.NewV7()),
		Attempts: []peer.AttemptID{newAttempt()},
	})
	require.ErrorAs(t, err, &unavailable)
	_, err = s.store.Attempts.Answer(t.Context(), peerOfA,
		[]peer.Question{{Key: peer.BlockadeKey{Attempt: newAttempt()}, Expired: true}})
	require.ErrorAs(t, err, &unavailable)
	_, err = s.store.Write.Save(t.Context(), []peer.Write{{Name: "targets/new"}})
	require.ErrorIs(t, err, peer.ErrAborted)
	select {
	case <-s.store.Gate.EpochChanged():
	default:
		require.Fail(t, "no signal to call NoticeEpoch")
	}
	awaiting, err := s.store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting, "a new epoch")
	require.NotEqual(t, before, s.store.Gate.PresentEpoch())
	epoch := s.store.Gate.PresentEpoch()
	_, err = s.store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.Equal(t, epoch, s.store.Gate.PresentEpoch(), "one is enough")
	_, err = s.store.Write.Save(t.Context(), []peer.Write{{Name: "targets/new"}})
	require.NoError(t, err)
}

// deletionsToken is the token at the end of the snapshot of a deployment's watch of deletions.
func deletionsToken(t *testing.T, store *shadow.Store) (token string) {
	t.Helper()
	end := errors.New("end")
	err := store.Read.WatchDeletions(t.Context(), peerOfA, "", func(e schema.Event[schema.Deletion]) error {
		token = e.Token
		return end
	})
	require.ErrorIs(t, err, end)
	return token
}

// resumed opens a watch of deletions with a token, until the first event or error.
func resumed(t *testing.T, store *shadow.Store, token string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return store.Read.WatchDeletions(ctx, peerOfA, token, func(schema.Event[schema.Deletion]) error { return nil })
}

// A process starts over a restored copy of the server's files, without --restored: nothing distinguishes the
// copy, and the process has seen no greater number. The token of another deployment does, and its
// acknowledgement as well.
func TestATokenThatIsAheadRevealsARestoredCopy_I2_I3(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(*testing.T, *shadow.Store, string) error{
		"a watch": resumed,
		"a stored position of a deployment whose processes have all restarted": func(t *testing.T, store *shadow.Store,
			token string,
		) error {
			t.Helper()
			return store.Read.CheckKept(t.Context(), peerOfA, token)
		},
		"an acknowledgement": func(t *testing.T, store *shadow.Store, token string) error {
			t.Helper()
			_, err := store.Targets.AcknowledgeFor(t.Context(), peerOfA, uuid.Must(uuid.NewV7()), token, nil,
				time.Second)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSwapped(t)
			for range 50 { // more than the start of a process
				s.establish("targets/t0")
			}
			token := deletionsToken(t, s.store)
			s.swap()
			_, store := movingPool(t, s.copy, s.address)
			awaiting, err := store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.False(t, awaiting, "the process cannot know")
			before := store.Gate.PresentEpoch()
			require.ErrorIs(t, tell(t, store, token), schema.ErrReset)
			_, err = store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t0"})
			require.ErrorAs(t, err, new(*peer.UnavailableError), "nothing is decided from then on")
			awaiting, err = store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.True(t, awaiting)
			require.NotEqual(t, before, store.Gate.PresentEpoch())
			epoch := store.Gate.PresentEpoch()
			require.ErrorIs(t, resumed(t, store, token), schema.ErrReset, "of the former epoch")
			require.NoError(t, store.Read.CheckKept(t.Context(), peerOfA, token), "of the former epoch")
			_, err = store.Gate.NoticeEpoch(t.Context())
			require.NoError(t, err)
			require.Equal(t, epoch, store.Gate.PresentEpoch(), "one is enough")
		})
	}
}

// A copy of before the present epoch has the identity of its own time, so the process finds it unchanged. A
// stored position of the later epoch, which the copy has never begun, reveals it. One of an epoch that has
// begun here does not, even if the clock went back since.
func TestATokenOfALaterEpochRevealsARestoredCopy_I2_I3(t *testing.T) {
	t.Parallel()
	s, ctx := newSwapped(t), t.Context()
	first := deletionsToken(t, s.store)
	require.NoError(t, s.store.Gate.ForgetServer(ctx))
	awaiting, err := s.store.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	require.True(t, awaiting)
	token := deletionsToken(t, s.store)
	s.swap()
	pool, store := movingPool(t, s.copy, s.address)
	notices := func(kept string, reveals bool) {
		t.Helper()
		before := store.Gate.PresentEpoch()
		if err := store.Read.CheckKept(ctx, peerOfA, kept); reveals {
			require.ErrorIs(t, err, schema.ErrReset)
			_, err = store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t0"})
			require.ErrorAs(t, err, new(*peer.UnavailableError), "nothing is decided from then on")
		} else {
			require.NoError(t, err)
		}
		_, err := store.Gate.NoticeEpoch(ctx)
		require.NoError(t, err)
		require.Equal(t, reveals, before != store.Gate.PresentEpoch())
	}
	notices(token[:len(token)-1]+"A", false)
	notices(token, true)
	notices(token, false)
	notices(first, false)
	_, err = pool.Exec(ctx, `UPDATE dbcontroller.meta SET epoch = '00000000-0000-7000-8000-000000000000'`)
	require.NoError(t, err)
	_, err = store.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	notices(first, false)
}

// Another deployment that knows a later epoch reveals a copy of before it. It is believed once: a hostile one
// could name a later epoch each time, up to one so far ahead that every deployment refuses it.
func TestADeploymentThatKnowsALaterEpochIsBelievedOnce_I2_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	store, ctx, by := b.Stores[b.ID(aWest)], t.Context(), b.ID(bEast)
	lost := uuid.Must(uuid.NewV7())
	for _, made := range []uuid.UUID{uuid.Max, uuid.MustParse("fffffff0-0000-7000-8000-000000000000"), uuid.New()} {
		require.ErrorContains(t, store.Gate.OutdoEpoch(ctx, by, made), "is not an epoch of the database")
	}
	require.NoError(t, store.Gate.OutdoEpoch(ctx, by, lost))
	awaiting, err := store.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	require.True(t, awaiting)
	began := store.Gate.PresentEpoch()
	require.Positive(t, bytes.Compare(began[:], lost[:]))
	require.NoError(t, store.Gate.OutdoEpoch(ctx, b.ID(bWest), lost), "another epoch has begun since")
	require.ErrorContains(t, store.Gate.OutdoEpoch(ctx, by, uuid.Must(uuid.NewV7())), "for the second time")
	_, err = store.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	require.Equal(t, began, store.Gate.PresentEpoch())
	b.Renew(aWest)
	require.NoError(t, store.Gate.OutdoEpoch(ctx, by, uuid.Must(uuid.NewV7())))
}

// The end of a comparison in a later epoch than the present one tells the database of an epoch that it has
// lost, or that another one has announced in its name: its deployment begins a later epoch, and compares, so
// that the other one waits for it no longer.
func TestAConfirmationInALaterEpochOutdoesIt_I13_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(target2, nil)
	b.Settle()
	victim, by, ctx := b.Stores[b.ID(bEast)], b.ID(aWest), t.Context()
	madeUp, selfEpoch := uuid.Must(uuid.NewV7()), b.Stores[by].Gate.PresentEpoch()
	_, err := b.Stores[by].Gate.RecordPeerEpoch(ctx, b.ID(bEast), madeUp, peer.TargetKinds{})
	require.NoError(t, err)
	_, err = b.Delete(target2)
	require.ErrorAs(t, err, new(*peer.UnavailableError), "the deployment of the holder has to compare")

	require.ErrorAs(t, victim.Gate.MarkReferencesConfirmed(ctx, by, madeUp, selfEpoch), new(*peer.UnavailableError))
	_, err = victim.Gate.NoticeEpoch(ctx)
	require.NoError(t, err)
	began := victim.Gate.PresentEpoch()
	require.Positive(t, bytes.Compare(began[:], madeUp[:]))
	require.NoError(t, victim.Gate.MarkReferencesConfirmed(ctx, by, madeUp, selfEpoch), "a late repetition")
	require.Equal(t, began, victim.Gate.PresentEpoch())
	b.Recover(bEast)
	b.Settle()
	_, err = b.Delete(target2)
	require.NoError(t, err)
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError), "its references were established again")
}

// A stored position that the database has reached, or that it cannot read, ends no epoch: no position can be
// made up.
func TestAStoredPositionOfThePresentShowsNothing(t *testing.T) {
	t.Parallel()
	_, store := movingPool(t, newServer(t), &atomic.Value{})
	token := deletionsToken(t, store)
	for _, kept := range []string{token, token[:len(token)-1], "made up"} {
		require.NoError(t, store.Read.CheckKept(t.Context(), peerOfA, kept))
	}
	require.NoError(t, store.Read.CheckKept(t.Context(), schema.DeploymentID{
		Service: "b.example.com",
		Region:  "eastus2",
	}, token), "of another deployment")
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.False(t, awaiting)
}

// Of two streams with the deletions of one deployment, the stream that has not told the other's position does
// not replace it.
func TestAPositionIsReplacedByWhoHasToldIt_I2(t *testing.T) {
	t.Parallel()
	_, store := movingPool(t, newServer(t), &atomic.Value{})
	keep := func(was, token string) bool {
		// Another deployment of the statement has no part in it.
		kept, err := store.Follow.KeepPositions(t.Context(), []peer.Position{
			{Of: store.Deployment(), Was: "x"},
			{Of: peerOfA, Was: was, Token: token},
		})
		require.NoError(t, err)
		require.False(t, kept[0])
		return kept[1]
	}
	position := func() string {
		token, err := store.Follow.Position(t.Context(), peerOfA)
		require.NoError(t, err)
		return token
	}
	require.Empty(t, position())
	require.True(t, keep("", "a"))
	require.False(t, keep("", "b"), "of a stream that began before")
	require.Equal(t, "a", position())
	require.True(t, keep("a", "c"))
	require.False(t, keep("a", "d"))
	require.Equal(t, "c", position())
}

// NoticeEpoch detects an older copy before any transaction has; and a process counts the commits of another
// process that NoticeEpoch has read.
func TestNoticeEpochDetectsAnOlderCopy(t *testing.T) {
	t.Parallel()
	s := newSwapped(t)
	_, other := movingPool(t, s.primary, s.address)
	_, err := other.Write.Save(t.Context(), []peer.Write{{Name: "targets/others"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the values seen are on disk
		_, err := s.store.Gate.NoticeEpoch(t.Context())
		return err == nil && s.store.Mark() == other.Mark()
	}, wait.Limit, 10*time.Millisecond)
	s.swap()
	awaiting, err := s.store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.True(t, awaiting)
}

// A crash of PostgreSQL loses no commits: it begins no epoch.
func TestACrashBeginsNoEpoch(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	var address atomic.Value
	pool, store := movingPool(t, server, &address)
	for i := range 40 { // more than a sequence writes ahead to the log
		newestXID(t, store, pool, "t", 1+i%2)
	}
	epoch := store.Gate.PresentEpoch()
	end := opened(t, store, pool, peer.Write{Name: "targets/never"})
	token := deletionsToken(t, store)
	_, err := pool.Exec(t.Context(), `SELECT nextval('dbcontroller.mark') FROM generate_series(1, 100)`)
	require.NoError(t, err)
	_, err = store.Gate.NoticeEpoch(t.Context()) // sees numbers that the crash loses
	require.NoError(t, err)
	server.Crash()
	_ = end(errors.New("the server is gone"))
	server.Start()
	address.Store(server.Address())
	pool.Reset()
	require.ErrorIs(t, resumed(t, store, token), context.DeadlineExceeded, "what was told is not lost")
	awaiting, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	require.False(t, awaiting)
	require.Equal(t, epoch, store.Gate.PresentEpoch())
	_, err = store.Write.Save(t.Context(), []peer.Write{{Name: "targets/t9"}})
	require.NoError(t, err)
}
