// Package operate has the commands of operators: services and versions, certificates, the state of
// deployments.
package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/lint"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// NewApply returns the command apply.
func NewApply() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply FILE|FOLDER...",
		Short: "Register regions, services, deployments and rights, all or nothing; print the changes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := schema.ReadFiles(args)
			if err != nil {
				return err
			}
			c, err := cli.OpenClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			before, err := c.Environment(cmd.Context())
			if err != nil {
				return err
			}
			given := &schema.Environment{Services: files.Services, Deployments: files.Deployments}
			after := before.Over(given)
			if err := files.Rights.CheckKinds(after.Services); err != nil {
				return err
			}
			unused, err := direct.UnusedPatterns(cmd.Context(), c, before, after)
			if err != nil {
				return err
			}
			for _, f := range unreached(given.Services, after) {
				cmd.PrintErrf("%s [%s]\n", f, f.ID)
			}
			changes, err := apply(cmd.Context(), c, files, unused, dryRun)
			if err != nil {
				return err
			}
			if dryRun {
				defer cmd.PrintErrln("a dry run: nothing was changed")
			}
			return printChanges(cli.PrinterOf(cmd), changes)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false,
		"print what would change, also who gains and who loses which right, and change nothing")
	cli.ContextFlag(cmd)
	cli.OutputFlag(cmd)
	return cmd
}

// unreached are the warnings of services that refer to a service which, as far as all files and the registry
// know, is not in a region, or runs a version there without the target's kind.
func unreached(services []*schema.Descriptor, env *schema.Environment) []lint.Finding {
	return slices.DeleteFunc(lint.Services(env.Services, env.Deployments...), func(f lint.Finding) bool {
		given := slices.ContainsFunc(services, func(d *schema.Descriptor) bool { return d.ServiceVersion == f.Of })
		return f.ID != lint.NoDeploymentInRegion && f.ID != lint.ImportNotRun || f.Acknowledged != "" || !given
	})
}

func printChanges(out cli.Printer, changes []string) error {
	for _, change := range changes {
		out.Line("%s", change)
	}
	if len(changes) == 0 {
		out.Line("nothing changed")
	}
	return out.Document(map[string][]string{"changes": append([]string{}, changes...)})
}

// NewRemove returns the command remove.
func NewRemove() *cobra.Command {
	var ignore bool
	cmd := &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove deployments (service/region), described versions (service@version) and regions, all or nothing",
		Long: `Remove deployments (service/region), described versions (service@version) and regions, all or nothing.

Removing a deployment from the registry deletes nothing: other deployments keep its references and blockades, and wait for
it. It can be applied again. Use decommission for a deployment that will never come back.`,
		Example: `  db-controller remove iam.example.com/eastus2 devices.example.com/eastus2 eastus2
  db-controller remove iam.example.com@v1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &registryv1.RemoveRequest{}
			for _, name := range args {
				switch {
				case strings.Contains(name, "/"):
					req.Deployments = append(req.Deployments, name)
				case strings.Contains(name, "@"):
					req.Services = append(req.Services, name)
				default:
					req.Regions = append(req.Regions, name)
				}
			}
			c, err := cli.OpenClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			if !ignore {
				if err := registered(cmd.Context(), c, req); err != nil {
					return err
				}
			}
			answer, err := c.Registry().Remove(cmd.Context(), req)
			if err != nil {
				return cli.Plain(err)
			}
			return printChanges(cli.PrinterOf(cmd), answer.GetChanges())
		},
		ValidArgsFunction: cli.CompleteDeployments(cli.Many),
	}
	cli.ContextFlag(cmd)
	cli.OutputFlag(cmd)
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "succeed for names that are not registered")
	return cmd
}

// registered returns an error that names the services or versions that the registry does not have. A misspelt
// name must not look removed.
func registered(ctx context.Context, c *client.Client, req *registryv1.RemoveRequest) error {
	answer, err := c.Registry().GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{}) // not the cached one
	if err != nil {
		return cli.Plain(err)
	}
	env := wire.Environment(answer.GetEnvironment())
	var known, unknown []string
	for _, d := range env.Deployments {
		known = append(known, d.String())
	}
	for _, d := range env.Services {
		known = append(known, d.ServiceVersion.String())
	}
	known = append(known, env.Regions...)
	for _, name := range slices.Concat(req.GetDeployments(), req.GetServices(), req.GetRegions()) {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name+cli.DidYouMean(name, known))
		}
	}
	if len(unknown) > 0 {
		return cli.WithCode(cli.Refused, fmt.Errorf("not registered: %s", strings.Join(unknown, ", ")))
	}
	return nil
}

// Apply registers the contents of files, all or nothing, and returns the changes.
func Apply(ctx context.Context, c *client.Client, files *schema.File,
	unused []*registryv1.UnusedPattern,
) ([]string, error) {
	return apply(ctx, c, files, unused, false)
}

func apply(ctx context.Context, c *client.Client, files *schema.File, unused []*registryv1.UnusedPattern,
	dryRun bool,
) ([]string, error) {
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: files.Regions, Services: files.Services,
		Deployments: files.Deployments, Rights: files.Rights,
	})
	answer, err := c.Registry().Apply(ctx, &registryv1.ApplyRequest{
		Regions: env.GetRegions(), Services: env.GetServices(), Deployments: env.GetDeployments(),
		PatternsUnused: unused, Rights: env.GetRights(), ValidateOnly: dryRun,
	})
	if err != nil {
		return nil, cli.Plain(err)
	}
	return answer.GetChanges(), nil
}
