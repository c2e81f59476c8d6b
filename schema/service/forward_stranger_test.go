package service_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/test/harness"
)

// A deployment that the environment does not list, or that is disabled, forwards for nobody. The refusal is
// not definite: the environment may be old.
func TestAStrangerForwardsForNobody(t *testing.T) {
	t.Parallel()
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	for what, listed := range map[string][]schema.Deployment{
		"unlisted": nil, "disabled": {{
			DeploymentID: schema.DeploymentID{Service: "a.example.com", Region: "removed"},
			Version:      "v1", Disabled: true,
		}},
	} {
		store := harness.NewBox(t, services, nil, self.String()).Stores[self]
		env := peers.New(self, nil)
		f, err := schema.ParseFile("f", strings.NewReader(writers))
		require.NoError(t, err)
		env.Update(&schema.Environment{
			Services: f.Services, Rights: f.Rights,
			Deployments: append([]schema.Deployment{{DeploymentID: self, Version: "v1"}}, listed...),
		})
		c := service.NewChannels(service.Config{Store: store, Peers: env, Logger: zap.NewNop()})
		root := resourcev1.NewResourceServiceClient(c.As(identity.Identity{Role: identity.RoleUser, Name: "root"}))
		_, err = root.PutResource(t.Context(), target("secret"))
		require.NoError(t, err)
		stranger := resourcev1.NewResourceServiceClient(
			c.As(identity.Deployment(schema.DeploymentID{Service: "a.example.com", Region: "removed"})))
		ctx := metadata.AppendToOutgoingContext(t.Context(), service.OnBehalfOf, "/user/root")
		_, err = stranger.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/secret"})
		require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", what, err)
		require.ErrorContains(t, err, "does not list it, or it is disabled")
		_, err = root.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "targets/secret"})
		require.NoError(t, err)
	}
}
