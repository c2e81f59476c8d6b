package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// strandsNothing returns an error when a deployment stores resources that its next version does not describe: the version
// lacks their kind or the pattern of their names, and does not keep them (patterns_dropped). It returns an error as well when
// such a deployment does not answer.
func strandsNothing(ctx context.Context, c *client.Client, before, after *schema.Environment) error {
	var stranded schema.Problems
	for _, d := range after.Deployments {
		was, known := before.Deployment(d.DeploymentID)
		if !known || was.Generation == 0 && was.Address == "" {
			continue // it never ran
		}
		from, err := before.Model(d.DeploymentID)
		to, terr := after.Model(d.DeploymentID)
		if err != nil || terr != nil || to.Descriptor.PatternsDropped == "keep" {
			continue // the registry reports the problem
		}
		for _, name := range from.KindNames() {
			kind, err := from.Kind(name)
			if err != nil {
				return err
			}
			dropped := kind.Dropped(to)
			if len(dropped) == 0 {
				continue
			}
			found, err := first(ctx, c, d.DeploymentID, name, dropped)
			message := fmt.Sprintf("%s has no place for %s", to.Descriptor.ServiceVersion, found)
			switch {
			case err != nil:
				message = fmt.Sprintf("%s has no pattern %s of kind %s, and %s does not answer whether it stores such resources: %v", to.Descriptor.ServiceVersion, dropped[0], name, d.DeploymentID, plain(err))
			case found == "":
				continue
			}
			stranded = append(stranded, schema.Problem{Pos: to.Descriptor.Pos, Message: message,
				Remedy: "delete them, or describe the version with patterns_dropped: keep, so that they can be read and deleted"})
		}
	}
	if len(stranded) > 0 {
		return stranded
	}
	return nil
}

var errFound = errors.New("found")

// first returns the name of a stored resource of a kind that matches one of the patterns; empty: there is none.
func first(ctx context.Context, c *client.Client, of schema.DeploymentID, kind string, patterns []schema.Pattern) (found string, err error) {
	for _, p := range patterns {
		q := client.Query{Kind: kind, Filter: fmt.Sprintf("name = %q", p.Shape())}
		err := c.Each(ctx, of, q, func(r *resourcev1.Resource) error {
			if !slices.ContainsFunc(patterns, func(p schema.Pattern) bool { return p.Match(r.GetName()) }) {
				return nil
			}
			found = schema.FullName{Deployment: of, Name: r.GetName()}.String()
			return errFound
		})
		if err != nil && !errors.Is(err, errFound) {
			return "", err
		}
		if found != "" {
			return found, nil
		}
	}
	return "", nil
}
