package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func newExplain() *cobra.Command {
	cmd := resourceCommand("explain NAME", "Show why a resource is pending, or still being deleted", "  db-controller explain //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
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
				return plain(err)
			}
			out := printerOf(cmd)
			printExplanation(out, e)
			return out.document(e)
		})
	cmd.ValidArgsFunction = completeNames(1)
	return cmd
}

func printExplanation(out printer, e *adminv1.ExplainResponse) {
	state := e.GetState()
	if e.GetPending() {
		state += ", PENDING"
	}
	out.line("%s  %s  %s  uid %s", e.GetName(), e.GetKind(), state, e.GetUid())
	if len(e.GetReasons()) == 0 {
		out.line("  It waits for nothing.")
	}
	for _, r := range e.GetReasons() {
		out.line("  %-10s %s%s", r.GetType(), r.GetMessage(), sinceText(r))
		if r.GetLastError() != "" {
			out.line("  %-10s last error: %s", "", r.GetLastError())
		}
	}
}

func sinceText(r *adminv1.ExplainResponse_Reason) string {
	if r.GetSince() == nil {
		return ""
	}
	return fmt.Sprintf(", since %s", time.Since(r.GetSince().AsTime()).Round(time.Second))
}

func newBlockDeletion() *cobra.Command {
	var off bool
	cmd := resourceCommand("block-deletion NAME", "Refuse every delete of a resource until --off, for operators", "  db-controller block-deletion //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := resources.SetBlockDeletion(cmd.Context(), &resourcev1.SetBlockDeletionRequest{Name: name.Name, BlockDeletion: !off})
			if err != nil {
				return plain(err)
			}
			out := printerOf(cmd)
			if off {
				out.line("%s can be deleted again", name)
			} else {
				out.line("%s cannot be deleted until block-deletion --off", name)
			}
			return out.document(r)
		})
	cmd.Flags().BoolVar(&off, "off", false, "allow deletes again")
	cmd.ValidArgsFunction = completeNames(1)
	return cmd
}

func newSetVersion() *cobra.Command {
	cmd := resourceCommand("set-version DEPLOYMENT VERSION", "Switch a deployment to another described version of its service", "  db-controller set-version devices.example.com/eastus2 v2",
		cobra.MatchAll(cobra.ExactArgs(2), func(cmd *cobra.Command, args []string) error { return ofDeployment(cmd, args[:1]) }),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			d, err := c.SetVersion(cmd.Context(), id, args[1])
			if err != nil {
				return plain(err)
			}
			out := printerOf(cmd)
			out.line("%s switches to %s; see its progress with: db-controller status %s", id, d.GetVersion(), id)
			return out.document(map[string]string{"deployment": id.String(), "version": d.GetVersion()})
		})
	cmd.ValidArgsFunction = completeDeployments(1)
	return cmd
}
