package dev

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// PutMany puts prefix1, prefix2, … prefixN with one body, in batches, each of which is repeated until its
// answer is definite.
func PutMany(ctx context.Context, c *client.Client, id schema.DeploymentID, prefix string, n int,
	body map[string]any,
) error {
	s, err := structpb.NewStruct(body)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for first := 1; first <= n; first += client.MaxBatch {
		g.Go(func() error {
			var writes []*client.Write
			for i := first; i < first+client.MaxBatch && i <= n; i++ {
				writes = append(writes, client.PutOf(&resourcev1.Resource{Name: fmt.Sprint(prefix, i), Body: s}))
			}
			_, err := c.Batch(ctx, id, writes...)
			return err
		})
	}
	return g.Wait()
}
