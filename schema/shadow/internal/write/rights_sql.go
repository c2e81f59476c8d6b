package write

import "github.com/db-controller/db-controller/schema/shadow/internal/db"

// The rights that count: to a name before the write, and to a row under its lock.
const (
	// A name that more than one uid has a right of is left to the target's deployment.
	selectDelegatedSQL = `
WITH i AS (
    SELECT * FROM unnest($1::int[], $2::int[], $3::text[], $4::boolean[]) WITH ORDINALITY AS i (deployment_id, kind_id, name, blocks, n)
), f AS (
    SELECT i.n, f.id, f.uid FROM i
    JOIN dbcontroller.foreign_target f ON f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
    WHERE NOT i.blocks AND ` + db.RightCountsSQL + `
    UNION ALL
    SELECT i.n, f.id, f.uid FROM i
    JOIN dbcontroller.foreign_target f ON f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id AND f.name = i.name
    WHERE i.blocks AND ` + db.BlockRightCountsSQL + `
)
SELECT f.n - 1, f.id, f.uid FROM f WHERE ` + db.NotEndingSQL

	// A transaction that ends a right waits for these locks. It would wait for ever if new ones were taken
	// beside it.
	lockRightsSQL = `SELECT id FROM dbcontroller.foreign_target f WHERE id = ANY ($1) AND ` + db.NotEndingSQL +
		` ORDER BY id FOR KEY SHARE`

	// After the locks, in a statement of its own: a right that ended before the lock is not seen. The name
	// still has one right alone, and the number still belongs to the uid.
	selectActingSQL   = countingSQL + ` AND ` + db.RightCountsSQL + `)`
	selectBlockingSQL = countingSQL + ` AND ` + db.BlockRightCountsSQL + `)`
	countingSQL       = `
SELECT t.uid FROM unnest($1::bigint[], $2::uuid[]) AS i (id, uid) JOIN dbcontroller.foreign_target t ON t.id = i.id AND t.uid = i.uid
WHERE ARRAY[t.id] = ARRAY(
    SELECT f.id FROM dbcontroller.foreign_target f WHERE f.deployment_id = t.deployment_id AND f.kind_id = t.kind_id AND f.name = t.name
    AND (f.id = t.id OR ` + db.NotEndingSQL + `)`

	// The rows of the targets are locked. The attempt identifies the reference, as of any other reference;
	// nothing was established under it, and no decision on it is stored.
	insertReferencesSQL = `
INSERT INTO dbcontroller.reference (holder_id, target_id, field_id, behaviour, attempt, delegated)
SELECT i.*, true FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[], $5::uuid[]) AS i (holder_id, target_id, field_id, behaviour, attempt)`
)
