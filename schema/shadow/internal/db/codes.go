package db

import (
	"fmt"
	"regexp"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// sqlCodes are the numbers that stand in the database for a word: {deleting} in a statement is the number of
// Deleting.
var sqlCodes = map[string]int{
	// dbcontroller.shadow.state, dbcontroller.change.state
	"active": int(peer.Active), "deleting": int(peer.Deleting), "gone": int(peer.Gone),
	// behaviour of dbcontroller.reference and dbcontroller.blockade
	"block": int(schema.Block), "unset": int(schema.Unset), "cascade_delete": int(schema.CascadeDelete),
	"async_unset": int(schema.AsyncUnset), "async_cascade_delete": int(schema.AsyncCascadeDelete),
	"allow_dangling": int(schema.AllowDangling),
	// dbcontroller.work.action
	"confirm": int(schema.Confirm), "release": int(schema.Release), "finalise": int(schema.Finalise),
	"check_owners": int(schema.CheckOwners), "drop_owners": int(schema.DropOwners), "let_go": int(schema.ReleaseOwner),
	"upgrade_owners": int(schema.UpgradeOwners), "derive": int(schema.Derive),
	"clean_up_decommissioned": int(schema.CleanUpDecommissioned),
	"announce_epoch":          int(schema.AnnounceEpoch), "confirm_again": int(schema.ConfirmAgain),
	"verify_blockades": int(schema.VerifyBlockades),
	"look_at_right":    int(schema.LookAtRight), "end_rights": int(schema.EndRights),
	"look_at_entry": int(schema.LookAtEntry),
	// bits of dbcontroller.owner_reference.flags
	"requires_owner": int(peer.FlagRequires), "unset_on_delete": int(peer.FlagUnsetOnDelete),
	// dbcontroller.cause.how
	"requested": int(peer.Requested),
	// not stored
	"work_feed": int(WorkFeed), "notice_feed": int(NoticeFeed),
	"acknowledge_group": AcknowledgeGroup, "deleting_group": DeletingGroup, "resolve_group": ResolveGroup,
	"acquire_group": AcquireGroup, "purge_group": PurgeGroup,
}

var codeName = regexp.MustCompile(`\{([a-z_]+)\}`)

// Codes replaces {name} in a statement by the number of that code. The numbers are literals and no
// parameters, since PostgreSQL chooses partial indexes and plans by the text. It is for package variables,
// and panics on an unknown name, so that no program with such a statement starts.
func Codes(sql string) string {
	return codeName.ReplaceAllStringFunc(sql, func(name string) string {
		code, ok := sqlCodes[name[1:len(name)-1]]
		if !ok {
			panic(fmt.Sprintf("no code is called %s in %q", name, sql)) //nolint:forbidigo // before main
		}
		return fmt.Sprint(code)
	})
}

// LookAgain inserts a piece of work for each resource of a FROM clause with a row s of dbcontroller.shadow:
// it may be that nothing holds the resource any more. self is the parameter of this deployment's number.
func LookAgain(self, from string) string {
	return Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {finalise}, s.shard, ` + self + `::int, s.id FROM ` + from)
}

// ChangeTo inserts a change of each resource of a FROM clause, which has the columns of a change.
func ChangeTo(state, from string) string {
	return Codes(`
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation)
SELECT uid, revision, generation, kind_id, ` + state + `, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation FROM ` + from)
}

// ChangeGone inserts the last change of each resource of a FROM clause.
func ChangeGone(revision, from string) string {
	return Codes(`
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name)
SELECT uid, ` + revision + `, generation, kind_id, {gone}, created_at, name FROM ` + from)
}
