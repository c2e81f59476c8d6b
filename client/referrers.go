package client

import (
	"context"
	"fmt"
	"iter"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Referrer is a resource that refers to another one in a field, or that the other one owns (its path is
// @owner then).
type Referrer = resourcev1.ListReferrersResponse_Referrer

// Referrers iterates over the resources of all deployments that refer to a resource, or that it owns: first
// the referrers in its own deployment, by behaviour. Referrers that the caller may not read are left out. A
// deployment that does not answer ends the iteration with an error: its referrers are unknown.
func (c *Client) Referrers(ctx context.Context, name string) iter.Seq2[*Referrer, error] {
	return func(yield func(*Referrer, error) bool) {
		full, err := schema.ParseFullName(name)
		if err != nil {
			yield(nil, err)
			return
		}
		req := &resourcev1.ListReferrersRequest{Target: name, PageSize: maxPageSize}
		first, more, err := c.referrersAt(ctx, full.Deployment, req, yield)
		for _, at := range first.GetDeployments() {
			if !more || err != nil {
				break
			}
			var d schema.DeploymentID
			if d, err = schema.ParseDeploymentID(at); err != nil {
				break
			}
			req := &resourcev1.ListReferrersRequest{
				Target: name, TargetUid: first.GetTargetUid(),
				PageSize: maxPageSize,
			}
			if _, more, err = c.referrersAt(ctx, d, req, yield); err != nil {
				err = fmt.Errorf("the referrers in %s: %w", d, err)
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// ReferringDeployments returns the deployments, beside the resource's own one, with resources that refer to a
// resource, or that it owns. It fails with ErrNotFound.
func (c *Client) ReferringDeployments(ctx context.Context, name string) (ids []schema.DeploymentID, err error) {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return nil, err
	}
	none := func(*Referrer, error) bool { return false }
	first, _, err := c.referrersAt(ctx, full.Deployment, &resourcev1.ListReferrersRequest{Target: name, PageSize: 1},
		none)
	if err != nil {
		return nil, err
	}
	for _, at := range first.GetDeployments() {
		id, err := schema.ParseDeploymentID(at)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// referrersAt yields the referrers in one deployment, and returns its first page; more is false when the loop
// has ended.
func (c *Client) referrersAt(ctx context.Context, at schema.DeploymentID, req *resourcev1.ListReferrersRequest,
	yield func(*Referrer, error) bool,
) (first *resourcev1.ListReferrersResponse, more bool, err error) {
	req.Region, req.Latest = at.Region, isLatest(ctx)
	for {
		var page *resourcev1.ListReferrersResponse
		err := c.untilDefinite(ctx, at, "",
			func(ctx context.Context, door resourcev1.ResourceServiceClient) (err error) {
				page, err = door.ListReferrers(ctx, req)
				return err
			})
		if err != nil {
			return first, true, err
		}
		if first == nil {
			first = page
		}
		for _, r := range page.GetReferrers() {
			if !yield(r, nil) {
				return first, false, nil
			}
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return first, true, nil
		}
	}
}
