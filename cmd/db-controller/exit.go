package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
)

// Exit codes. Scripts depend on them: docs/operations.md has the table.
const (
	exitFailed      = 1 // none of the following: a fault, a file that cannot be read, a result that says no
	exitUsage       = 2 // the command line, the environment or the configuration is wrong; nothing was done
	exitFindings    = 3 // validate --strict and scan --strict: there is something to do
	exitRefused     = 4 // a definite answer: the same request is refused again
	exitUnavailable = 5 // no definite answer: the same command may succeed later
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage returns an error about the command line or the configuration.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if coded := (*exitError)(nil); errors.As(err, &coded) {
		return coded.code
	}
	if errors.As(err, new(*client.UnregisteredError)) {
		return exitRefused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitUnavailable
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return exitRefused
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return exitUnavailable
	default:
		return exitFailed
	}
}

// answered is the error of a call, with the message and the code of its status as text.
type answered struct{ err error }

func (e *answered) Error() string {
	s, _ := status.FromError(e.err)
	return fmt.Sprintf("%s (%s)", s.Message(), s.Code())
}

func (e *answered) Unwrap() error { return e.err }

// plain shows the error of a call by its message and its code.
func plain(err error) error {
	if err == nil || errors.As(err, new(*answered)) {
		return err
	}
	if _, ok := status.FromError(err); ok {
		return &answered{err}
	}
	return err
}

// strictly makes every mistake in the arguments of a command and its subcommands an error about its usage. A command that only
// has subcommands would otherwise print its help and succeed for a misspelt one.
func strictly(c *cobra.Command) {
	if c.HasSubCommands() && !c.Runnable() {
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usage("missing: a subcommand: %s", strings.Join(subcommands(cmd), ", "))
		}
		c.Args = subcommandOf
	} else if check := c.Args; check != nil && c.HasParent() {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage("%w; usage: %s", err, cmd.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		strictly(sub)
	}
}

// subcommandOf refuses an argument of a command that only has subcommands.
func subcommandOf(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := didYouMean(args[0], subcommands(cmd)); near != "" {
		return usage("%s%s", text, near)
	}
	if !cmd.HasParent() {
		return usage("%s: db-controller help lists the commands", text)
	}
	return usage("%s: want %s", text, strings.Join(subcommands(cmd), ", "))
}

func subcommands(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	slices.Sort(names)
	return names
}
