package outcome

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
)

var (
	self  = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	other = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
)

// reasonOf returns the reason in the details of an error.
func reasonOf(t testing.TB, err error) string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			require.Equal(t, domain, info.GetDomain())
			return info.GetReason()
		}
	}
	return ""
}
