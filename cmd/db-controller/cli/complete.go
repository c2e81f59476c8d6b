package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

const (
	// completionTimeout bounds a completion: a shell that hangs is worse than one without proposals.
	completionTimeout = 2 * time.Second
	// mostCompletions is the number of names that a completion reads.
	mostCompletions = 200
	// Many is any number of arguments.
	Many = -1
)

type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completing calls propose with a client; without an installation that answers there are no proposals. Cobra
// runs no hook of a command before it completes its arguments, so the environment and the configuration file
// are read here.
func completing(cmd *cobra.Command, propose func(ctx context.Context, c *client.Client) []string) []string {
	if err := Configure(cmd); err != nil {
		return nil
	}
	c, err := OpenClient(cmd)
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	return propose(ctx, c)
}

// CompleteNames proposes full names of resources for the first arguments: deployments first, then their
// resources.
func CompleteNames(arguments int) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if arguments != Many && len(args) >= arguments {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		proposals := completing(cmd, func(ctx context.Context, c *client.Client) []string {
			id, prefix, ok := splitName(typed)
			if !ok {
				directive |= cobra.ShellCompDirectiveNoSpace
				return deploymentNames(ctx, c, "//", "/")
			}
			return namesIn(ctx, c, id, prefix)
		})
		return proposals, directive
	}
}

// splitName splits the typed part of a full name. It reports whether the deployment is complete.
func splitName(typed string) (id schema.DeploymentID, prefix string, ok bool) {
	rest, ok := strings.CutPrefix(typed, "//")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 3 {
		return id, "", false
	}
	return schema.DeploymentID{Service: parts[0], Region: parts[1]}, parts[2], true
}

func deploymentNames(ctx context.Context, c *client.Client, before, after string) []string {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, d := range env.Deployments {
		names = append(names, before+d.String()+after)
	}
	return names
}

var errEnoughNames = errors.New("enough names")

func namesIn(ctx context.Context, c *client.Client, id schema.DeploymentID, prefix string) []string {
	query := client.Query{}
	if prefix != "" {
		query.Filter = `name = "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `*`, `\\*`).Replace(prefix) + `*"`
	}
	var names []string
	_ = direct.Each(ctx, c, id, query, func(r *resourcev1.Resource) error { // a part of the names is better than none
		if names = append(names, "//"+id.String()+"/"+r.GetName()); len(names) == mostCompletions {
			return errEnoughNames
		}
		return nil
	})
	return names
}

// CompleteDeployments proposes deployments for the first arguments.
func CompleteDeployments(arguments int) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if arguments != Many && len(args) >= arguments {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completing(cmd, func(ctx context.Context, c *client.Client) []string {
			return deploymentNames(ctx, c, "", "")
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteDeploymentAndKind proposes the deployment of the argument, and for --kind the kinds of its service.
func CompleteDeploymentAndKind(cmd *cobra.Command) {
	cmd.ValidArgsFunction = CompleteDeployments(1)
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("kind",
		func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completing(cmd, func(ctx context.Context, c *client.Client) []string {
				env, err := c.Environment(ctx)
				if err != nil {
					return nil
				}
				return kindNames(env, args)
			}), cobra.ShellCompDirectiveNoFileComp
		})
}

// kindNames are the kinds of the services of some deployments, of every service without them.
func kindNames(env *schema.Environment, deployments []string) []string {
	var names []string
	for _, d := range env.Services {
		wanted := len(deployments) == 0 || slices.ContainsFunc(deployments, func(id string) bool {
			return strings.HasPrefix(id, d.Service+"/")
		})
		for _, k := range d.Kinds {
			if wanted {
				names = append(names, k.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
