package shadow

import (
	"fmt"
	"regexp"

	"github.com/db-controller/db-controller/schema"
)

// sqlCodes are the numbers that stand in the database for a word: {deleting} in a statement is the number of Deleting.
var sqlCodes = map[string]int{
	// dbcontroller.shadow.state, dbcontroller.change.state
	"active": int(Active), "deleting": int(Deleting), "gone": int(Gone),
	// behaviour of dbcontroller.reference and dbcontroller.blockade
	"block": int(schema.Block), "unset": int(schema.Unset), "cascade_delete": int(schema.CascadeDelete),
	"async_unset": int(schema.AsyncUnset), "async_cascade_delete": int(schema.AsyncCascadeDelete), "allow_dangling": int(schema.AllowDangling),
	// dbcontroller.work.action
	"confirm": int(schema.Confirm), "release": int(schema.Release), "finalise": int(schema.Finalise),
	"check_owners": int(schema.CheckOwners), "drop_owners": int(schema.DropOwners), "let_go": int(schema.LetGo),
	"upgrade_owners": int(schema.UpgradeOwners), "derive": int(schema.Derive), "retire": int(schema.CleanUpDecommissioned),
	"announce_epoch": int(schema.AnnounceEpoch), "confirm_again": int(schema.ConfirmAgain), "verify_blockades": int(schema.VerifyBlockades),
	// bits of dbcontroller.owner_reference.flags
	"requires_owner": int(flagRequires), "unset_on_delete": int(flagUnsetOnDelete),
	// not stored
	"work_feed": int(workFeed), "notice_feed": int(noticeFeed),
	"acknowledge_group": acknowledgeGroup, "deleting_group": deletingGroup, "resolve_group": resolveGroup,
}

var codeName = regexp.MustCompile(`\{([a-z_]+)\}`)

// codes replaces {name} in a statement by the number of that code. The numbers are literals and no parameters: partial
// indexes are used, and plans are chosen, by what PostgreSQL sees in the text. It is for package variables, and panics on a
// name that is not known, so that no program with such a statement starts.
func codes(sql string) string {
	return codeName.ReplaceAllStringFunc(sql, func(name string) string {
		code, ok := sqlCodes[name[1:len(name)-1]]
		if !ok {
			panic(fmt.Sprintf("no code is called %s in %q", name, sql))
		}
		return fmt.Sprint(code)
	})
}

// lookAgain inserts a piece of work for each resource of a FROM clause with a row s of dbcontroller.shadow: it may be that
// nothing holds the resource any more. self is the parameter of this deployment's number.
func lookAgain(self, from string) string {
	return codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {finalise}, s.shard, ` + self + `::int, s.id FROM ` + from)
}

// changeTo inserts a change of each resource of a FROM clause, which has the columns of a change.
func changeTo(state, from string) string {
	return codes(`
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, labels, body, owners, block_deletion)
SELECT uid, revision, generation, kind_id, ` + state + `, created_at, name, labels, body, owners, block_deletion FROM ` + from)
}

// changeGone inserts the last change of each resource of a FROM clause.
func changeGone(revision, from string) string {
	return codes(`
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name)
SELECT uid, ` + revision + `, generation, kind_id, {gone}, created_at, name FROM ` + from)
}
