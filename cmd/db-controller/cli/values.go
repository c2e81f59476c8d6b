package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError is the error of wrong flags, for people.
func FlagError(cmd *cobra.Command, err error) error {
	var (
		invalid *pflag.InvalidValueError
		unknown *pflag.NotExistError
		bare    *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1:
		return Usage("%w%s", err, DidYouMean("--"+unknown.GetSpecifiedName(), flagNames(cmd)))
	case errors.As(err, &bare):
		return Usage("%w: %w", err, wanted(bare.GetFlag(), fmt.Errorf("want a %s", bare.GetFlag().Value.Type())))
	}
	if errors.As(err, &invalid) {
		err = fmt.Errorf("invalid argument %q for \"--%s\" flag: %w", invalid.GetValue(), invalid.GetFlag().Name,
			wanted(invalid.GetFlag(), invalid.Unwrap()))
	}
	return Usage("%w", err)
}

func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// wanted names the values that a flag takes, instead of the reason of the parser in the standard library.
func wanted(f *pflag.Flag, err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("the number is too large")
	}
	switch f.Value.Type() {
	case "int", "int32", "int64", "uint16", "uint32":
		return errors.New("want a whole number")
	case "float64":
		return errors.New("want a number")
	case "bool":
		return errors.New("want true or false")
	case "duration":
		return errors.New("want a duration with its unit, such as 30s or 5m")
	}
	return err
}
