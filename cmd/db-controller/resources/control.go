package resources

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// nameAndMore requires two arguments, the first of which is the full name of a resource.
func nameAndMore(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(2)(cmd, args); err != nil {
		return err
	}
	return ofResources(cobra.ExactArgs(1))(cmd, args[:1])
}

// NewRemoveFinalizer returns the command remove-finalizer.
func NewRemoveFinalizer() *cobra.Command {
	var uid string
	cmd := cli.NewDeploymentCommand("remove-finalizer NAME FINALIZER", "Let a resource in DELETING go without the clean-up that a finalizer stands for, for operators and the holder",
		"  db-controller remove-finalizer //iam.example.com/us-west2/projects/acme calendar", nameAndMore,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if uid == "" {
				found, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{Name: name.Name})
				if err != nil {
					return cli.Plain(err)
				}
				uid = found.GetUid()
			}
			r, err := resources.RemoveFinalizer(cmd.Context(), &resourcev1.RemoveFinalizerRequest{Name: name.Name, Uid: uid, Finalizer: args[1]})
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			if left := r.GetFinalizers(); len(left) > 0 {
				out.Line("%s has the finalizers %v left", name, left)
			} else {
				out.Line("%s has no finalizer left", name)
			}
			return out.Document(r)
		})
	cmd.Flags().StringVar(&uid, "uid", "", "of the resource (default: of the one that has the name now)")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

// NewSetStatus returns the command set-status.
func NewSetStatus() *cobra.Command {
	cmd := cli.NewDeploymentCommand("set-status NAME JSON", "Replace the status of a resource, and leave its body alone",
		`  db-controller set-status //iam.example.com/us-west2/projects/acme '{"phase": "ready"}'`, nameAndMore,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var fields map[string]any
			if err := json.Unmarshal([]byte(args[1]), &fields); err != nil {
				return fmt.Errorf("the status is no JSON object: %w", err)
			}
			status, err := structpb.NewStruct(fields)
			if err != nil {
				return err
			}
			r, err := resources.UpdateResourceStatus(cmd.Context(), &resourcev1.UpdateResourceStatusRequest{Name: name.Name, Status: status})
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			out.Line("%s has status generation %d", name, r.GetStatusGeneration())
			return out.Document(r)
		})
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}
