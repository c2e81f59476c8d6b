// Package direct calls one deployment, once: without the repetitions and the other doors of package client,
// since a person who runs a command wants the answer of the deployment that was named.
package direct

import (
	"context"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// pageSize is the number of resources in a page at most.
const pageSize = 1000

// Named parses a full name, and returns the ResourceService of its deployment.
func Named(ctx context.Context, c *client.Client,
	full string,
) (schema.FullName, resourcev1.ResourceServiceClient, error) {
	name, err := schema.ParseFullName(full)
	if err != nil {
		return name, nil, err
	}
	resources, err := c.Resources(ctx, name.Deployment)
	return name, resources, err
}

// Each calls visit for every resource of a deployment that matches the query.
func Each(ctx context.Context, c *client.Client, id schema.DeploymentID, q client.Query,
	visit func(*resourcev1.Resource) error,
) error {
	resources, err := c.Resources(ctx, id)
	if err != nil {
		return err
	}
	for token := ""; ; {
		page, err := resources.ListResources(ctx, &resourcev1.ListResourcesRequest{
			Kind: q.Kind, Filter: q.Filter, OrderBy: q.OrderBy, Region: id.Region, PageSize: pageSize, PageToken: token,
		})
		if err != nil {
			return err
		}
		for _, r := range page.GetResources() {
			if err := visit(r); err != nil {
				return err
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}
