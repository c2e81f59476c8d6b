// Package cli has the parts that commands share: flags and their other sources, exit codes, output for people
// and programs, the connection to deployments, completion.
package cli

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
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
)

// Exit codes. Scripts depend on them: docs/operations.md has the table.
const (
	Failed      = 1 // none of the following: a fault, a file that cannot be read, a result that says no
	WrongUsage  = 2 // the command line, the environment or the configuration is wrong; nothing was done
	Findings    = 3 // validate --strict, scan --strict and doctor: there are findings
	Refused     = 4 // a definite answer: the same request is refused again
	Unavailable = 5 // no definite answer: the same command may succeed later
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// WithCode returns an error with an exit code.
func WithCode(code int, err error) error { return &exitError{code, err} }

// Usage returns an error about the command line or the configuration. An error in args that has a code keeps
// it.
func Usage(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if errors.As(err, new(*exitError)) {
		return err
	}
	return WithCode(WrongUsage, err)
}

// ExitCode returns the exit code for an error.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if coded := (*exitError)(nil); errors.As(err, &coded) {
		return coded.code
	}
	if errors.As(err, new(*client.UnregisteredError)) {
		return Refused
	}
	if stranded := (*direct.StrandedError)(nil); errors.As(err, &stranded) {
		if stranded.Unknown {
			return Unavailable
		}
		return Refused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Unavailable
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return Refused
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return Unavailable
	default:
		return Failed
	}
}

// answered is the error of a call, with the message and the code of its status as text.
type answered struct {
	err error
	of  schema.FullName // the resource of the call; zero: none
}

func (e *answered) Error() string {
	s, _ := status.FromError(e.err)
	message := s.Message()
	// a deployment calls its own resources by their relative names
	if e.of.Name != "" && startsWithName(message, e.of.Name) {
		message = strings.Replace(message, e.of.Name, e.of.String(), 1)
	}
	return fmt.Sprintf("%s (%s)", message, s.Code())
}

func startsWithName(message, name string) bool {
	rest, starts := strings.CutPrefix(message, name)
	return starts && (strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, ":"))
}

func (e *answered) Unwrap() error { return e.err }

// Plain shows the error of a call by its message and its code.
func Plain(err error) error { return PlainOf(schema.FullName{}, err) }

// PlainOf is Plain for a call about a resource: the message has its full name, as commands take it.
func PlainOf(name schema.FullName, err error) error {
	if err == nil || errors.As(err, new(*answered)) {
		return err
	}
	if _, ok := status.FromError(err); ok {
		return &answered{err, name}
	}
	return err
}

// Strictly makes every mistake in the arguments of a command and its subcommands an error about its usage. A
// command that only has subcommands would otherwise print its help and succeed for a misspelt one.
func Strictly(c *cobra.Command) {
	if c.HasSubCommands() && !c.Runnable() {
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return Usage("missing: a subcommand: %s", strings.Join(subcommands(cmd), ", "))
		}
		c.Args = SubcommandOf
	} else if check := c.Args; check != nil && c.HasParent() {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Usage("%w; usage: %s", err, cmd.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		Strictly(sub)
	}
}

// SubcommandOf refuses an argument of a command that only has subcommands.
func SubcommandOf(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := DidYouMean(args[0], subcommands(cmd)); near != "" {
		return Usage("%s%s", text, near)
	}
	if !cmd.HasParent() {
		return Usage("%s: db-controller help lists the commands", text)
	}
	return Usage("%s: want %s", text, strings.Join(subcommands(cmd), ", "))
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
