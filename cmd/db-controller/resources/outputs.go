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
		"resource":  {About: "A resource. Names in it are full.", Value: &resourcev1.Resource{}},
		"resources": {About: "Resources.", Value: []*resourcev1.Resource{}},
		"total":     {About: "A number of resources.", Value: total{}},
		"event": {
			About: "One line of watch: a resource that is there, a resource that is gone, the end of the snapshot, or a bookmark.", Value: &resourcev1.WatchResourcesResponse{},
		},
		"deleted": {About: "The deletion of one resource.", Value: deleted{}},
		"deleted-all": {
			About: "The deletions of several resources, in the order of their names in the call.",
			Value: []deleted{},
		},
		"plan":        {About: "The effect of a delete, and what keeps the names of the resources.", Value: plan},
		"plans":       {About: "The effects of the deletes in several deployments.", Value: []any{plan}},
		"explanation": {About: "Why a resource is pending, or in DELETING.", Value: &adminv1.ExplainResponse{}},
		"referrers": {
			About: "Resources that refer to a resource, or that it owns (the behaviour owned).",
			Value: []referrer{},
		},
		"removal-chains": {
			About: "The removals of a name, the newest first, each with its causes up to the root.",
			Value: []chain{},
		},
		"removals": {About: "What was removed, the newest first.", Value: []*adminv1.Removal{}},
		"receipt":  {About: "What one deletion has done in all deployments.", Value: receipt{}},
		"receipts": {About: "The receipts of the deletions of one request.", Value: []receipt{}},
		"verified": {About: "Receipts whose hashes are right.", Value: []verifiedReceipt{}},
		"purged":   {About: "What a purge has removed.", Value: purged{}},
	}
}
