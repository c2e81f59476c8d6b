// Package queue has the queue of keys of the loops that do work: keys in the order of arrival, and keys that
// wait, each by itself.
package queue

import (
	"container/heap"
	"time"

	"github.com/db-controller/db-controller/internal/retry"
)

// Queue of keys. A key is in it at most once, and has pauses of its own. The zero Queue is ready to use; it
// belongs to one goroutine.
type Queue[K comparable] struct {
	// Pauses of a key that is put off again and again.
	Pauses retry.Backoff

	ready  []K // in the order of arrival
	queued map[K]bool
	states map[K]*state
	due    deferrals[K]
}

// state of a key that was put off.
type state struct {
	pauses retry.Backoff
	// due is the time at which the key is queued again; zero: nothing is due.
	due time.Time
}

// Len is the number of keys that can be taken.
func (q *Queue[K]) Len() int { return len(q.ready) }

// Add queues keys behind the others, unless they are queued.
func (q *Queue[K]) Add(keys ...K) {
	if q.queued == nil {
		q.queued = map[K]bool{}
	}
	for _, k := range keys {
		if !q.queued[k] {
			q.queued[k] = true
			q.ready = append(q.ready, k)
		}
	}
}

// Take takes the first key.
func (q *Queue[K]) Take() (k K, ok bool) {
	if len(q.ready) == 0 {
		return k, false
	}
	k = q.ready[0]
	delete(q.queued, k)
	if q.ready = q.ready[1:]; len(q.ready) == 0 {
		q.ready, q.queued = nil, nil // frees the memory
	}
	return k, true
}

// Retry queues a key again after its next pause, which is longer than the last one.
func (q *Queue[K]) Retry(k K, now time.Time) {
	q.At(k, now.Add(q.state(k).pauses.Next()))
}

// At queues a key again at a time, or at an earlier one that it has already.
func (q *Queue[K]) At(k K, at time.Time) {
	s := q.state(k)
	if !s.due.IsZero() && !at.Before(s.due) {
		return
	}
	s.due = at
	heap.Push(&q.due, deferral[K]{k, at})
}

func (q *Queue[K]) state(k K) *state {
	if q.states == nil {
		q.states = map[K]*state{}
	}
	s := q.states[k]
	if s == nil {
		s = &state{pauses: q.Pauses}
		q.states[k] = s
	}
	return s
}

// Succeeded makes the next pause of a key the first one.
func (q *Queue[K]) Succeeded(k K) {
	switch s := q.states[k]; {
	case s == nil:
	case s.due.IsZero():
		delete(q.states, k)
	default:
		s.pauses.Reset()
	}
}

// Forget removes the pauses of a key, and the time at which it is due. A key that is queued stays so.
func (q *Queue[K]) Forget(k K) { delete(q.states, k) }

// Resume queues the keys that are due.
func (q *Queue[K]) Resume(now time.Time) {
	for d, ok := q.first(); ok && !d.at.After(now); d, ok = q.first() {
		heap.Pop(&q.due)
		q.states[d.key].due = time.Time{}
		q.Add(d.key)
	}
}

// Hurry makes all keys due that wait, with the first pause when they are put off again.
func (q *Queue[K]) Hurry(now time.Time) {
	for k, s := range q.states {
		s.pauses.Reset()
		if !s.due.IsZero() {
			q.At(k, now)
		}
	}
}

// Due is the time at which the next key is due; false: none waits.
func (q *Queue[K]) Due() (time.Time, bool) {
	d, ok := q.first()
	return d.at, ok
}

// first returns the first deferral that holds: one whose key was forgotten, or became due at another time,
// does not.
func (q *Queue[K]) first() (d deferral[K], ok bool) {
	for len(q.due) > 0 {
		d = q.due[0]
		if s := q.states[d.key]; s != nil && s.due.Equal(d.at) {
			return d, true
		}
		heap.Pop(&q.due)
	}
	return d, false
}

// deferral of a key.
type deferral[K comparable] struct {
	key K
	at  time.Time
}

// deferrals are a heap by time.
type deferrals[K comparable] []deferral[K]

func (d deferrals[K]) Len() int           { return len(d) }
func (d deferrals[K]) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deferrals[K]) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface.
func (d *deferrals[K]) Push(x any) { *d = append(*d, x.(deferral[K])) } //nolint:forcetypeassert // by heap.Push above

// Pop implements heap.Interface.
func (d *deferrals[K]) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
