package constraint

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// event comes from a watch. Sent by the goroutine of the watch, which waits for the loop; never closed.
type event struct {
	from     schema.DeploymentID // zero: the own watch
	run      *watchRun
	started  bool // a new stream begins; its snapshot replaces the cache
	lost     bool // the stream has ended
	work     schema.Event[schema.Work]
	deletion schema.Event[schema.Deletion]
}

// watchRun is the goroutine that keeps a watch open.
type watchRun struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has returned
	hurry  chan struct{} // one place: the pause before the next stream ends
}

// atOnce ends the pause before the next stream, if the watch is lost.
func (r *watchRun) atOnce() {
	select {
	case r.hurry <- struct{}{}:
	default: // notified before
	}
}

func (r *watchRun) stop() {
	r.cancel()
	<-r.done
}

// stream is one stream of a watch, which calls heard for each event that it receives.
type stream func(ctx context.Context, run *watchRun, heard func()) error

func (l *loop) watchOwn(ctx context.Context) *watchRun {
	l.cfg.Observer.WatchPrimed(l.shadowsWatch(), l.cfg.Deployment, Primed{Began: true})
	return l.keepWatching(ctx, schema.DeploymentID{}, l.shadowsWatch(),
		func(ctx context.Context, run *watchRun, heard func()) error {
			return l.cfg.Watches.WatchShadows(ctx, l.cfg.Shards, func(e schema.Event[schema.Work]) error {
				heard()
				l.cfg.Observer.WatchHeard(l.shadowsWatch(), l.cfg.Deployment)
				return l.send(ctx, event{run: run, work: e})
			})
		})
}

func (l *loop) watchDeletions(ctx context.Context, from schema.DeploymentID) *watchRun {
	l.cfg.Observer.WatchPrimed(deletionsWatch, from, Primed{Began: true})
	return l.keepWatching(ctx, from, deletionsWatch+" of "+from.String(),
		func(ctx context.Context, run *watchRun, heard func()) error {
			return l.cfg.Watches.WatchDeletions(ctx, from, func(e schema.Event[schema.Deletion]) error {
				heard()
				l.cfg.Observer.WatchHeard(deletionsWatch, from)
				return l.send(ctx, event{from: from, run: run, deletion: e})
			})
		})
}

// keepWatching opens a watch again whenever its stream ends. Each stream begins with a snapshot, which
// replaces the cache, and goes on with the changes after it: no second stream is opened in between.
func (l *loop) keepWatching(ctx context.Context, from schema.DeploymentID, name string, watch stream) *watchRun {
	ctx, cancel := context.WithCancel(ctx)
	run := &watchRun{cancel: cancel, done: make(chan struct{}), hurry: make(chan struct{}, 1)}
	log := l.cfg.Logger.With(zap.String("node", l.cfg.Name), zap.String("watch", name))
	var lost atomic.Bool
	go func() {
		defer close(run.done)
		retry.Forever(ctx, retry.Backoff{AtOnce: run.hurry}, func(ctx context.Context) error {
			if err := l.send(ctx, event{from: from, run: run, started: true}); err != nil {
				return err
			}
			err := retry.Watch(ctx, func(ctx context.Context, heard func()) error {
				return watch(ctx, run, func() {
					heard()
					if lost.Swap(false) {
						log.Info("a watch works again")
					}
				})
			})
			_ = l.send(ctx, event{from: from, run: run, lost: true}) // fails only when the watch is stopped
			return err
		}, func(err error, pause time.Duration, repeated bool) {
			level := zap.InfoLevel
			if lost.Swap(true) || repeated {
				level = zap.DebugLevel
			}
			log.Log(level, "a watch ended, it is opened again", zap.Error(err), zap.Duration("again_in_seconds", pause))
		})
	}()
	return run
}

func (l *loop) send(ctx context.Context, e event) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case l.events <- e:
		return nil
	}
}

// deletionsWatch names the watches of other deployments for the observer: there is one for each deployment.
const deletionsWatch = "deletions"

// shadowsWatch names the own watch for the observer: there is one for each node.
func (l *loop) shadowsWatch() string { return "shadows-" + l.cfg.Name }
