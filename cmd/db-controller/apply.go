package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// readFiles reads YAML files, and reports the problems of all of them together.
func readFiles(paths []string) (*schema.File, error) {
	all := &schema.File{}
	var wrong schema.Problems
	for _, path := range paths {
		in, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		f, err := schema.ParseFile(path, in)
		_ = in.Close()
		var problems schema.Problems
		if err == nil {
			err = f.Rights.Check() // with file and line, which the registry does not know
		}
		if errors.As(err, &problems) {
			wrong = append(wrong, problems...)
			continue
		}
		if err != nil {
			return nil, err
		}
		all.Services = append(all.Services, f.Services...)
		all.Regions = append(all.Regions, f.Regions...)
		all.Deployments = append(all.Deployments, f.Deployments...)
		all.Rights = all.Rights.With(f.Rights)
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	return all, nil
}

// withoutTables returns an error for a kind with a table: scan reads it, and deployments do not attach it yet.
func withoutTables(files *schema.File) error {
	for _, d := range files.Services {
		for _, k := range d.Kinds {
			if k.Table != (schema.TableName{}) {
				return fmt.Errorf("%s kind %s has a table: this version scans such tables, and cannot attach them yet", k.Pos, k.Name)
			}
		}
	}
	return nil
}

func newApply() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply FILE...",
		Short: "Register regions, services, deployments and rights, all or nothing; print the changes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := readFiles(args)
			if err == nil {
				err = withoutTables(files)
			}
			if err != nil {
				return err
			}
			c, err := openClient(cmd)
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
			unused, err := c.UnusedPatterns(cmd.Context(), before, after)
			if err != nil {
				return err
			}
			for _, f := range unreached(given.Services, after) {
				cmd.PrintErrf("%s [%s]\n", f, f.ID)
			}
			changes, err := apply(cmd.Context(), c, files, unused)
			if err != nil {
				return err
			}
			for _, change := range changes {
				cmd.Println(change)
			}
			if len(changes) == 0 {
				cmd.Println("nothing changed")
			}
			return nil
		},
	}
	contextFlag(cmd)
	return cmd
}

// unreached are the warnings of services that lead to regions in which, as far as all files and the registry know, the service
// that they refer to is not.
func unreached(services []*schema.Descriptor, env *schema.Environment) []schema.Finding {
	return slices.DeleteFunc(schema.Lint(env.Services, env.Deployments...), func(f schema.Finding) bool {
		given := slices.ContainsFunc(services, func(d *schema.Descriptor) bool { return d.ServiceVersion == f.Of })
		return f.ID != schema.NoDeploymentInRegion || f.Acknowledged != "" || !given
	})
}

func newRemove() *cobra.Command {
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
			c, err := openClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			answer, err := c.Registry.Remove(cmd.Context(), req)
			if err != nil {
				return plain(err)
			}
			for _, change := range answer.GetChanges() {
				cmd.Println(change)
			}
			if len(answer.GetChanges()) == 0 {
				cmd.Println("nothing changed")
			}
			return nil
		},
	}
	contextFlag(cmd)
	return cmd
}

func apply(ctx context.Context, c *client.Client, files *schema.File, unused []*registryv1.UnusedPattern) ([]string, error) {
	env := wire.EnvironmentProto(&schema.Environment{Regions: files.Regions, Services: files.Services, Deployments: files.Deployments, Rights: files.Rights})
	answer, err := c.Registry.Apply(ctx, &registryv1.ApplyRequest{
		Regions: env.GetRegions(), Services: env.GetServices(), Deployments: env.GetDeployments(), PatternsUnused: unused, Rights: env.GetRights(),
	})
	if err != nil {
		return nil, plain(err)
	}
	return answer.GetChanges(), nil
}

func contextFlag(cmd *cobra.Command) {
	cmd.Flags().String("context", client.DefaultFile(), "`FILE` with the address of the registry and the folder of the certificates; db-controller dev writes the default")
	cmd.Flags().String("token-file", "", "`FILE` with the token of a user, to be used instead of the certificate")
}

func openClient(cmd *cobra.Command) (*client.Client, error) {
	path, err := cmd.Flags().GetString("context")
	if err != nil {
		return nil, err
	}
	token, err := cmd.Flags().GetString("token-file")
	if err != nil {
		return nil, err
	}
	if token != "" {
		return client.Open(path, client.WithTokenFile(token))
	}
	return client.Open(path)
}

// plain returns the message and the code of a gRPC status.
func plain(err error) error {
	if s, ok := status.FromError(err); ok {
		return fmt.Errorf("%s (%s)", s.Message(), s.Code())
	}
	return err
}
