package cli

import (
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewConfigCommand returns the command config, which prints the schemas of the documents that commands print.
func NewConfigCommand(outputs Outputs) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration that a command has, and describe the file of --config",
		Long: `A flag is set, in this order of precedence, by the command line, by the environment (--log-level by DBCONTROLLER_LOG_LEVEL), and
by the YAML file that --config or DBCONTROLLER_CONFIG names. In the file, a section has the settings of one command, and the
keys beside the sections those of every command that has such a flag:

  log-level: debug
  serve:
    deployment: iam.example.com/us-west2
    postgres-file: /run/secrets/postgres
    max-blocking: null      # the default
  migrate:
    set: deployment

A key that no command knows is an error, and so is a variable whose name is similar to a known one.`,
	}
	cmd.AddCommand(newConfigPrint(), newConfigSchema(outputs))
	return cmd
}

// configured is a flag with its value for programs.
type configured struct {
	Flag   string `json:"flag"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	// Reload is how a change reaches a process that runs: SIGHUP, followed or restart; empty for commands
	// that end by themselves.
	Reload string `json:"reload,omitempty"`
}

func newConfigPrint() *cobra.Command {
	var of *cobra.Command
	var flags []string
	cmd := &cobra.Command{
		Use:     "print COMMAND [-- FLAG...]",
		Short:   "Print the settings that a command would run with, and where each comes from; passwords are left out, and absurd values are refused",
		Example: "  db-controller config print serve --config /etc/db-controller.yaml -o json\n  db-controller config print migrate up -- --set registry",
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				return Usage("missing: the name of a command, such as serve")
			}
			of, flags, err = cmd.Root().Find(args)
			if err == nil && of == cmd.Root() {
				err = SubcommandOf(of, args)
			}
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path, _ := cmd.Flags().GetString("config"); path != "" {
				flags = append([]string{"--config", path}, flags...)
			}
			if err := of.ParseFlags(flags); err != nil {
				return FlagError(of, err)
			}
			if err := Configure(of); err != nil {
				return Usage("%w", err)
			}
			err := printSettings(PrinterOf(cmd), of)
			if of.PreRunE != nil { // it checks the values
				err = errors.Join(err, of.PreRunE(of, nil))
			}
			return err
		},
	}
	OutputFlag(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return Usage(
				"%w: the flags of the command follow --, as in: db-controller config print migrate up -- --set registry", err)
		}
		return FlagError(cmd, err)
	})
	return cmd
}

func printSettings(out Printer, of *cobra.Command) error {
	var all []configured
	var rows [][]any
	process, header := reloads(of), "FLAG VALUE ORIGIN"
	if process {
		header += " RELOAD"
	}
	of.Flags().VisitAll(func(f *pflag.Flag) {
		if IsHelp(f.Name) {
			return
		}
		c := configured{Flag: f.Name, Value: shown(f), Origin: originOf(f)}
		row := []any{c.Flag, c.Value, c.Origin}
		if process {
			c.Reload = ReloadOf(f)
			row = append(row, c.Reload)
		}
		all, rows = append(all, c), append(rows, row)
	})
	out.Table(header, rows)
	return out.Document(all)
}

func newConfigSchema(outputs Outputs) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema [OUTPUT]",
		Short: "Print the JSON Schema of the file of --config, for editors; or of an output of commands",
		Example: `  db-controller config schema
  db-controller config schema resource`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := Printer{cmd.OutOrStdout(), "json"}
			if len(args) == 0 {
				return out.Document(configurationSchema(cmd.Root()))
			}
			s, err := outputs.Schema(args[0], false)
			if err != nil {
				return err
			}
			return out.Document(s)
		},
	}
	cmd.ValidArgsFunction = cobra.FixedCompletions(slices.Sorted(maps.Keys(outputs)),
		cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

type object = map[string]any

// configurationSchema describes the file of --config: the settings of every command, and a section for each.
func configurationSchema(root *cobra.Command) object {
	properties := object{}
	for _, c := range root.Commands() {
		own := object{}
		addSettings(c, own)
		for name, setting := range own {
			if _, exists := properties[name]; !exists {
				properties[name] = setting
			}
		}
	}
	for _, c := range root.Commands() {
		own := object{}
		addSettings(c, own)
		section := object{"type": "object", "description": c.Short, "properties": own, "additionalProperties": false}
		if setting, both := properties[c.Name()]; both { // such as registry: a flag of serve, and a command
			section = object{"anyOf": []any{setting, section}}
		}
		properties[c.Name()] = section
	}
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Configuration of db-controller",
		"type": "object", "properties": properties, "additionalProperties": false,
	}
}

func addSettings(c *cobra.Command, to object) {
	add := func(f *pflag.Flag) {
		if !IsHelp(f.Name) && f.Name != "version" {
			to[f.Name] = settingSchema(f)
		}
	}
	c.NonInheritedFlags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	for _, sub := range c.Commands() {
		addSettings(sub, to)
	}
}

// settingSchema describes the value of a flag; null stands for its default.
func settingSchema(f *pflag.Flag) object {
	kind := any("string")
	switch f.Value.Type() {
	case "bool":
		kind = "boolean"
	case "int", "int32", "int64":
		kind = "integer"
	}
	s := object{"description": f.Usage, "type": []any{kind, "null"}}
	if _, list := f.Value.(pflag.SliceValue); list {
		s["type"] = []any{"array", "string", "null"}
		s["items"] = object{"type": []any{"string", "integer"}}
	}
	if f.DefValue != "" {
		s["default"] = f.DefValue
	}
	return s
}
