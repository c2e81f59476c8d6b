package operate

import (
	"context"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// checkListed refuses the name of another deployment that the environment does not list: a decision about a
// misspelt one would be stored, and have no effect. An empty name stands for all.
func checkListed(ctx context.Context, c *client.Client, flag, name string) error {
	if name == "" {
		return nil
	}
	id, err := schema.ParseDeploymentID(name)
	if err != nil {
		return cli.Usage("--%s: %w", flag, err)
	}
	env, err := c.Environment(ctx)
	if err != nil {
		return err
	}
	if _, listed := env.Deployment(id); !listed {
		return &client.UnregisteredError{Deployment: id, Known: deploymentNames(env)}
	}
	return nil
}

// deploymentNames lists the deployments of an environment.
func deploymentNames(env *schema.Environment) []string {
	names := make([]string, len(env.Deployments))
	for i, d := range env.Deployments {
		names[i] = d.String()
	}
	return names
}
