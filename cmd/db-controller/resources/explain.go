package resources

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/internal/diagnose"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// NewExplain returns the command explain.
func NewExplain() *cobra.Command {
	cmd := cli.NewDeploymentCommand("explain NAME", "Show why a resource is pending, or still being deleted",
		"  db-controller explain //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return err
			}
			admin, err := c.Admin(cmd.Context(), name.Deployment)
			if err != nil {
				return err
			}
			e, err := admin.Explain(cmd.Context(), &adminv1.ExplainRequest{Name: name.Name})
			if err != nil {
				return cli.PlainOf(name, err)
			}
			diagnose.Deployments{Admin: c.Admin, Plain: func(err error) string {
				return cli.Plain(err).Error()
			}}.Explain(cmd.Context(), name.Deployment, e)
			out := cli.PrinterOf(cmd)
			printExplanation(out, e)
			return out.Document(e)
		})
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

func printExplanation(out cli.Printer, e *adminv1.ExplainResponse) {
	state := e.GetState()
	if e.GetPending() {
		state += ", PENDING"
	}
	uid := "uid " + e.GetUid()
	if e.GetUid() == "" {
		uid = "a row that nothing has referred to yet"
	}
	out.Line("%s  %s  %s  %s", e.GetName(), e.GetKind(), state, uid)
	if d := e.GetDeletion(); d != nil {
		so := cli.ProgressOf(d)
		out.Line("  deletion of %s, for %s: here %s%s", d.GetRoot(), cli.Ago(d.GetStartTime().AsTime()), so,
			so.Estimate())
	}
	switch {
	case len(e.GetReasons()) > 0:
	case e.GetState() == "DELETING":
		out.Line("  Nothing keeps it: it is removed in a moment.")
	default:
		out.Line("  It waits for nothing.")
		if e.GetState() == "ACTIVE" {
			out.Line("  What its delete would do, and what refuses it: plan %s", e.GetName())
		}
	}
	for _, r := range e.GetReasons() {
		out.Line("  %-10s %s%s", r.GetType(), r.GetMessage(), sinceText(r))
		if r.GetLastError() != "" {
			out.Line("  %-10s last error: %s", "", r.GetLastError())
		}
	}
	if waits := e.GetWaitsFor(); len(waits) > 0 {
		out.Line("  What happens there: status %s", strings.Join(waits[:min(len(waits), shown)], ", status "))
	}
}

// shown is how many of the deployments that a resource waits for are named with a command.
const shown = 3

func sinceText(r *adminv1.ExplainResponse_Reason) string {
	if r.GetSince() == nil {
		return ""
	}
	return fmt.Sprintf(", since %s", cli.Since(r.GetSince().AsTime()).Round(time.Second))
}

// NewBlockDeletion returns the command block-deletion.
func NewBlockDeletion() *cobra.Command {
	var off bool
	cmd := cli.NewDeploymentCommand("block-deletion NAME",
		"Refuse every delete of a resource until --off, for operators",
		"  db-controller block-deletion //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := direct.Named(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			r, err := resources.SetBlockDeletion(cmd.Context(), &resourcev1.SetBlockDeletionRequest{
				Name:          name.Name,
				BlockDeletion: !off,
			})
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			if off {
				out.Line("%s can be deleted again", name)
			} else {
				out.Line("%s cannot be deleted until block-deletion --off", name)
			}
			return out.Document(r)
		})
	cmd.Flags().BoolVar(&off, "off", false, "allow deletes again")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}
