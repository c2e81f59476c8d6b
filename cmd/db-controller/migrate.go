package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/migrations"
)

func newMigrate() *cobra.Command {
	var dsn, set string
	cmd := &cobra.Command{Use: "migrate", Short: "Bring a database to a version of the schema"}
	cmd.PersistentFlags().StringVar(&dsn, "postgres", "", "DSN of the database")
	cmd.PersistentFlags().StringVar(&set, "set", string(migrations.Deployment), "deployment or registry")
	check := func(cmd *cobra.Command) error {
		if s := migrations.Set(set); s != migrations.Deployment && s != migrations.Registry {
			return fmt.Errorf("--set %s: want deployment or registry", set)
		}
		return require(cmd, "postgres")
	}
	sub := func(use, short string, run func(cmd *cobra.Command) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(cmd); err != nil {
				return err
			}
			return run(cmd)
		}})
	}
	sub("up", "Apply what is missing", func(cmd *cobra.Command) error {
		applied, err := migrations.Up(cmd.Context(), dsn, migrations.Set(set))
		for _, name := range applied {
			cmd.Println("applied", name)
		}
		if err == nil && len(applied) == 0 {
			cmd.Println("nothing to do: the database has the newest schema")
		}
		return err
	})
	sub("down", "Take back the newest migration, with its data", func(cmd *cobra.Command) error {
		name, err := migrations.Down(cmd.Context(), dsn, migrations.Set(set))
		if err == nil && name == "" {
			name = "nothing"
		}
		if err == nil {
			cmd.Println("took back", name)
		}
		return err
	})
	sub("status", "List the migrations", func(cmd *cobra.Command) error {
		states, err := migrations.List(cmd.Context(), dsn, migrations.Set(set))
		for _, s := range states {
			word := "missing"
			if s.Applied {
				word = "applied"
			}
			cmd.Printf("%-8s %s\n", word, s.Name)
		}
		return err
	})
	return cmd
}

// ready makes sure that a database has the schema that this binary needs.
func ready(cmd *cobra.Command, dsn string, set migrations.Set, migrate bool, log *zap.Logger) error {
	if !migrate {
		return migrations.Current(cmd.Context(), dsn, set)
	}
	applied, err := migrations.Up(cmd.Context(), dsn, set)
	if len(applied) > 0 {
		log.Info("migrated", zap.Strings("applied", applied))
	}
	return err
}
