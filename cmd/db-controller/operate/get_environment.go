package operate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// NewGetEnvironment returns the command get environment.
func NewGetEnvironment() *cobra.Command {
	return cli.NewDeploymentCommand("environment",
		"Show regions, services, deployments and rights as they are registered; -o yaml writes a file for apply",
		"  db-controller get environment -o yaml > environment.yaml", cobra.NoArgs,
		func(cmd *cobra.Command, c *client.Client, _ []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			printDeployments(out, env)
			out.Line("")
			printServices(out, env.Services, env)
			out.Line("")
			printGrants(out, env.Rights)
			return writeBack(out, &schema.File{
				Services: env.Services, Regions: env.Regions,
				Deployments: declaredDeployments(env), Rights: env.Rights,
			}, wire.EnvironmentProto(env))
		})
}

// NewGetServices returns the command get services.
func NewGetServices() *cobra.Command {
	cmd := cli.NewDeploymentCommand("services [SERVICE|SERVICE@VERSION]...",
		"Show the descriptors of services, of all by default; -o yaml writes a file for apply",
		"  db-controller get services iam.example.com@v2 -o yaml", cobra.ArbitraryArgs,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			found, err := selectServices(env, args)
			if err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			printServices(out, found, env)
			names := make([]string, len(found))
			for i, d := range found {
				names[i] = d.ServiceVersion.String()
			}
			return errors.Join(out.Names(names...), writeBack(out, &schema.File{Services: found},
				cli.Messages(wire.EnvironmentProto(&schema.Environment{Services: found}).GetServices())))
		})
	cli.NamesToo(cmd)
	return cmd
}

// selectServices returns the descriptors of services, or versions of services; all of them by default.
func selectServices(env *schema.Environment, args []string) ([]*schema.Descriptor, error) {
	var known []string
	for _, d := range env.Services {
		known = append(known, d.Service, d.ServiceVersion.String())
	}
	for _, arg := range args {
		if !slices.Contains(known, arg) {
			return nil, cli.WithCode(cli.Refused, cli.Usage("not registered: %s%s", arg, cli.DidYouMean(arg, known)))
		}
	}
	return slices.DeleteFunc(slices.Clone(env.Services), func(d *schema.Descriptor) bool {
		return len(args) > 0 && !slices.Contains(args, d.Service) && !slices.Contains(args, d.ServiceVersion.String())
	}), nil
}

// regionsOf returns the regions in which a version of a service runs.
func regionsOf(env *schema.Environment, v schema.ServiceVersion) []string {
	regions := []string{}
	for _, at := range env.Deployments {
		if at.Service == v.Service && at.Version == v.Version {
			regions = append(regions, at.Region)
		}
	}
	return regions
}

// NewGetRights returns the command get rights.
func NewGetRights() *cobra.Command {
	return cli.NewDeploymentCommand("rights", "Show the rights by resource; -o yaml writes a file for apply",
		"  db-controller get rights -o yaml > rights.yaml", cobra.NoArgs,
		func(cmd *cobra.Command, c *client.Client, _ []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			printGrants(out, env.Rights)
			return writeBack(out, &schema.File{Rights: env.Rights}, proto.Message(wire.RightsProto(env.Rights)))
		})
}

// currentEnvironment reads the environment from the registry, and not from the client's cache: an operator
// has to compare with the present state.
func currentEnvironment(cmd *cobra.Command, c *client.Client) (*schema.Environment, error) {
	answer, err := c.Registry().GetEnvironment(cmd.Context(), &registryv1.GetEnvironmentRequest{})
	if err != nil {
		return nil, cli.Plain(err)
	}
	if answer.GetOwnGrantsOnly() {
		cmd.PrintErrln("the grants are your own: an operator sees all of them")
	}
	if answer.GetIncomplete() {
		cmd.PrintErrln(
			"the registry was restored or failed over: deployments may be missing until all are applied again")
	}
	return wire.Environment(answer.GetEnvironment()), nil
}

// writeBack writes YAML that apply takes, or another document for JSON.
func writeBack(out cli.Printer, f *schema.File, document any) error {
	if out.Format == "yaml" {
		return schema.WriteFile(out.Out, f)
	}
	return out.Document(document)
}

// declaredDeployments leaves out the addresses that processes have registered: applied again later, they
// would replace newer ones.
func declaredDeployments(env *schema.Environment) []schema.Deployment {
	out := slices.Clone(env.Deployments)
	for i := range out {
		if out[i].Generation > 0 {
			out[i].Address = ""
		}
	}
	return out
}

func printDeployments(out cli.Printer, env *schema.Environment) {
	rows := make([][]any, len(env.Deployments))
	for i, d := range env.Deployments {
		state := "enabled"
		if d.Disabled {
			state = "disabled"
		}
		rows[i] = []any{d.DeploymentID, d.Version, d.Address, state}
	}
	out.Table("DEPLOYMENT VERSION ADDRESS STATE", rows)
}

func printServices(out cli.Printer, services []*schema.Descriptor, env *schema.Environment) {
	rows := make([][]any, len(services))
	for i, d := range services {
		kinds := make([]string, len(d.Kinds))
		for k := range d.Kinds {
			kinds[k] = d.Kinds[k].Name
		}
		rows[i] = []any{d.ServiceVersion, strings.Join(kinds, ","), strings.Join(regionsOf(env, d.ServiceVersion), ",")}
	}
	out.Table("SERVICE KINDS RUNS_IN", rows)
}

func quotaNumbers(q schema.Quota) string {
	var numbers []string
	if q.Blocking > 0 {
		numbers = append(numbers, fmt.Sprintf("blocking %d", q.Blocking))
	}
	if q.Tentative > 0 {
		numbers = append(numbers, fmt.Sprintf("tentative %d", q.Tentative))
	}
	return strings.Join(numbers, ", ")
}

func printGrants(out cli.Printer, rights *schema.Rights) {
	if rights == nil {
		out.Line("no rights are declared: users can read, write and delete nothing; operators have all rights")
		return
	}
	switch {
	case rights.Deny:
		out.Line("default: deny")
	case rights.Allow:
		out.Line("default: allow")
	}
	if rights.CascadeNeedsDelete {
		out.Line("cascade_needs_delete: true")
	}
	if rights.MaxRemovals > 0 {
		out.Line("max_removals: %d", rights.MaxRemovals)
	}
	if len(rights.TwoOperators) > 0 {
		out.Line("two_operators: %s", strings.Join(rights.TwoOperators, ", "))
	}
	for _, q := range rights.Quotas {
		out.Line("quota of %s for references to %s: %s", q.Holders, q.Targets, quotaNumbers(q))
	}
	rows := make([][]any, len(rights.Grants))
	for i, g := range rights.Grants {
		h := grant.HolderOf(g)
		rows[i] = []any{h.Who, h.Verbs, h.On}
	}
	for _, o := range rights.Operators {
		at := "all deployments"
		if len(o.Deployments) > 0 {
			at = strings.Join(o.Deployments, ", ")
		}
		verbs := make([]string, len(o.Verbs))
		for i, v := range o.Verbs {
			verbs[i] = string(v)
		}
		rows = append(rows, []any{o.Identity, strings.Join(verbs, ", "), at})
	}
	out.Table("WHO VERBS ON", rows)
}
