package main

import (
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/cmd/db-controller/resources"
	"github.com/db-controller/db-controller/cmd/db-controller/serve"
	"github.com/db-controller/db-controller/cmd/db-controller/tables"
	"github.com/spf13/cobra"
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
		Version:       cli.ThisBuild().String(),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Configure(cmd); err != nil {
				return cli.Usage("%w", err)
			}
			return cli.CheckOutput(cmd)
		},
		Args: cli.SubcommandOf,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(cli.FlagError)
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
	add("try", tables.NewScan(), dev.NewDev())
	get := resources.NewGet()
	get.AddCommand(operate.NewGetEnvironment(), operate.NewGetServices(), operate.NewGetDeployments(),
		operate.NewGetRegions(), operate.NewGetKinds(), operate.NewGetReferences(), operate.NewGetRights())
	add("resources", get, resources.NewList(), resources.NewPut(), resources.NewPatch(), resources.NewDelete(),
		resources.NewUndelete(), resources.NewPlan(), resources.NewExplain(), resources.NewReferrers(),
		resources.NewRemovals(), resources.NewPurge(), resources.NewWatch(), resources.NewBlockDeletion(),
		resources.NewRemoveFinalizer(), resources.NewSetStatus())
	add("describe", operate.NewValidate(&tables.Declared{}), operate.NewApply(), operate.NewHistory(),
		operate.NewGraph(), operate.NewWhoCan(), operate.NewRemove(), operate.NewSetVersion(),
		operate.NewDecommission(), operate.NewPause(), operate.NewResume(), operate.NewRetry(),
		operate.NewForceRelease(), tables.NewAttach(), tables.NewDetach())
	add("run", serve.NewServe(), serve.NewRegistry(), serve.NewMigrate(), operate.NewCerts(), operate.NewStatus(),
		operate.NewDoctor(), operate.NewStuck(), operate.NewConsole(), operate.NewSupportBundle(), operate.NewVerify(),
		operate.NewAuditLog(), serve.NewHealthcheck(), cli.NewConfigCommand(outputs()))
	root.AddCommand(cli.NewVersionCommand())
	cli.Strictly(root)
	return root
}
