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
		"environment": {About: "Regions, services, deployments and rights.", Value: &registryv1.Environment{}},
		"services":    {About: "Descriptors of versions of services.", Value: []*schemav1.ServiceDescriptor{}},
		"rights":      {About: "The rights by resource.", Value: &registryv1.Rights{}},
		"deployments": {About: "Deployments.", Value: []describedDeployment{}},
		"regions":     {About: "Regions.", Value: []describedRegion{}},
		"kinds":       {About: "Kinds of versions of services.", Value: []describedKind{}},
		"references":  {About: "Declared references, and parents.", Value: []describedReference{}},
		"history":     {About: "Changes of the environment, the newest first.", Value: []*registryv1.Revision{}},
		"status":      {About: "The state of a deployment.", Value: &adminv1.StatusResponse{}},
		"statuses": {
			About: "The states of all deployments; an error where one did not answer.",
			Value: []deploymentStatus{},
		},
		"stuck": {
			About: "Resources and work that wait for long; an error where a deployment did not answer.",
			Value: []stuckAt{},
		},
		"findings":     {About: "Problems, each with its remedy.", Value: []finding{}},
		"verification": {About: "Differences between the records of deployments.", Value: verified{}},
		"holders":      {About: "Who has a right on a resource.", Value: []whoCan{}},
		"releasable":   {About: "Rows that tie a resource to others.", Value: []*adminv1.Releasable{}},
		"released": {About: "Keys of rows that were released.", Value: struct {
			Released []string `json:"released"`
		}{}},
		"changes": {About: "Changes of the environment, as text.", Value: struct {
			Changes []string `json:"changes"`
		}{}},
		"pause": {About: "A pause that was begun or ended.", Value: struct {
			Deployment string `json:"deployment"`
			Of         string `json:"of"`
			Handler    string `json:"handler,omitempty"`
			Unchanged  string `json:"unchanged,omitempty"`
		}{}},
		"retried": {About: "What tries again.", Value: []retried{}},
		"waived": {About: "A comparison that is not waited for.", Value: struct {
			Deployment string `json:"deployment"`
			Of         string `json:"comparisonOf"`
		}{}},
		"version-set": {About: "The version of a deployment.", Value: struct {
			Deployment string `json:"deployment"`
			Version    string `json:"version"`
		}{}},
		"decommission-plan": {About: "What a decommission would do.", Value: struct {
			Deployment string        `json:"deployment"`
			Plan       []plannedPart `json:"plan"`
		}{}},
		"decision": {About: "A decision about a deployment, and the answers of the others.", Value: struct {
			Deployment string    `json:"deployment"`
			Answers    decisions `json:"answers"`
		}{}},
		"signed": {About: "A file with a decision that another operator sends.", Value: struct {
			File     string `json:"file"`
			SignedBy string `json:"signedBy"`
			Until    string `json:"until"`
		}{}},
	}
}
