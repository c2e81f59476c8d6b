package nodemanager

import (
	"context"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// inStep reports that there is nothing to do: the database runs what runs here, as far as it can be asked. When another
// process has switched the version, what runs here ends, and its shards are free.
func (f *following) inStep(ctx context.Context) bool {
	m := f.manager
	if f.running == nil {
		return f.superseded == nil
	}
	same, err := m.cfg.Runs(ctx, f.running.model)
	if err != nil || same {
		return true // nothing takes effect that is of another version
	}
	f.superseded = f.running.model
	m.setReason("another process has switched the version of this deployment")
	m.cfg.Logger.Warn("another process has switched the version: this one gives its shards up until it knows what is run now",
		zap.Stringer("ran", f.superseded.Descriptor.ServiceVersion))
	f.stop()
	return false
}

// catchUp reports whether this process knows what to run after another one switched the version. That is what the database
// runs, as the newest environment describes it, its own or the one that another process has kept; or what the registry has
// said since.
func (f *following) catchUp(ctx context.Context) bool {
	m := f.manager
	kept, err := m.cfg.Kept(ctx)
	if err != nil {
		m.cfg.Logger.Warn("the kept environment cannot be read, it is tried again", zap.Error(err))
		return false
	}
	own, err := f.env.Model(m.cfg.Deployment)
	switch {
	case err == nil && f.runs(ctx, own):
	case kept != nil && kept.Revision >= f.env.Revision && f.keptRuns(ctx, kept):
		f.env = kept
		m.cfg.Follows(kept)
	case err == nil && own.Digest != f.superseded.Digest, kept != nil && kept.Revision < f.env.Revision:
		// The registry has said something since, or the database is one of before.
	default:
		m.setReason("another process has switched the version of this deployment, and neither the registry nor the environment " +
			"that is kept in the database tells this one what is run now: is the registry reachable, and does it know of the switch?")
		return false
	}
	f.superseded = nil
	return true
}

func (f *following) keptRuns(ctx context.Context, kept *schema.Environment) bool {
	model, err := kept.Model(f.manager.cfg.Deployment)
	return err == nil && f.runs(ctx, model)
}

func (f *following) runs(ctx context.Context, model *schema.Model) bool {
	same, err := f.manager.cfg.Runs(ctx, model)
	return err == nil && same
}
