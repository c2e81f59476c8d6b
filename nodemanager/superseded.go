package nodemanager

import (
	"context"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// inStep reports whether there is nothing to do: the database has the version that runs here, and its
// references point to the deployments that are followed, or it cannot be read. When another process has
// switched the version, the nodes of this process end, and its shards are released.
func (f *following) inStep(ctx context.Context) bool {
	m := f.manager
	if f.running == nil {
		return f.superseded == nil
	}
	same, pointedTo, err := m.cfg.Others.Look(ctx, f.running.model)
	if err != nil || same {
		// if the version differs, transactions of this process take no effect
		return err != nil || !f.pointsToOther(pointedTo)
	}
	f.superseded = f.running.model
	m.setReason("another process has switched the version of this deployment")
	m.cfg.Logger.Warn(
		"another process has switched the version: this one releases its shards until it knows the new version",
		zap.Stringer("ran", f.superseded.Descriptor.ServiceVersion))
	f.stop()
	return false
}

// catchUp reports whether this process knows the version to run after another process has switched it: the
// version of the database, as its own environment or the kept one describes it; or a version that the
// registry has named since; or, when the database was restored from an older backup, its own.
func (f *following) catchUp(ctx context.Context) bool {
	m := f.manager
	kept, err := m.cfg.Others.Kept(ctx)
	if err != nil {
		m.cfg.Logger.Warn("the kept environment cannot be read, it is tried again", zap.Error(err))
		return false
	}
	named, err := f.env.Model(m.cfg.Deployment)
	switch {
	case err == nil && f.runs(ctx, named):
	case kept != nil && kept.Revision >= f.env.Revision && f.keptRuns(ctx, kept):
		f.env = kept
		m.cfg.Others.Follows(kept)
	case err == nil && named.Digest != f.superseded.Digest, kept != nil && kept.Revision < f.env.Revision:
		// The registry has named a version since, or the database was restored from an older backup.
	default:
		m.setReason(
			"another process has switched the version of this deployment, and neither the registry nor the environment " +
				"that is kept in the database describes the new version: is the registry reachable, and does it know of the switch?")
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
	same, _, err := f.manager.cfg.Others.Look(ctx, model)
	return err == nil && same
}
