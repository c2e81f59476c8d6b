package operate

import (
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// Outputs are the documents of the commands of this package.
func Outputs() cli.Outputs {
	return cli.Outputs{
		"environment":  {"Regions, services, deployments and rights.", &registryv1.Environment{}},
		"services":     {"Descriptors of versions of services.", []*schemav1.ServiceDescriptor{}},
		"rights":       {"The rights by resource.", &registryv1.Rights{}},
		"deployments":  {"Deployments.", []describedDeployment{}},
		"regions":      {"Regions.", []describedRegion{}},
		"kinds":        {"Kinds of versions of services.", []describedKind{}},
		"references":   {"Declared references, and parents.", []describedReference{}},
		"history":      {"Changes of the environment, the newest first.", []*registryv1.Revision{}},
		"status":       {"The state of a deployment.", &adminv1.StatusResponse{}},
		"statuses":     {"The states of all deployments; an error where one did not answer.", []deploymentStatus{}},
		"stuck":        {"Resources and work that wait for long; an error where a deployment did not answer.", []stuckAt{}},
		"findings":     {"Problems, each with its remedy.", []finding{}},
		"verification": {"Differences between the records of deployments.", verified{}},
		"holders":      {"Who has a right on a resource.", []whoCan{}},
		"releasable":   {"Rows that tie a resource to others.", []*adminv1.Releasable{}},
		"released": {"Keys of rows that were released.", struct {
			Released []string `json:"released"`
		}{}},
		"changes": {"Changes of the environment, as text.", struct {
			Changes []string `json:"changes"`
		}{}},
		"pause": {"A pause that was begun or ended.", struct {
			Deployment string `json:"deployment"`
			Of         string `json:"of"`
			Handler    string `json:"handler,omitempty"`
			Unchanged  string `json:"unchanged,omitempty"`
		}{}},
		"retried": {"What tries again.", []retried{}},
		"waived": {"A comparison that is not waited for.", struct {
			Deployment string `json:"deployment"`
			Of         string `json:"of"`
		}{}},
		"version-set": {"The version of a deployment.", struct {
			Deployment string `json:"deployment"`
			Version    string `json:"version"`
		}{}},
		"decommission-plan": {"What a decommission would do.", struct {
			Deployment string        `json:"deployment"`
			Plan       []plannedPart `json:"plan"`
		}{}},
		"decision": {"A decision about a deployment, and the answers of the others.", struct {
			Deployment string    `json:"deployment"`
			Answers    decisions `json:"answers"`
		}{}},
		"signed": {"A file with a decision that another operator sends.", struct {
			File     string `json:"file"`
			SignedBy string `json:"signedBy"`
			Until    string `json:"until"`
		}{}},
	}
}
