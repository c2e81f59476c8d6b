package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpAll is the flag --help-all: the help of a command with all of its flags.
const helpAll = "help-all"

// IsHelp reports whether a flag prints help, and is no setting.
func IsHelp(flag string) bool { return flag == "help" || flag == helpAll }

// Seldom keeps flags of a command that few people change out of its help, which fits a screen then.
// --help-all prints them too.
func Seldom(cmd *cobra.Command, flags ...string) {
	all := &allHelp{flags: cmd.Flags()}
	f := cmd.Flags().VarPF(all, helpAll, "", "help with all flags")
	f.NoOptDefVal, f.DefValue = "true", "false"
	cmd.InitDefaultHelpFlag()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		hidden := 0
		for _, name := range flags {
			if f := c.Flags().Lookup(name); !all.all && f != nil && !f.Hidden {
				f.Hidden = true
				hidden++
				defer func() { f.Hidden = false }()
			}
		}
		c.Root().HelpFunc()(c, args)
		if hidden > 0 {
			c.Printf("\n%s are not shown: %s --%s\n", Plural(hidden, "flag"), c.CommandPath(), helpAll)
		}
	})
}

// allHelp is the value of --help-all, which sets --help.
type allHelp struct {
	flags *pflag.FlagSet
	all   bool
}

func (h *allHelp) String() string { return "false" }
func (h *allHelp) Type() string   { return "bool" }

func (h *allHelp) Set(string) error {
	h.all = true
	return h.flags.Set("help", "true")
}
