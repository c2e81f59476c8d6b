package resources

import (
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Outputs are the documents of the commands of this package.
func Outputs() cli.Outputs {
	plan := cli.MessageWith{Message: &resourcev1.PlanDeletionResponse{}, More: keptNames{}}
	return cli.Outputs{
		"resource":       {"A resource. Names in it are full.", &resourcev1.Resource{}},
		"resources":      {"Resources.", []*resourcev1.Resource{}},
		"total":          {"A number of resources.", total{}},
		"event":          {"One line of watch: a resource that is there, a resource that is gone, the end of the snapshot, or a bookmark.", &resourcev1.WatchResourcesResponse{}},
		"deleted":        {"The deletion of one resource.", deleted{}},
		"deleted-all":    {"The deletions of several resources, in the order of their names in the call.", []deleted{}},
		"plan":           {"The effect of a delete, and what keeps the names of the resources.", plan},
		"plans":          {"The effects of the deletes in several deployments.", []any{plan}},
		"explanation":    {"Why a resource is pending, or in DELETING.", &adminv1.ExplainResponse{}},
		"referrers":      {"Resources that refer to a resource, or that it owns (the behaviour owned).", []referrer{}},
		"removal-chains": {"The removals of a name, the newest first, each with its causes up to the root.", []chain{}},
		"removals":       {"What was removed, the newest first.", []*adminv1.Removal{}},
		"receipt":        {"What one deletion has done in all deployments.", receipt{}},
		"receipts":       {"The receipts of the deletions of one request.", []receipt{}},
		"verified":       {"Receipts whose hashes are right.", []verifiedReceipt{}},
		"purged":         {"What a purge has removed.", purged{}},
	}
}
