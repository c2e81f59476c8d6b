package resources

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
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
	cmd := cli.NewDeploymentCommand("remove-finalizer NAME FINALIZER",
		"Let a resource in DELETING go without the clean-up that a finalizer stands for, for operators and the holder",
		"  db-controller remove-finalizer //iam.example.com/us-west2/projects/acme calendar", nameAndMore,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := direct.Named(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if uid == "" {
				found, err := resources.GetResource(cmd.Context(), &resourcev1.GetResourceRequest{
					Name:   name.Name,
					Latest: true,
				})
				if err != nil {
					return cli.PlainOf(name, err)
				}
				if has := found.GetFinalizers(); found.GetState() == resourcev1.Resource_STATE_DELETING &&
					!slices.Contains(has, args[1]) {
					return cli.WithCode(cli.Refused, fmt.Errorf("%s has no finalizer %s; those that it has: %s", name,
						args[1], cmp.Or(strings.Join(has, ", "), "none")))
				}
				uid = found.GetUid()
			}
			r, err := resources.RemoveFinalizer(cmd.Context(), &resourcev1.RemoveFinalizerRequest{
				Name: name.Name,
				Uid:  uid, Finalizer: args[1],
			})
			if err != nil {
				return cli.PlainOf(name, err)
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
	var file string
	cmd := cli.NewDeploymentCommand("set-status NAME [STATUS]",
		"Replace the status of a resource, and leave its body alone; the status is JSON or YAML, in the argument or a file",
		`  db-controller set-status //iam.example.com/us-west2/projects/acme '{"phase": "ready"}'
  db-controller set-status //iam.example.com/us-west2/projects/acme -f status.yaml`, nameAndStatus,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			fields, err := readBody(cmd, "status", args[1:], file)
			if err == nil && fields == nil {
				err = errors.New("give the status as an argument or in a file: '{}' for one without fields")
			}
			if err != nil {
				return cli.Usage("%w", err)
			}
			name, resources, err := direct.Named(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			r, err := resources.UpdateResourceStatus(cmd.Context(),
				&resourcev1.UpdateResourceStatusRequest{Name: name.Name, Status: fields})
			if err != nil {
				return cli.PlainOf(name, err)
			}
			out := cli.PrinterOf(cmd)
			out.Line("%s has status generation %d", name, r.GetStatusGeneration())
			return errors.Join(out.Names(name.String()), out.Document(r))
		})
	cli.NamesToo(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the status; - for standard input")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

func nameAndStatus(cmd *cobra.Command, args []string) error {
	if err := cobra.RangeArgs(1, 2)(cmd, args); err != nil {
		return err
	}
	return ofResources(cobra.ExactArgs(1))(cmd, args[:1])
}
