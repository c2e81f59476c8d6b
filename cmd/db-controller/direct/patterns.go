package direct

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// StrandedError has stored resources for whose names the next versions of their deployments have no pattern,
// and deployments that do not answer whether they store any.
type StrandedError struct {
	Problems schema.Problems
	// Unknown: none was found, and a deployment does not answer for now.
	Unknown bool
}

func (e *StrandedError) Error() string { return e.Problems.Error() }

// UnusedPatterns asks the deployments about the name patterns that their versions in next lack, and returns
// those with no stored resource, for Apply and SetDeploymentVersion. It fails with *StrandedError when a
// deployment stores such resources, and its next version does not keep them, or when it does not answer.
func UnusedPatterns(ctx context.Context, c *client.Client, present,
	next *schema.Environment,
) (unused []*registryv1.UnusedPattern, err error) {
	stranded := &StrandedError{Unknown: true}
	for _, d := range next.Deployments {
		if present.SameVersion(next, d.DeploymentID) {
			continue
		}
		dropped, err := present.Dropped(next, d.DeploymentID)
		if err != nil {
			continue // the registry reports the problem
		}
		for _, p := range dropped {
			problem, definite := problemOf(ctx, c, p)
			if problem != "" {
				stranded.Unknown = stranded.Unknown && !definite
				stranded.Problems = append(stranded.Problems, schema.Problem{
					Pos: p.Pos, Message: problem,
					Remedy: "delete them, or describe the version with patterns_dropped: keep, so that they can be read and deleted",
				})
				continue
			}
			unused = append(unused, &registryv1.UnusedPattern{
				Service: p.Deployment.Service, Region: p.Deployment.Region, Kind: p.Kind, Pattern: p.Pattern.String(),
			})
		}
	}
	if len(stranded.Problems) > 0 {
		return nil, stranded
	}
	return unused, nil
}

// SetVersion switches a deployment to another described version, after it has asked the deployment about the
// patterns that the version lacks.
func SetVersion(ctx context.Context, c *client.Client, id schema.DeploymentID,
	version string,
) (*registryv1.Deployment, error) {
	present, err := c.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	unused, err := UnusedPatterns(ctx, c, present,
		present.Over(&schema.Environment{Deployments: []schema.Deployment{{DeploymentID: id, Version: version}}}))
	if err != nil {
		return nil, err
	}
	return c.Registry().SetDeploymentVersion(ctx, &registryv1.SetDeploymentVersionRequest{
		Service: id.Service,
		Region:  id.Region, Version: version, PatternsUnused: unused,
	})
}

// problemOf returns the problem with a dropped pattern, empty without one, and whether the same question
// would have it again.
func problemOf(ctx context.Context, c *client.Client, p schema.DroppedPattern) (problem string, definite bool) {
	found, err := first(ctx, c, p)
	switch {
	case err != nil:
		return fmt.Sprintf(
				"%s has no pattern %s of kind %s, and %s does not answer whether it stores such resources: %s",
				p.By, p.Pattern, p.Kind, p.Deployment, status.Convert(err).Message()), status.Code(
				err) == codes.PermissionDenied
	case found != "":
		return fmt.Sprintf("%s has no kind or pattern for %s", p.By, schema.FullName{
			Deployment: p.Deployment,
			Name:       found,
		}), true
	}
	return "", false
}

var errFound = errors.New("found")

// first returns the name of a stored resource that matches a pattern; empty: there is none.
func first(ctx context.Context, c *client.Client, p schema.DroppedPattern) (found string, err error) {
	q := client.Query{Kind: p.Kind, Filter: fmt.Sprintf("name = %q", p.Pattern.Shape())}
	err = Each(ctx, c, p.Deployment, q, func(r *resourcev1.Resource) error {
		if !p.Pattern.Match(r.GetName()) {
			return nil
		}
		found = r.GetName()
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return found, err
}
