package cli

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
)

// ContextFlag adds the flags of every command that calls servers.
func ContextFlag(cmd *cobra.Command) {
	cmd.Flags().String("context", client.DefaultFile(),
		"`FILE` with the address of the registry and the folder of the certificates; db-controller dev writes the default")
	cmd.Flags().String("token-file", "", "`FILE` with the token of a user, to be used instead of the certificate")
}

// OpenClient returns a client for the flags of ContextFlag.
func OpenClient(cmd *cobra.Command) (*client.Client, error) {
	path, err := cmd.Flags().GetString("context")
	if err != nil {
		return nil, err
	}
	token, err := cmd.Flags().GetString("token-file")
	if err != nil {
		return nil, err
	}
	var options []client.Option
	if token != "" {
		options = append(options, client.WithTokenFile(token))
	}
	c, err := client.Open(path, options...)
	if errors.Is(err, os.ErrNotExist) && !fileExists(path) {
		return nil, Usage(
			"%s does not exist: start `db-controller dev` in another terminal, or name a file with --context", path)
	}
	if err != nil {
		return nil, Usage("%w", err)
	}
	return c, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// NewDeploymentCommand returns a command that calls deployments.
func NewDeploymentCommand(use, short, example string, args cobra.PositionalArgs,
	run func(cmd *cobra.Command, c *client.Client, args []string) error,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := OpenClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return run(cmd, c, args)
		},
	}
	ContextFlag(cmd)
	OutputFlag(cmd)
	return cmd
}

// AtMostOne refuses more than one of some flags.
func AtMostOne(flags ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, _ []string) error {
		var given []string
		for _, name := range flags {
			if cmd.Flags().Changed(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return Usage("%s: want one of them", strings.Join(given, " and "))
		}
		return nil
	}
}

// OfDeployment requires one argument, the name of a deployment, before a context is read.
func OfDeployment(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	_, err := schema.ParseDeploymentID(args[0])
	return err
}
