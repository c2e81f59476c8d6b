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
	var plaintext bool
	plaintextFlag(cmd.PersistentFlags(), &plaintext)
	cmd.PersistentFlags().StringVar(&set, "set", string(migrations.Deployment), "deployment or registry")
	check := func(cmd *cobra.Command) error {
		if s := migrations.Set(set); s != migrations.Deployment && s != migrations.Registry {
			return fmt.Errorf("--set %s: want deployment or registry", set)
		}
		if err := require(cmd, "postgres"); err != nil {
			return err
		}
		return checkDSN(dsn, plaintext)
	}
	sub := func(use, short string, run func(cmd *cobra.Command) error) *cobra.Command {
		command := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if err := check(cmd); err != nil {
				return err
			}
			return run(cmd)
		}}
		cmd.AddCommand(command)
		return command
	}
	var roles bool
	var prefix string
	up := sub("up", "Apply what is missing", func(cmd *cobra.Command) error {
		applied, err := migrations.Up(cmd.Context(), dsn, migrations.Set(set))
		for _, name := range applied {
			cmd.Println("applied", name)
		}
		if err == nil && len(applied) == 0 {
			cmd.Println("nothing to do: the database has the newest schema")
		}
		if err != nil || !roles {
			return err
		}
		if err := migrations.Roles(cmd.Context(), dsn, migrations.Set(set), prefix); err != nil {
			return err
		}
		cmd.Print(rolesText(migrations.Set(set), prefix))
		return nil
	})
	up.Flags().BoolVar(&roles, "roles", false, "create roles with the least rights, or bring them up to date; needs a user who may create roles")
	up.Flags().StringVar(&prefix, "role-prefix", "dbcontroller", "with --roles: what their names begin with; another one for each database of a server")
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

// rolesText tells what to do with the roles.
func rolesText(set migrations.Set, prefix string) string {
	if set == migrations.Registry {
		return fmt.Sprintf("roles %[1]s_owner (migrations), %[1]s_api (registry serve), %[1]s_audit (reading)\n"+
			"next, for a user that logs in: GRANT %[1]s_api TO <user>\n", prefix)
	}
	return fmt.Sprintf("roles %[1]s_owner (migrations), %[1]s_api and %[1]s_controller (serve), %[1]s_audit (reading)\n"+
		"next, for a user that logs in: GRANT %[1]s_api, %[1]s_controller TO <user>\n", prefix)
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
