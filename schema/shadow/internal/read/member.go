package read

import (
	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Member is a resource that a deletion removes, with the deployments that have to be asked because of it.
type Member struct {
	ID              int64
	UID             uuid.UUID
	Kind            int32
	Name            string
	BlockDeletion   bool
	Finalizers      []string
	Entries, Ownees []int32
	Active          bool
}

// concerned is the condition that another deployment has to be asked about a shadow s, or that it is not
// removed. (With equalities, the plan from a time when the tables were small hashes all of them.)
const concerned = `(s.state <> {active} OR s.block_deletion OR EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id BETWEEN s.id AND s.id)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry e WHERE e.owner_id BETWEEN s.id AND s.id))`

const memberSQL = `
SELECT s.id, s.uid, s.kind_id, s.name, s.block_deletion, k.finalizers,
    ARRAY (SELECT deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id ORDER BY 1),
    ARRAY (SELECT deployment_id FROM dbcontroller.ownee_entry e WHERE e.owner_id = s.id ORDER BY 1), s.state = {active}
FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id WHERE `

// The statements select Members: the ACTIVE ones by their ids, their kind and name, or several of these; and
// the members of some ids that are no plain leaves of a deletion.
var (
	MembersSQL      = db.Codes(memberSQL + `s.state = {active} AND s.id = ANY ($1) ORDER BY s.id`)
	NamedMemberSQL  = db.Codes(memberSQL + `s.state = {active} AND s.kind_id = $1 AND s.name = $2`)
	NamedMembersSQL = db.Codes(memberSQL +
		`s.state = {active} AND (s.kind_id, s.name) IN (SELECT * FROM unnest($1::int[], $2::text[]))`)
	ConcernedSQL = db.Codes(memberSQL + `s.id = ANY ($1) AND ` + concerned + ` ORDER BY s.id`)
)

// Target is a resource of another deployment that has holders here.
type Target struct {
	ID         int64
	Deployment int32
	UID        uuid.UUID
}

// Holder is a resource here that refers to a Target.
type Holder struct {
	ID  int64
	UID uuid.UUID
}

const (
	// The targets among some resources of other deployments ($1, $2).
	targets = `(
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
) AS asked JOIN dbcontroller.foreign_target f USING (deployment_id, uid)`

	// The references, up to $3, that go with a target f. With an equality the planner, which has statistics
	// of one hot target, expects every row to fit, and reads any index from its start. No other index has
	// this order.
	firstReferences = `
    SELECT holder_id FROM dbcontroller.reference WHERE target_id BETWEEN f.id AND f.id AND behaviour IN ({cascade_delete}, {async_cascade_delete})
    ORDER BY target_id, behaviour, holder_id LIMIT $3
`
)

// TargetsSQL selects Targets among some resources of other deployments ($1, $2). HoldersOfSQL selects the
// Holders that go with them, by up to $3 references: a holder with several comes several times. HoldersSQL
// selects the Holders, up to $2, that go with targets by their ids ($1).
var (
	HoldersSQL = db.Codes(`
SELECT DISTINCT r.holder_id, h.uid
FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
WHERE r.target_id = ANY ($1) AND r.behaviour IN ({cascade_delete}, {async_cascade_delete}) ORDER BY r.holder_id LIMIT $2`)
	TargetsSQL   = `SELECT f.id, deployment_id, uid FROM ` + targets
	HoldersOfSQL = db.Codes(`
SELECT h.id, h.uid FROM ` + targets + ` CROSS JOIN LATERAL (` + firstReferences + `) AS r
CROSS JOIN LATERAL (SELECT id, uid FROM dbcontroller.shadow WHERE id = r.holder_id OFFSET 0) AS h LIMIT $3`)
)

// CountLeavesSQL counts the holders here that go with some resources of other deployments ($1, $2), by up to
// $3 references, and reports whether that may not be all: $3 references have fewer holders, a holder concerns
// another deployment, a resource here goes with it ($4: this deployment) or blocks it, or the resources own a
// resource here. Each holder is looked up by itself, with any statistics.
var CountLeavesSQL = db.Codes(`
WITH r AS MATERIALIZED (
    SELECT r.holder_id FROM ` + targets + ` CROSS JOIN LATERAL (` + firstReferences + `) AS r LIMIT $3
), h AS MATERIALIZED (
    SELECT DISTINCT holder_id AS id FROM r
)
SELECT (SELECT count(*) FROM h), (SELECT count(*) FROM h) < $3 AND (SELECT count(*) FROM r) = $3
OR EXISTS (
    SELECT FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
    CROSS JOIN LATERAL (SELECT FROM dbcontroller.owner_reference o WHERE o.deployment_id = i.deployment_id AND o.uid BETWEEN i.uid AND i.uid LIMIT 1) AS o
) OR EXISTS (
    SELECT FROM h CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow WHERE id = h.id OFFSET 0) AS s
    WHERE ` + concerned + `
        OR EXISTS (SELECT FROM dbcontroller.reference WHERE target_id BETWEEN h.id AND h.id AND behaviour IN ({block}, {cascade_delete}, {async_cascade_delete}))
        OR EXISTS (SELECT FROM dbcontroller.owner_reference WHERE deployment_id = $4 AND uid BETWEEN s.uid AND s.uid)
        OR EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id BETWEEN h.id AND h.id)
)`)
