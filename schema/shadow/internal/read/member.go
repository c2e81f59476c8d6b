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

// concerned is the condition that somebody else has to be asked about a shadow s, or that it is not removed.
const concerned = `(s.state <> {active} OR s.block_deletion OR EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = s.id)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry e WHERE e.owner_id = s.id))`

const memberSQL = `
SELECT s.id, s.uid, s.kind_id, s.name, s.block_deletion, k.finalizers,
    ARRAY (SELECT deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id ORDER BY 1),
    ARRAY (SELECT deployment_id FROM dbcontroller.ownee_entry e WHERE e.owner_id = s.id ORDER BY 1), s.state = {active}
FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id WHERE `

// The statements select Members: the ACTIVE ones by their ids, their kind and name, or several of these; and those of some ids that are
// no plain leaves of a deletion.
var (
	MembersSQL      = db.Codes(memberSQL + `s.state = {active} AND s.id = ANY ($1) ORDER BY s.id`)
	NamedMemberSQL  = db.Codes(memberSQL + `s.state = {active} AND s.kind_id = $1 AND s.name = $2`)
	NamedMembersSQL = db.Codes(memberSQL + `s.state = {active} AND (s.kind_id, s.name) IN (SELECT * FROM unnest($1::int[], $2::text[]))`)
	ConcernedSQL    = db.Codes(memberSQL + `s.id = ANY ($1) AND ` + concerned + ` ORDER BY s.id`)
)

// Target is a resource of another deployment to which something here refers, and Holder a resource here that refers to one.
type (
	Target struct {
		ID         int64
		Deployment int32
		UID        uuid.UUID
	}
	Holder struct {
		ID  int64
		UID uuid.UUID
	}
)

// The targets among some resources of other deployments ($1, $2).
const targets = `dbcontroller.foreign_target f JOIN unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid) ON f.deployment_id = i.deployment_id AND f.uid = i.uid`

// The first holders, up to $3, that go with a target f. They come from an index in their order.
const firstHolders = `
    SELECT DISTINCT holder_id FROM dbcontroller.reference
    WHERE target_id = f.id AND behaviour IN ({cascade_delete}, {async_cascade_delete}) ORDER BY holder_id LIMIT $3
`

// TargetsSQL selects Targets among some resources of other deployments ($1, $2), and HoldersOfSQL the Holders, up to $3, that go with them.
var (
	TargetsSQL   = `SELECT f.id, f.deployment_id, f.uid FROM ` + targets
	HoldersOfSQL = db.Codes(`
SELECT DISTINCT h.id, h.uid FROM ` + targets + ` CROSS JOIN LATERAL (` + firstHolders + `) AS r JOIN dbcontroller.shadow h ON h.id = r.holder_id
ORDER BY h.id LIMIT $3`)
)

// CountLeavesSQL counts the holders here that go with some resources of other deployments ($1, $2), up to $3, and reports whether one of
// them concerns somebody else, or anything here goes with it ($4: this deployment) or blocks it; or the resources own something here. Each
// holder is looked up by itself, whatever the statistics say.
var CountLeavesSQL = db.Codes(`
WITH asked AS (
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
), h AS MATERIALIZED (
    SELECT DISTINCT r.holder_id AS id
    FROM asked JOIN dbcontroller.foreign_target f USING (deployment_id, uid) CROSS JOIN LATERAL (` + firstHolders + `) AS r LIMIT $3
)
SELECT (SELECT count(*) FROM h), EXISTS (
    SELECT FROM asked JOIN dbcontroller.owner_reference USING (deployment_id, uid)
) OR EXISTS (
    SELECT FROM h CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow WHERE id = h.id OFFSET 0) AS s
    WHERE ` + concerned + `
        OR EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = h.id AND behaviour IN ({block}, {cascade_delete}, {async_cascade_delete}))
        OR EXISTS (SELECT FROM dbcontroller.owner_reference WHERE deployment_id = $4 AND uid = s.uid)
        OR EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = h.id)
)`)
