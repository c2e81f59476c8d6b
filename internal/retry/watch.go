package retry

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Silence is how long a stream may deliver nothing: its server sends a message every five seconds. After that
// the connection is half open, or the server hangs.
const Silence = 30 * time.Second

// Stable is how long a stream has to last for the back-off to begin anew after it.
const Stable = 10 * time.Second

// ErrSilent is the error of a stream that delivered nothing for too long.
var ErrSilent = errors.New("the stream was silent for too long")

// Watch follows one stream until it ends, or is silent for too long: then its context ends, and the error is
// ErrSilent with the error of the stream. The stream calls heard for everything that it receives.
func Watch(ctx context.Context, stream func(ctx context.Context, heard func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(Silence, func() { cancel(ErrSilent) })
	defer silent.Stop()
	err := stream(ctx, func() { silent.Reset(Silence) })
	if errors.Is(context.Cause(ctx), ErrSilent) {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// Forever calls try again whenever it ends, until ctx does. Pauses grow, and begin anew after a try that was
// stable. Before each pause, failed receives its error and length, and whether the try before it failed as
// soon.
func Forever(ctx context.Context, b Backoff, try func(ctx context.Context) error,
	failed func(err error, pause time.Duration, repeated bool),
) {
	for ctx.Err() == nil {
		began := time.Now()
		err := try(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > Stable {
			b.Reset()
		}
		repeated := !b.Fresh()
		pause := b.Next()
		failed(err, pause, repeated)
		select {
		case <-ctx.Done():
		case <-b.AtOnce:
			b.Reset()
		case <-time.After(pause):
		}
	}
}
