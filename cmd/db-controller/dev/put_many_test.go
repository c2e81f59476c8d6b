package dev

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

type batches struct {
	resourcev1.UnimplementedResourceServiceServer

	mu    sync.Mutex
	lost  bool  // guarded by mu; the first answer
	sizes []int // guarded by mu
}

func (b *batches) BatchWriteResources(_ context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lost {
		b.lost = true
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	b.sizes = append(b.sizes, len(req.GetWrites()))
	return &resourcev1.BatchWriteResourcesResponse{}, nil
}

// All resources are put, in batches; a batch whose answer is lost is repeated.
func TestPutManyWritesBatches(t *testing.T) {
	t.Parallel()
	served := &batches{}
	c, err := client.Open(stub.New(t, stub.Services{Resources: served}).Context)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, PutMany(t.Context(), c, stub.Deployment, "projects/p", 2*client.MaxBatch+7,
		map[string]any{"a": 1.0}))
	require.ElementsMatch(t, []int{client.MaxBatch, client.MaxBatch, 7}, served.sizes)
}
