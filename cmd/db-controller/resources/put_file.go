package resources

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// all writes the resources of a file, each run of resources of one deployment in one transaction.
func (p *putting) all(cmd *cobra.Command, c *client.Client) error {
	raw, err := readInput(cmd, p.file)
	if err != nil {
		return cli.Usage("%w", err)
	}
	given, err := parseResources(p.file, raw)
	if err != nil {
		return cli.Usage("%w", err)
	}
	for _, g := range given {
		if err := p.prepare(g); err != nil {
			return cli.Usage("%w", err)
		}
	}
	var written []*resourcev1.Resource
	for len(given) > 0 {
		n := runOf(given)
		found, err := p.run(cmd, c, given[:n])
		if err != nil {
			return errors.Join(show(cmd, append(written, found...), true), fmt.Errorf("%s: %w%s", given[0],
				cli.Plain(err), p.remedy(err)))
		}
		written, given = append(written, found...), given[n:]
	}
	return show(cmd, written, true)
}

// prepare refuses a resource that cannot be written as the file has it. With --create it drops the uids and
// the revision of the former resource.
func (p *putting) prepare(g givenResource) error {
	if g.GetState() == resourcev1.Resource_STATE_DELETING {
		return fmt.Errorf(
			"%s is in DELETING in the file, which cannot be put: remove its state to write it as an active resource", g)
	}
	if p.create {
		g.Uid, g.Revision = "", 0
		for _, o := range g.GetOwnerReferences() {
			o.Uid = ""
		}
	}
	return nil
}

// remedy returns the remedy when resources of a file are refused.
func (p *putting) remedy(err error) string {
	switch code := status.Code(err); {
	case code == codes.AlreadyExists && p.create:
		return ": --create makes resources anew; without it a put replaces them"
	case code == codes.AlreadyExists:
		return ", and a put without a body would empty it: give its whole body, or 'body: {}' for none"
	case code == codes.NotFound:
		return ": the file has the uid or the revision of a former resource; put -f FILE --create makes it anew"
	}
	return ""
}

// runOf returns how many of the first resources are written together.
func runOf(given []givenResource) int {
	n := 1
	for n < len(given) && n < client.MaxBatch && given[n].id == given[0].id {
		n++
	}
	return n
}

func (p *putting) run(cmd *cobra.Command, c *client.Client, run []givenResource) ([]*resourcev1.Resource, error) {
	ctx := cmd.Context()
	resources, err := c.Resources(ctx, run[0].id)
	if err != nil {
		return nil, err
	}
	req := &resourcev1.BatchWriteResourcesRequest{}
	for _, r := range run {
		if r.Body == nil || p.create {
			req.Writes = append(req.Writes,
				&resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Create{
					Create: r.Resource,
				}})
		} else {
			req.Writes = append(req.Writes, client.PutOf(r.Resource))
		}
	}
	answer, err := resources.BatchWriteResources(ctx, req)
	if err != nil {
		return nil, err
	}
	found := answer.GetResources()
	for i, r := range found {
		if found[i], err = restoreRest(cmd, resources, run[i], r); err != nil {
			return found, fmt.Errorf("the resources are written, and not all that the file has besides: %s: %w",
				run[i], err)
		}
	}
	return found, nil
}

// restoreRest stores the fields of a file's resource that a put does not write: the protection, and a status
// if the resource has none. A status that the resource has belongs to its controllers.
func restoreRest(cmd *cobra.Command, resources resourcev1.ResourceServiceClient, given givenResource,
	r *resourcev1.Resource,
) (*resourcev1.Resource, error) {
	ctx := cmd.Context()
	if given.GetBlockDeletion() && !r.GetBlockDeletion() {
		protected, err := resources.SetBlockDeletion(ctx, &resourcev1.SetBlockDeletionRequest{
			Name: r.GetName(),
			Uid:  r.GetUid(), BlockDeletion: true,
		})
		if err != nil {
			return r, err
		}
		r = protected
	}
	switch {
	case given.GetStatus() == nil || proto.Equal(given.GetStatus(), r.GetStatus()):
	case r.GetStatus() != nil:
		cmd.PrintErrf("%s: its status is left as its controllers have reported it\n", given)
	default:
		reported, err := resources.UpdateResourceStatus(ctx, &resourcev1.UpdateResourceStatusRequest{
			Name: r.GetName(),
			Uid:  r.GetUid(), Status: given.GetStatus(),
		})
		if err != nil {
			return r, err
		}
		r = reported
	}
	return r, nil
}

// givenResource is a resource in a file.
type givenResource struct {
	*resourcev1.Resource
	id schema.DeploymentID
	at string // file:line
}

func (g givenResource) String() string { return g.at + ": " + "//" + g.id.String() + "/" + g.Name }
