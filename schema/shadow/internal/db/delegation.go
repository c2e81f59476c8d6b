package db

// RightCountsSQL is a condition on a row f of foreign_target: this deployment may refer to the target by acting references
// without asking. A right counts in the epochs alone in which it was granted: that of this database when it asked, and that of
// the target's database as it is known here. A deployment that has never announced an epoch is in the one that it answers with.
const RightCountsSQL = `f.acting_epoch IS NOT NULL
    AND f.acting_own = (SELECT epoch FROM dbcontroller.meta)
    AND f.acting_epoch = (SELECT COALESCE(d.epoch, f.acting_epoch) FROM dbcontroller.deployment d WHERE d.id = f.deployment_id)`
