package shadow

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// NoticeEpoch compares the server with the one on which the stored epoch began, and the last value of the sequence mark with the
// greatest one that this process has seen. It begins a new epoch when the server is another one or its database an older copy,
// unless another process has begun one. It reports whether recovery waits for the list of deployments that may refer to resources
// here (Recover).
func (s *Store) NoticeEpoch(ctx context.Context) (awaiting bool, err error) {
	return s.gate.NoticeEpoch(ctx)
}

// PresentEpoch returns the epoch that this process noticed last; uuid.Nil before the first.
func (s *Store) PresentEpoch() uuid.UUID {
	return s.gate.PresentEpoch()
}

// EpochChanged receives after a transaction met a server whose epoch has not been noticed. Capacity one; never closed.
func (s *Store) EpochChanged() <-chan struct{} {
	return s.gate.EpochChanged()
}

// AdvanceEpoch replaces the id of the present epoch by one greater than known, the epoch of this database that another
// deployment has stored: the clock went back since then. The new id is announced to all deployments.
func (s *Store) AdvanceEpoch(ctx context.Context, known uuid.UUID) error {
	return s.gate.AdvanceEpoch(ctx, known)
}

// RecordPeerEpoch records that another deployment's database has begun a new epoch. From its commit on, blockades established
// there before and messages of earlier epochs count for nothing; writes that may rely on them hold the version lock shared until
// they commit. The greater epoch counts, in whichever order they arrive; it is returned.
func (s *Store) RecordPeerEpoch(ctx context.Context, from schema.DeploymentID, epoch uuid.UUID) (known uuid.UUID, err error) {
	return s.gate.RecordPeerEpoch(ctx, from, epoch)
}

// MarkAnnounced replaces the work to announce the present epoch to a deployment, which has stored it and refuses earlier
// messages, by the work to compare. Comparing earlier would not be final: a release in flight could still remove a blockade.
func (s *Store) MarkAnnounced(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID) error {
	return s.gate.MarkAnnounced(ctx, to, epoch)
}

// MarkReferencesConfirmed records that a deployment has compared its references to resources here, and established the lost ones
// again. epoch is the epoch of this database in which it compared, selfEpoch that of its own.
func (s *Store) MarkReferencesConfirmed(ctx context.Context, by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error {
	return s.gate.MarkReferencesConfirmed(ctx, by, epoch, selfEpoch)
}

// Recover starts the recovery of a new epoch with the deployments of an environment. The epoch is announced to all of
// them; those that may refer to resources here are waited for: nothing is deleted here until they have confirmed their
// references. A later call, in any epoch but the first, adds deployments that have appeared since (the registry may have
// lost some as well) and changes nothing for the others.
func (s *Store) Recover(ctx context.Context, env *schema.Environment) error {
	return s.gate.Recover(ctx, env)
}

// ForgetServer makes the next NoticeEpoch begin a new epoch (--restored): a process that has just started cannot
// distinguish a restored copy of the server's files from the original.
func (s *Store) ForgetServer(ctx context.Context) error {
	return s.gate.ForgetServer(ctx)
}

// Position returns the stored token of the watch of deletions of another deployment; empty when none is stored.
func (s *Store) Position(ctx context.Context, of schema.DeploymentID) (token string, err error) {
	return s.gate.Position(ctx, of)
}

// KeepPosition stores a token of the watch of deletions of another deployment, unless another token than was is stored.
func (s *Store) KeepPosition(ctx context.Context, of schema.DeploymentID, was, token string) (kept bool, err error) {
	return s.gate.KeepPosition(ctx, of, was, token)
}

// Database returns the identity of this deployment's database.
func (s *Store) Database() uuid.UUID {
	return s.gate.Database()
}

// CheckDatabase compares the identity of another deployment's database, as it reports it, with the recorded one, and records the
// first. When they differ and nothing is at stake, it records the new one; otherwise it fails with *DatabaseError.
func (s *Store) CheckDatabase(ctx context.Context, with schema.DeploymentID, database uuid.UUID) error {
	return s.gate.CheckDatabase(ctx, with, database)
}

// DatabaseMismatches returns the mismatches that no later comparison of this process has ended.
func (s *Store) DatabaseMismatches() []DatabaseMismatch {
	return s.gate.DatabaseMismatches()
}

// AcceptDatabase applies and records the decision. Both sides compare, as after a failover: commits of the former database are
// lost.
func (s *Store) AcceptDatabase(ctx context.Context, d AcceptedDatabase) error {
	return s.gate.AcceptDatabase(ctx, d)
}

// WaiveComparison is an operator's decision that deletions here no longer wait for a deployment that has to compare its references
// after a failover, here or there. Targets of its references that this database has lost may then be deleted; if it compares after
// all, such references are marked dangling. It is idempotent, and without effect for a deployment that is not waited for. The
// decision is recorded with its reason and its author (by).
func (s *Store) WaiveComparison(ctx context.Context, of schema.DeploymentID, reason, by string) error {
	return s.gate.WaiveComparison(ctx, of, reason, by)
}

// OperatorDecisions returns the last 100 decisions, newest first.
func (s *Store) OperatorDecisions(ctx context.Context) ([]OperatorDecision, error) {
	return s.gate.OperatorDecisions(ctx)
}

// Decommissioned lists the decommissioned deployments, by service and region.
func (s *Store) Decommissioned(ctx context.Context) ([]Decommissioned, error) {
	return s.gate.Decommissioned(ctx)
}

// IsDecommissioned reports whether this process has read that a deployment is decommissioned.
func (s *Store) IsDecommissioned(id schema.DeploymentID) bool { return s.gate.IsDecommissioned(id) }

// Runs reports whether the version stored in the database is that of the model. If not, another process has switched the version.
func (s *Store) Runs(ctx context.Context, model *schema.Model) (bool, error) {
	return s.gate.Runs(ctx, model)
}

// RunningVersion returns the name of the version stored in the database.
func (s *Store) RunningVersion(ctx context.Context) (string, error) {
	return s.gate.RunningVersion(ctx)
}

// Superseded receives after a transaction met another version than this process has switched to. Its capacity is one, since one
// signal means the same as several; it is never closed.
func (s *Store) Superseded() <-chan struct{} {
	return s.gate.Superseded()
}

// ActFor unsets and cascades the holders in this database for deletions at a deployment, any number of them, in
// transactions of Config.Limits.Batch holders. from is this deployment itself for references that act asynchronously. It is
// idempotent. It returns by uid the errors of deletions that could not be carried out completely: schema.ErrUnfinished
// for large targets that are not done when patience ends. All other deletions are done when err is nil.
func (s *Store) ActFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, patience time.Duration) (map[uuid.UUID]error, error) {
	return s.follow.ActFor(ctx, from, deletions, patience)
}

// Finalise checks the resources of some pieces of work, removes those in DELETING that wait for nothing, and returns
// their number. The work is removed in the same transaction: each change for which a resource waits adds new work.
func (s *Store) Finalise(ctx context.Context, seqs []int64) (removed int, err error) {
	return s.cascade.Finalise(ctx, seqs)
}

// Pause pauses the deletions of a deployment here, this one for all, or resumes them. It is an operator's decision, which is recorded.
func (s *Store) Pause(ctx context.Context, of schema.DeploymentID, paused bool, reason, by string) error {
	return s.gate.Pause(ctx, of, paused, reason, by)
}

// Paused lists the deployments whose deletions are paused here.
func (s *Store) Paused(ctx context.Context) ([]schema.DeploymentID, error) {
	return s.gate.Paused(ctx)
}
