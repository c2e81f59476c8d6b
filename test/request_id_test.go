package test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/requestid"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// A delete without an id gets one where it arrives. The answer, the record of each removal in both
// deployments, and the logs of the three processes have it, and an error of the deployment that a call is
// forwarded to has the id of the call.
func TestARequestIDFollowsADeleteThroughDeployments(t *testing.T) {
	f := newFixture(t, "--log-level", "debug")
	f.mustPut(aWest+"targets/x", fields{})
	f.mustPut(bEast+"holders/h", fields{"cascade": aWest + "targets/x"})

	_, elsewhere := f.named(aEast + "targets/x") // forwards
	var header metadata.MD
	_, err := elsewhere.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: aWest + "targets/x"},
		grpc.Header(&header))
	require.NoError(t, err)
	ids := header.Get(requestid.Header)
	require.Len(t, ids, 1)
	id, err := uuid.Parse(ids[0])
	require.NoError(t, err)
	f.gone(bEast + "holders/h")
	for _, name := range []string{aWest + "targets/x", bEast + "holders/h"} {
		admin, err := f.Client.Admin(t.Context(), f.id(name))
		require.NoError(t, err)
		found, err := admin.ListRemovals(t.Context(), &adminv1.ListRemovalsRequest{Name: name})
		require.NoError(t, err)
		require.Equal(t, id.String(), found.GetRemovals()[0].GetRequestId(), name)
	}

	for at, lines := range map[string][]string{
		aEast: {"DeleteResource"},
		aWest: {"DeleteResource", "a delete is decided"},
		bEast: {`PlanDeletion","from":"deployment/a.example.com/us-west2"`, "a deletion was acted upon"},
	} {
		for _, line := range lines {
			require.Eventually(t, func() bool {
				return f.logged(at, id.String(), line)
			}, wait.Limit, poll, "%s: no line of the request with %s", at, line)
		}
	}

	asked := uuid.NewString()
	_, err = elsewhere.GetResource(metadata.AppendToOutgoingContext(t.Context(), requestid.Header, asked),
		&resourcev1.GetResourceRequest{Name: aWest + "targets/none"})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, asked, requestInfo(err), "the deployment that the call was forwarded to has the same id")
}

// logged reports whether a line of the log of a deployment contains both.
func (f *fixture) logged(at, id, what string) bool {
	f.t.Helper()
	raw, err := os.ReadFile(f.Deployments[f.id(at+"x/y")].Log())
	require.NoError(f.t, err)
	return slices.ContainsFunc(strings.Split(string(raw), "\n"), func(line string) bool {
		return strings.Contains(line, id) && strings.Contains(line, what)
	})
}

func requestInfo(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RequestInfo); ok {
			return info.GetRequestId()
		}
	}
	return ""
}
