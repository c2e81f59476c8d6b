package operate

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
)

// NewWhoCan returns the command who-can.
func NewWhoCan() *cobra.Command {
	cmd := cli.NewDeploymentCommand("who-can VERB NAME", "Show who has a right on a resource, and by which grant",
		"  db-controller who-can delete //iam.example.com/us-west2/projects/acme",
		func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage("want a verb and the full name of a resource")
			}
			if !slices.Contains(schema.Verbs, schema.Verb(args[0])) {
				return cli.Usage("verb %q: want one of %s", args[0], strings.Join(verbNames(), ", "))
			}
			_, err := schema.ParseFullName(args[1])
			return err
		},
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, err := schema.ParseFullName(args[1])
			if err != nil {
				return err
			}
			env, err := currentEnvironment(cmd, c)
			if err != nil {
				return err
			}
			if _, listed := env.Deployment(name.Deployment); !listed {
				return &client.UnregisteredError{Deployment: name.Deployment, Known: deploymentNames(env)}
			}
			holders, open := grant.Holders(env, schema.Verb(args[0]), name)
			limited := env.Rights != nil && len(env.Rights.Operators) > 0
			return printHolders(cli.PrinterOf(cmd), schema.Verb(args[0]), holders, open, limited)
		})
	cmd.Long = `Show who has a right on a resource, whether or not that exists, and by which grant. Operators have every right that
their limits leave them. An authorization service can deny more, and is not asked.`
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return verbNames(), cobra.ShellCompDirectiveNoFileComp
		}
		return cli.CompleteNames(1)(cmd, args[1:], typed)
	}
	return cmd
}

// whoCan is a holder of a right, and the grant by which.
type whoCan struct {
	Who string `json:"who"`
	By  string `json:"by"`
}

func printHolders(out cli.Printer, verb schema.Verb, holders []grant.Holder, open, limited bool) error {
	rows := []whoCan{}
	if !limited {
		rows = append(rows, whoCan{"operators", "their certificates" + asUser(verb, "the users of the same names")})
	}
	if open {
		rows = append(rows, whoCan{"everybody", "the default: allow"})
	}
	for _, h := range holders {
		if h.Limits {
			rows = append(rows,
				whoCan{h.Who, "the limits of operators" + asUser(verb, strings.Replace(h.Who, "operator/",
					"user/", 1))})
			continue
		}
		rows = append(rows, whoCan{h.Who, "the grant of " + h.Verbs + " on " + h.On})
	}
	table := make([][]any, len(rows))
	for i, r := range rows {
		table[i] = []any{r.Who, r.By}
	}
	out.Table("WHO BY", table)
	return out.Document(rows)
}

// asUser adds whose rights count in references of other deployments: none speaks for an operator.
func asUser(verb schema.Verb, who string) string {
	if verb != schema.Refer {
		return ""
	}
	return "; in references of other deployments as " + who
}

func verbNames() []string {
	names := make([]string, len(schema.Verbs))
	for i, v := range schema.Verbs {
		names[i] = string(v)
	}
	return names
}
