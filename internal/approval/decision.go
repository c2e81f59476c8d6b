package approval

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// Decision returns the one of schema.Decisions that a request is a part of; empty for a request that changes
// nothing.
func Decision(req Request) string {
	switch r := req.(type) {
	case *adminv1.DecommissionRequest:
		if r.GetValidateOnly() {
			return ""
		}
		return "decommission"
	case *registryv1.DecommissionDeploymentRequest, *adminv1.AcceptDatabaseRequest, *registryv1.AcceptDatabaseRequest:
		return "decommission"
	case *adminv1.ForceReleaseRequest, *adminv1.WaiveComparisonRequest:
		return "force-release"
	}
	return ""
}

// Missing is the error of a decision that needs an approval and has none.
func Missing(decision string) error {
	return status.Errorf(codes.PermissionDenied,
		"%s needs two operators here: sign it with --propose FILE, and let another operator send it with --approve FILE", decision)
}

// Proof adds the operator who has signed a request to the proof of the sender's identity.
func Proof(sender string, signedBy identity.Identity) string {
	return sender + ", signed by " + signedBy.String()
}
