package constraint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// said lets a watch deliver events.
func said(t *testing.T, f *deletions, events ...event) {
	t.Helper()
	for _, e := range events {
		require.NoError(t, f.take(e))
	}
}

func deleted(names ...string) (e event) {
	for _, name := range names {
		e.deletion.Items = append(e.deletion.Items, schema.Deletion{
			Seq: 1, Name: name,
			UID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)),
		})
	}
	return e
}

func end(position string) event {
	return event{deletion: schema.Event[schema.Deletion]{EndOfSnapshot: true, Token: position}}
}

// more is a full batch of deletions, so that the deletions after it are in another batch.
func more() event {
	var names []string
	for i := range batchLimit {
		names = append(names, fmt.Sprint("more", i))
	}
	return deleted(names...)
}

// A batch that is put back after its stream was lost is done again, and not acknowledged with its position,
// which is of another snapshot.
func TestABatchIsPutBackWithoutThePositionOfALostStream(t *testing.T) {
	f := newDeletions(schema.Subscription{})
	said(t, f, event{started: true}, deleted("x"), end("p1"))
	b := f.fresh()
	require.Equal(t, "p1", b.position)
	said(t, f, event{lost: true}, event{started: true}, deleted("x"), more(), deleted("last"), end("p2"))
	f.putBack(b)
	again := f.fresh()
	require.Equal(t, "x", again.deletions[0].Name)
	require.Len(t, again.deletions, 1+batchLimit)
	require.Empty(t, again.position)
	require.Equal(t, "p2", f.fresh().position)
}

// Positions that were not acknowledged when their stream was lost never are.
func TestPositionsEndWithTheirStream(t *testing.T) {
	f := newDeletions(schema.Subscription{})
	said(t, f, event{started: true}, deleted("x"), end("p1"), event{lost: true}, event{started: true}, deleted("x"),
		more(), deleted("last"), end("p2"))
	require.Empty(t, f.fresh().position)
	require.Equal(t, "p2", f.fresh().position)

	// A repeated deletion uses no such position either.
	f = newDeletions(schema.Subscription{})
	said(t, f, event{started: true}, deleted("bad"), end("p1"))
	b := f.fresh()
	f.done(b, map[uuid.UUID]error{b.deletions[0].UID: errors.New("poison")})
	require.Equal(t, "p1", f.again(time.Now().Add(time.Hour)).position)
	said(t, f, event{lost: true}, event{started: true}, deleted("bad", "y"), end("p2"))
	require.Empty(t, f.again(time.Now().Add(time.Hour)).position)
}

// The deletions of a run of a lost stream are done; its position is not one of the new stream.
func TestThePositionOfALostStreamIsNotTheNewOnes(t *testing.T) {
	f := newDeletions(schema.Subscription{})
	said(t, f, event{started: true}, deleted("bad", "x"), end("p1"))
	b := f.fresh()
	said(t, f, event{lost: true}, event{started: true}, deleted("bad"), end("p2"))
	f.done(b, map[uuid.UUID]error{b.deletions[0].UID: errors.New("poison")})
	require.Empty(t, f.again(time.Now().Add(time.Hour)).position)
	require.Equal(t, "p2", f.fresh().position)
}

// Deletions that are handled again come in batches, and an acknowledgement that would except very many is
// left out.
func TestRetriedDeletionsAreBounded_I21(t *testing.T) {
	f := newDeletions(schema.Subscription{})
	said(t, f, event{started: true})
	failed := map[uuid.UUID]error{}
	for i := range exceptLimit + 2*batchLimit {
		e := deleted(fmt.Sprint("bad", i))
		said(t, f, e)
		failed[e.deletion.Items[0].UID] = errors.New("poison")
	}
	said(t, f, end("p1"))
	for len(f.steps) > 0 {
		f.done(f.fresh(), failed)
	}
	later := time.Now().Add(time.Hour)
	b := f.again(later)
	require.Len(t, b.deletions, batchLimit)
	require.Empty(t, b.position)
	for range 2 {
		f.done(f.again(later), nil)
	}
	b = f.again(later)
	require.Equal(t, "p1", b.position)
	require.Len(t, b.except, exceptLimit-batchLimit)
}

// A deletion that failed is not handled again before its pause is over, also beside one whose pause is.
func TestADeletionIsHandledAgainWhenItIsDue_I20(t *testing.T) {
	f := newDeletions(schema.Subscription{})
	said(t, f, event{started: true}, deleted("often", "once"), end("p1"))
	b := f.fresh()
	failed := map[uuid.UUID]error{}
	for _, x := range b.deletions {
		failed[x.UID] = errors.New("poison")
	}
	f.done(b, failed)
	often := deleted("often").deletion.Items[0].UID
	for range 10 { // its pauses grow
		retried := batch{stream: f.stream, retry: true, deletions: b.deletions[:1]}
		f.done(retried, map[uuid.UUID]error{often: failed[often]})
	}
	again := f.again(time.Now().Add(time.Second))
	require.Len(t, again.deletions, 1)
	require.Equal(t, "once", again.deletions[0].Name)
	require.Equal(t, []uuid.UUID{often}, again.except)
}

// A large deletion goes on beside the others: it arrives again, is handled, and the late result of the run
// before it changes nothing. The next position acknowledges it.
func TestALateResultChangesNothing(t *testing.T) {
	for _, result := range []error{nil, schema.ErrUnfinished, errors.New("poison")} {
		f := newDeletions(schema.Subscription{})
		said(t, f, event{started: true}, deleted("x"), end("p1"))
		earlier := f.fresh()
		earlier.position, earlier.covered = "", 0
		again := deleted("x")
		again.deletion.Items[0].Seq = 2
		said(t, f, again) // the end of its transaction follows
		f.done(f.fresh(), nil)
		failed := map[uuid.UUID]error{}
		if result != nil {
			failed[again.deletion.Items[0].UID] = result
		}
		f.done(earlier, failed)
		said(t, f, event{deletion: schema.Event[schema.Deletion]{Token: "p2"}})
		last := f.fresh()
		require.Equal(t, "p2", last.position)
		require.Empty(t, last.except)
		f.done(last, nil)
		require.Zero(t, f.Len())
	}
}
