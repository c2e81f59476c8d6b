package gateway

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// slots bound the requests under way: of each caller, and of all together. A call waits; a watch too many is
// refused, since those before it may never end.
type slots struct {
	calls, streams chan struct{} // of all

	mu sync.Mutex
	of map[string]*own // guarded by mu; callers with requests under way or waiting
}

type own struct {
	calls, streams chan struct{}
	users          int // guarded by slots.mu
}

func newSlots() *slots {
	return &slots{
		calls: make(chan struct{}, maxAllCalls), streams: make(chan struct{}, maxAllStreams),
		of: map[string]*own{},
	}
}

// enter waits for a slot, and returns a function that frees it. It fails with a gRPC status.
func (s *slots) enter(ctx context.Context, who string, stream bool) (leave func(), err error) {
	o, err := s.use(who)
	if err != nil {
		return nil, err
	}
	first, second := o.calls, s.calls
	if stream {
		first, second = o.streams, s.streams
	}
	if err := take(ctx, first, stream); err != nil {
		s.done(who, o)
		return nil, err
	}
	if err := take(ctx, second, stream); err != nil {
		<-first
		s.done(who, o)
		return nil, err
	}
	return func() { <-second; <-first; s.done(who, o) }, nil
}

// take waits for a place, or fails at once if now.
func take(ctx context.Context, places chan struct{}, now bool) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	if now {
		return status.Errorf(codes.ResourceExhausted, "%d watches are under way over HTTP: end one, or use gRPC",
			cap(places))
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *slots) use(who string) (*own, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of[who]
	if o != nil && o.users >= maxCalls+maxStreams+maxWaiting {
		return nil, status.Errorf(codes.ResourceExhausted,
			"%d requests of %s are under way or wait: wait for their answers", o.users, who)
	}
	if o == nil {
		o = &own{calls: make(chan struct{}, maxCalls), streams: make(chan struct{}, maxStreams)}
		s.of[who] = o
	}
	o.users++
	return o, nil
}

func (s *slots) done(who string, o *own) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(s.of, who)
	}
}
