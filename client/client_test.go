package client_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/test/stub"
)

func TestTheClientKnowsTheLimitOfABatch(t *testing.T) {
	require.Equal(t, service.MaxBatch, client.MaxBatch)
}

// resources lists 25 resources in pages of ten, counts puts, and returns a resource for its first few reads
// only.
type resources struct {
	resourcev1.UnimplementedResourceServiceServer

	mu      sync.Mutex
	batches []int // guarded by mu; sizes
	reads   int   // guarded by mu; of GetResource
}

func (r *resources) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	first, _ := strconv.Atoi(req.GetPageToken())
	answer := &resourcev1.ListResourcesResponse{}
	for i := first; i < min(first+10, 25); i++ {
		answer.Resources = append(answer.Resources, &resourcev1.Resource{Name: fmt.Sprint("projects/p", i)})
	}
	if first+10 < 25 {
		answer.NextPageToken = strconv.Itoa(first + 10)
	}
	return answer, nil
}

func (r *resources) BatchWriteResources(_ context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches = append(r.batches, len(req.GetWrites()))
	return &resourcev1.BatchWriteResourcesResponse{}, nil
}

func (r *resources) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.reads++; r.reads {
	case 1:
		return &resourcev1.Resource{Name: req.GetName(), Uid: "first"}, nil
	case 2:
		return nil, status.Error(codes.Unavailable, "retry")
	case 3:
		return &resourcev1.Resource{Name: req.GetName(), Uid: "second"}, nil
	default:
		return nil, status.Error(codes.NotFound, "not found")
	}
}

func open(t *testing.T, i *stub.Installation) *client.Client {
	t.Helper()
	c, err := client.Open(i.Context)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestListReadsAllPages(t *testing.T) {
	t.Parallel()
	c := open(t, stub.New(t, stub.Services{Resources: &resources{}}))
	var names []string
	for r, err := range c.List(t.Context(), stub.Deployment, client.Query{}) {
		require.NoError(t, err)
		names = append(names, r.GetName())
	}
	require.Len(t, names, 25)
	require.Equal(t, "projects/p24", names[24])
}

// A resource of the same name and another uid is another resource.
func TestWaitGoneWaitsForOneIncarnation(t *testing.T) {
	t.Parallel()
	served := &resources{}
	c := open(t, stub.New(t, stub.Services{Resources: served}))
	require.NoError(t, c.WaitGone(t.Context(), "//"+stub.Deployment.String()+"/projects/p", "first", nil))
	require.Equal(t, 3, served.reads)
}

func TestAnUnregisteredDeploymentIsAnErrorThatNamesTheRegisteredOnes(t *testing.T) {
	t.Parallel()
	c := open(t, stub.New(t, stub.Services{}))
	_, err := c.Resources(t.Context(), schema.DeploymentID{Service: "iam.example.com", Region: "mars"})
	require.EqualError(t, err,
		"deployment iam.example.com/mars is not registered; known deployments: iam.example.com/us-west2")
}

// A deployment can be reached while the registry is down, once its address was read.
func TestTheEnvironmentIsCachedInAFile(t *testing.T) {
	t.Parallel()
	i := stub.New(t, stub.Services{Resources: &resources{}})
	first := open(t, i)
	_, err := first.Environment(t.Context())
	require.NoError(t, err)
	i.StopRegistry()
	c := open(t, i)
	_, err = c.Get(t.Context(), "//"+stub.Deployment.String()+"/projects/p")
	require.NoError(t, err)
	// A file that names no deployment says nothing: that a deployment is not registered would be a definite
	// answer.
	require.NoError(t, os.WriteFile(i.Context+".environment", nil, 0o600))
	_, err = open(t, i).Environment(t.Context())
	require.ErrorContains(t, err, "the registry "+i.RegistryAddress+" cannot be reached: ")
	require.NoError(t, os.Remove(i.Context+".environment"))
	_, err = open(t, i).Environment(t.Context())
	require.ErrorContains(t, err, "the registry "+i.RegistryAddress+" cannot be reached: ")
}

func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := client.Open(filepath.Join(dir, "missing.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	unknown := filepath.Join(dir, "unknown.yaml")
	require.NoError(t, os.WriteFile(unknown, []byte("registry: localhost:1\ncert: x\n"), 0o600))
	_, err = client.Open(unknown)
	require.ErrorContains(t, err,
		`unknown.yaml: line 2: unknown key "cert": known are registry, certs, token_file, region`)
}
