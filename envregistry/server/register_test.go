package server

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
)

func TestARegistrationReplacesOlderOnesOnly(t *testing.T) {
	t.Parallel()
	const here, other = "here:1", "other:1"
	for name, c := range map[string]struct {
		address    string
		stored     int64
		generation int64
		want       int64 // 0: refused
	}{
		"the next generation":   {other, 3, 4, 4},
		"a later generation":    {other, 3, 9, 0},
		"the same generation":   {other, 3, 3, 0},
		"an earlier generation": {other, 3, 2, 0},
		"repeated":              {here, 4, 4, 4},
		"without a generation":  {here, 4, 0, 0},
		"the greatest one":      {other, 3, math.MaxInt64, 0},
	} {
		d := &schema.Deployment{Address: c.address, Generation: c.stored}
		err := register(d, here, c.generation)
		if c.want == 0 {
			require.ErrorIs(t, err, errSuperseded, name)
			require.Equal(t, c.address, d.Address, name)
			require.Equal(t, c.stored, d.Generation, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, here, d.Address, name)
		require.Equal(t, c.want, d.Generation, name)
	}
}

func TestErrorsHaveOneCodeEach(t *testing.T) {
	t.Parallel()
	s := &Server{log: zap.NewNop()}
	require.NoError(t, s.fail(nil))
	for code, errs := range map[codes.Code][]error{
		codes.InvalidArgument:    {schema.Problems{{Message: "bad"}}},
		codes.NotFound:           {errUnknownDeployment},
		codes.OutOfRange:         {feed.ErrReset},
		codes.Unavailable:        {feed.ErrUnnoticed},
		codes.Aborted:            {feed.ErrSlow, status.Error(codes.Aborted, "of the stream")},
		codes.FailedPrecondition: {errSuperseded, errDecommissioned},
		codes.Canceled:           {context.Canceled},
		codes.DeadlineExceeded:   {context.DeadlineExceeded},
		codes.Internal:           {errors.New("a fault")},
	} {
		for _, err := range errs {
			require.Equal(t, code, status.Code(s.fail(err)), err)
		}
	}
	require.NotContains(t, s.fail(errors.New("a secret")).Error(), "a secret")
}

func TestARemovalNamesWhatStillNeedsIt(t *testing.T) {
	t.Parallel()
	version := schema.ServiceVersion{Service: "a.example.com", Version: "v1"}
	deployment := schema.Deployment{
		DeploymentID: schema.DeploymentID{Service: "a.example.com", Region: "us-west2"},
		Version:      "v1",
	}
	environment := func() *schema.Environment {
		return &schema.Environment{
			Regions:  []string{"us-west2"},
			Services: []*schema.Descriptor{{ServiceVersion: version}}, Deployments: []schema.Deployment{deployment},
		}
	}
	err := (&removal{regions: []string{"us-west2"}, versions: []schema.ServiceVersion{version}}).from(environment())
	require.ErrorContains(t, err, "a.example.com/us-west2 has a deployment there")
	require.ErrorContains(t, err, "a.example.com/us-west2 runs a.example.com@v1")
	env := environment()
	require.NoError(t, (&removal{
		regions: []string{"us-west2"}, versions: []schema.ServiceVersion{version},
		deployments: []schema.DeploymentID{deployment.DeploymentID},
	}).from(env))
	require.Empty(t, env.Regions)
	require.Empty(t, env.Services)
	require.Empty(t, env.Deployments)
}
