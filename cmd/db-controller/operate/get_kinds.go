package operate

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// describedDeployment, describedRegion, describedKind and describedReference are the documents for programs.
// Names are full, as commands take them.
type (
	describedDeployment struct {
		Deployment string `json:"deployment"`
		Version    string `json:"version"`
		Address    string `json:"address,omitempty"`
		Disabled   bool   `json:"disabled,omitempty"`
	}
	describedRegion struct {
		Region      string   `json:"region"`
		Deployments []string `json:"deployments"`
	}
	describedKind struct {
		Kind       string   `json:"kind"`
		Version    string   `json:"version"`
		RunsIn     []string `json:"runsIn"`
		Patterns   []string `json:"patterns"`
		Table      string   `json:"table,omitempty"`
		Finalizers []string `json:"finalizers,omitempty"`
	}
	describedReference struct {
		Holder  string   `json:"holder"`
		Version string   `json:"version"`
		RunsIn  []string `json:"runsIn"`
		// Field is a path, or the columns of an attached table; empty for a parent, whose name begins the
		// holder's name.
		Field     string   `json:"field,omitempty"`
		Parent    bool     `json:"parent,omitempty"`
		Targets   []string `json:"targets"`
		Behaviour string   `json:"behaviour"`
		Enforce   string   `json:"enforce,omitempty"`
	}
)

// newEnvironmentCommand returns a command that shows a part of the registered environment.
func newEnvironmentCommand(use, short, example string, args cobra.PositionalArgs,
	show func(out cli.Printer, env *schema.Environment, args []string) error,
) *cobra.Command {
	cmd := cli.NewDeploymentCommand(use, short, example, args,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			return show(cli.PrinterOf(cmd), env, args)
		})
	cli.NamesToo(cmd)
	return cmd
}

// NewGetDeployments returns the command get deployments.
func NewGetDeployments() *cobra.Command {
	return newEnvironmentCommand("deployments", "Show the deployments, with the versions that they run",
		"  db-controller get deployments", cobra.NoArgs,
		func(out cli.Printer, env *schema.Environment, _ []string) error {
			all := make([]describedDeployment, len(env.Deployments))
			for i, d := range env.Deployments {
				all[i] = describedDeployment{d.DeploymentID.String(), d.Version, d.Address, d.Disabled}
			}
			printDeployments(out, env)
			return errors.Join(out.Names(deploymentNames(env)...), out.Document(all))
		})
}

// NewGetRegions returns the command get regions.
func NewGetRegions() *cobra.Command {
	return newEnvironmentCommand("regions", "Show the regions, with their deployments", "  db-controller get regions",
		cobra.NoArgs,
		func(out cli.Printer, env *schema.Environment, _ []string) error {
			all, rows := make([]describedRegion, len(env.Regions)), make([][]any, len(env.Regions))
			for i, region := range env.Regions {
				all[i] = describedRegion{region, []string{}}
				for _, d := range env.Deployments {
					if d.Region == region {
						all[i].Deployments = append(all[i].Deployments, d.DeploymentID.String())
					}
				}
				rows[i] = []any{region, strings.Join(all[i].Deployments, ",")}
			}
			out.Table("REGION DEPLOYMENTS", rows)
			return errors.Join(out.Names(env.Regions...), out.Document(all))
		})
}

// NewGetKinds returns the command get kinds.
func NewGetKinds() *cobra.Command {
	return newEnvironmentCommand("kinds [SERVICE|SERVICE@VERSION]...", "Show the kinds of services, of all by default",
		"  db-controller get kinds iam.example.com", cobra.ArbitraryArgs,
		func(out cli.Printer, env *schema.Environment, args []string) error {
			services, err := selectServices(env, args)
			if err != nil {
				return err
			}
			all, names, rows := []describedKind{}, []string{}, [][]any{}
			for _, d := range services {
				for i := range d.Kinds {
					k := &d.Kinds[i]
					one := describedKind{
						Kind: d.Service + "/" + k.Name, Version: d.Version,
						RunsIn: regionsOf(env, d.ServiceVersion), Patterns: k.Patterns,
					}
					if k.Table != (schema.TableName{}) {
						one.Table = k.Table.String()
					}
					for _, f := range k.Finalizers {
						one.Finalizers = append(one.Finalizers, f.Name)
					}
					all = append(all, one)
					if !slices.Contains(names, one.Kind) { // several versions have it
						names = append(names, one.Kind)
					}
					rows = append(rows, []any{
						one.Kind, one.Version, strings.Join(one.RunsIn, ","),
						strings.Join(one.Patterns, ","), one.Table,
					})
				}
			}
			out.Table("KIND VERSION RUNS_IN PATTERNS TABLE", rows)
			return errors.Join(out.Names(names...), out.Document(all))
		})
}

// NewGetReferences returns the command get references.
func NewGetReferences() *cobra.Command {
	return newEnvironmentCommand("references [SERVICE|SERVICE@VERSION]...",
		"Show which kinds refer to which, of all services by default",
		"  db-controller get references devices.example.com", cobra.ArbitraryArgs,
		func(out cli.Printer, env *schema.Environment, args []string) error {
			services, err := selectServices(env, args)
			if err != nil {
				return err
			}
			all := []describedReference{}
			for _, d := range services {
				all = append(all, referencesOf(d, regionsOf(env, d.ServiceVersion))...)
			}
			rows := make([][]any, len(all))
			for i, r := range all {
				field := r.Field
				if r.Parent {
					field = "(parent)"
				}
				rows[i] = []any{
					r.Holder, r.Version, field, strings.Join(r.Targets, ","), r.Behaviour,
					strings.Join(r.RunsIn, ","),
				}
			}
			out.Table("HOLDER VERSION FIELD TARGETS BEHAVIOUR RUNS_IN", rows)
			names := []string{}
			for _, r := range all {
				if !slices.Contains(names, r.Holder) {
					names = append(names, r.Holder)
				}
			}
			return errors.Join(out.Names(names...), out.Document(all))
		})
}

// referencesOf returns the references of a descriptor, and the parents of its kinds.
func referencesOf(d *schema.Descriptor, runsIn []string) (out []describedReference) {
	full := func(targets ...string) []string {
		all := make([]string, len(targets))
		for i, t := range targets {
			all[i] = t
			if id, err := d.KindID(t); err == nil {
				all[i] = id.String()
			}
		}
		return all
	}
	for i := range d.Kinds {
		k := &d.Kinds[i]
		holder := d.Service + "/" + k.Name
		for _, p := range k.Parents {
			out = append(out, describedReference{
				Holder: holder, Version: d.Version, RunsIn: runsIn, Parent: true,
				Targets: full(p.Kind), Behaviour: p.Behaviour.String(),
			})
		}
		for n := range k.References {
			r := &k.References[n]
			one := describedReference{
				Holder: holder, Version: d.Version, RunsIn: runsIn, Field: r.Field(),
				Targets: full(r.Targets...), Behaviour: r.Behaviour.String(),
			}
			if len(r.Columns) > 0 {
				one.Enforce = string(cmp.Or(r.Enforce, schema.EnforceAsync))
			}
			out = append(out, one)
		}
	}
	return out
}
