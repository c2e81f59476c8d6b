package client_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// granting is a deployment that acquires rights.
type granting struct {
	resourcev1.UnimplementedResourceServiceServer
	asked  []int
	region string
	fails  error
}

func (g *granting) AcquireDelegations(_ context.Context,
	req *resourcev1.AcquireDelegationsRequest,
) (*resourcev1.AcquireDelegationsResponse, error) {
	g.asked, g.region = append(g.asked, len(req.GetRights())), req.GetRegion()
	return &resourcev1.AcquireDelegationsResponse{}, g.fails
}

// Any number of rights is acquired, in calls of a thousand; a refusal ends them.
func TestRightsAreAcquiredInParts(t *testing.T) {
	t.Parallel()
	id := schema.DeploymentID{Service: "shop.example.com", Region: "eu"}
	server, channel := &granting{}, &inprocess.Channel{}
	resourcev1.RegisterResourceServiceServer(channel, server)
	c := client.Over(&schema.Environment{Deployments: []schema.Deployment{{DeploymentID: id}}},
		map[schema.DeploymentID]grpc.ClientConnInterface{id: channel})
	rights := make([]string, 2300)
	for i := range rights {
		rights[i] = "BLOCK //crm.example.com/eu/customers/" + strconv.Itoa(i)
	}
	require.NoError(t, c.AcquireDelegations(t.Context(), id, rights))
	require.Equal(t, []int{1000, 1000, 300}, server.asked)
	require.Equal(t, "eu", server.region)

	server.asked, server.fails = nil, because(t, codes.FailedPrecondition, "TARGET_MISSING")
	require.Equal(t, codes.FailedPrecondition, status.Code(c.AcquireDelegations(t.Context(), id, rights)))
	require.Equal(t, []int{1000}, server.asked)
}
