package client

import (
	"context"
	"slices"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// maxRights is the number of rights that one call may ask for.
const maxRights = 1000

// AcquireDelegations acquires the rights that a statement on a table with strict references lacked: rights
// are the lines of DETAIL of its error RD001, and at is the deployment whose database it is. Afterwards the
// transaction is repeated. It is repeated itself while deployments do not answer, until ctx ends, and fails
// at once when a target does not exist (FAILED_PRECONDITION) or may not be referred to.
func (c *Client) AcquireDelegations(ctx context.Context, at schema.DeploymentID, rights []string) error {
	for part := range slices.Chunk(rights, maxRights) {
		err := c.untilDefinite(ctx, at, "", func(ctx context.Context, door resourcev1.ResourceServiceClient) error {
			_, err := door.AcquireDelegations(ctx, &resourcev1.AcquireDelegationsRequest{
				Rights: part,
				Region: at.Region,
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
