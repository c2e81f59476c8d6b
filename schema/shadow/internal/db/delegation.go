package db

// Conditions on a row f of foreign_target: this deployment may refer to the target without asking, by acting
// references, or by blocking ones. A right counts only in the epochs in which it was granted: the epoch of
// this database when it asked, and the epoch of the target's database as it is known here. A deployment that
// has never announced an epoch is in the epoch of its answer.
const (
	RightCountsSQL = `f.acting_epoch IS NOT NULL
    AND f.acting_own = (SELECT epoch FROM dbcontroller.meta)
    AND f.acting_epoch = (SELECT COALESCE(d.epoch, f.acting_epoch) FROM dbcontroller.deployment d WHERE d.id = f.deployment_id)`

	BlockRightCountsSQL = `f.block_epoch IS NOT NULL
    AND f.block_own = (SELECT epoch FROM dbcontroller.meta)
    AND f.block_epoch = (SELECT COALESCE(d.epoch, f.block_epoch) FROM dbcontroller.deployment d WHERE d.id = f.deployment_id)`
)

// AllDelegateSQL is true while every process of the deployment runs with delegations: then the deployment
// takes rights.
const AllDelegateSQL = `NOT EXISTS (SELECT FROM dbcontroller.member WHERE NOT delegates)`

// The end of a right. First BeginEndingSQL is committed: writes look there and do not share the row any more,
// since PostgreSQL lets new sharers of a row pass a transaction that only waits for it. Then, in a
// transaction, LockRightsSQL waits for the writes that share it; the next statement sees their rows;
// DoneEndingSQL is last. A write that has not committed within the timeout delays this end alone.
//
// A write shares the row of its target FOR KEY SHARE. A right is granted by an update that leaves the key,
// under LockGrantsSQL, beside which rows are shared: no open transaction, also not the asking one, keeps
// others from a right. All statements that end a right lock the row FOR UPDATE first.
const (
	BeginEndingSQL = `
INSERT INTO dbcontroller.ending (target_id, until)
SELECT id, now() + interval '10 s' FROM dbcontroller.foreign_target
WHERE id = ANY ($1) AND (acting_epoch IS NOT NULL OR block_epoch IS NOT NULL) ORDER BY id
ON CONFLICT (target_id) DO UPDATE SET until = EXCLUDED.until`

	EndingLockTimeoutSQL = `SET LOCAL lock_timeout = '300ms'`
	LockRightsSQL        = `SELECT id FROM dbcontroller.foreign_target WHERE id = ANY ($1) ORDER BY id FOR UPDATE`
	LockGrantsSQL        = `SELECT id FROM dbcontroller.foreign_target WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	DoneEndingSQL        = `DELETE FROM dbcontroller.ending WHERE target_id = ANY ($1)`

	// NotEndingSQL is true of a row f of foreign_target whose rights no process is about to end. The time
	// bounds the rows of a process that died while it ended a right.
	NotEndingSQL = `NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')`
)

// LookAtRights inserts a piece of work for each row f of foreign_target of a FROM clause: the right to block
// it may not be needed any more.
func LookAtRights(from string) string {
	return Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {look_at_right}, (f.id % 64)::smallint, f.deployment_id, f.id FROM ` + from)
}

// KeptSQL is true of a row f of foreign_target whose rights were asked for a short time ago, so that nothing
// may refer to it yet. A time more than a minute ahead comes from a clock that went back.
const KeptSQL = `(f.kept_until IS NOT NULL AND f.kept_until > now() AND f.kept_until < now() + interval '1 min')`
