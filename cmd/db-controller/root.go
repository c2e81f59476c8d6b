package main

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "db-controller",
		Short: "Foreign keys that cross databases, services and regions",
		Long: `db-controller enforces references between resources of different deployments: a delete is blocked, cascades, or unsets the
references, across databases, services and regions. Start with "db-controller dev", which prints commands to try.

Every flag can also be set by an environment variable (--log-level by DBCONTROLLER_LOG_LEVEL) and in the YAML file that
--config names (log-level: debug). A flag takes precedence over the environment, and the environment over the file; "help config"
describes the file, and "config print COMMAND" shows where each setting comes from.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       thisBuild().String(),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(cmd); err != nil {
				return usage("%w", err)
			}
			return checkOutput(cmd)
		},
		Args: subcommandOf,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	root.PersistentFlags().String("config", "", "YAML `FILE` with settings: help config describes it")
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.AddGroup(&cobra.Group{ID: "try", Title: "Try it:"}, &cobra.Group{ID: "resources", Title: "Resources:"},
		&cobra.Group{ID: "describe", Title: "Services and deployments:"}, &cobra.Group{ID: "run", Title: "Run it:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("try", newScan(), newDev(), newBench())
	add("resources", newGet(), newList(), newPut(), newPatch(), newDelete(), newPlan(), newExplain(), newRemovals(), newWatch(), newBlockDeletion())
	add("describe", newValidate(), newApply(), newRemove(), newSetVersion(), newDecommission(), newAcceptDatabase(), newWaive(), newAttach(), newDetach())
	add("run", newServe(), newRegistry(), newMigrate(), newCerts(), newStatus(), newVerify(), newHealthcheck(), newConfig())
	root.AddCommand(newVersion())
	strictly(root)
	return root
}

// newLogger writes to stderr: text when it is a terminal, else JSON.
func newLogger(cmd *cobra.Command) (*zap.Logger, error) {
	text, _ := cmd.Flags().GetString("log-level")
	level, err := zapcore.ParseLevel(text)
	if err != nil {
		return nil, usage("--log-level: %w", err)
	}
	stderr := cmd.ErrOrStderr()
	out := zapcore.Lock(zapcore.AddSync(stderr))
	options := []zap.Option{zap.AddCaller(), zap.ErrorOutput(out)}
	if file, ok := stderr.(*os.File); ok && isTerminal(file) {
		encoding := zap.NewDevelopmentEncoderConfig()
		return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), out, level), append(options, zap.Development())...), nil
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = func(t time.Time, to zapcore.PrimitiveArrayEncoder) { zapcore.RFC3339NanoTimeEncoder(t.UTC(), to) }
	core := zapcore.NewCore(zapcore.NewJSONEncoder(encoding), out, level)
	// As zap's production configuration: of equal lines, the first 100 a second and then every hundredth.
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Second, 100, 100), options...), nil
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func requireFlags(cmd *cobra.Command, flags ...string) error {
	var missing []string
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Value.String() == "" {
			missing = append(missing, "--"+name+" ("+f.Usage+")")
		}
	}
	if len(missing) > 0 {
		return usage("missing: %s", strings.Join(missing, ", "))
	}
	return nil
}
