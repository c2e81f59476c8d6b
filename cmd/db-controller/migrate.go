package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/migrations"
)

// migrated is the database of the migrate commands.
type migrated struct {
	dsn, set  string
	plaintext bool
}

func newMigrate() *cobra.Command {
	var db migrated
	cmd := &cobra.Command{Use: "migrate", Short: "Bring a database to a version of the schema"}
	cmd.PersistentFlags().StringVar(&db.dsn, "postgres", "", "DSN of the database")
	plaintextFlag(cmd.PersistentFlags(), &db.plaintext)
	cmd.PersistentFlags().StringVar(&db.set, "set", string(migrations.Deployment), "deployment or registry")
	cmd.AddCommand(db.newUp(), db.newDown(), db.newStatus())
	return cmd
}

func (m *migrated) migrations() migrations.Set { return migrations.Set(m.set) }

func (m *migrated) check(cmd *cobra.Command) error {
	if s := m.migrations(); s != migrations.Deployment && s != migrations.Registry {
		return fmt.Errorf("--set %s: want deployment or registry", m.set)
	}
	if err := requireFlags(cmd, "postgres"); err != nil {
		return err
	}
	return checkDSN(m.dsn, m.plaintext)
}

// command returns a command whose flags are checked before it runs.
func (m *migrated) command(use, short string, run func(cmd *cobra.Command) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if err := m.check(cmd); err != nil {
			return err
		}
		return run(cmd)
	}}
}

func (m *migrated) newUp() *cobra.Command {
	var roles bool
	var prefix string
	cmd := m.command("up", "Apply the missing migrations", func(cmd *cobra.Command) error {
		if err := m.up(cmd); err != nil || !roles {
			return err
		}
		if err := migrations.Roles(cmd.Context(), m.dsn, m.migrations(), prefix); err != nil {
			return err
		}
		cmd.Print(rolesText(m.migrations(), prefix))
		return nil
	})
	cmd.Flags().BoolVar(&roles, "roles", false, "create or update roles with the least rights; needs a user who may create roles")
	cmd.Flags().StringVar(&prefix, "role-prefix", "dbcontroller", "with --roles: prefix of their names; use another one for each database of a server")
	return cmd
}

func (m *migrated) up(cmd *cobra.Command) error {
	applied, err := migrations.Up(cmd.Context(), m.dsn, m.migrations())
	for _, name := range applied {
		cmd.Println("applied", name)
	}
	if err == nil && len(applied) == 0 {
		cmd.Println("nothing to do: the database has the newest schema")
	}
	return err
}

func (m *migrated) newDown() *cobra.Command {
	var yes bool
	var reason string
	cmd := m.command("down", "Undo the newest migration, which deletes its data", func(cmd *cobra.Command) error {
		if reason == "" {
			return errors.New("--reason is missing: the reason is stored with the decision")
		}
		if !yes {
			return errors.New("the tables and columns of the newest migration are dropped with their data, such as the record of removals: add --yes to continue")
		}
		name, err := migrations.TakeBack(cmd.Context(), m.dsn, m.migrations(), reason)
		if err == nil {
			cmd.Println("undid", cmp.Or(name, "nothing"))
		}
		return err
	})
	cmd.Long = `down undoes the newest migration and deletes its data: resources with the first migration, the record of removals with another
one. It is refused while a process uses the database. The reason is kept in the database; "migrate status" shows it.`
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm: the data is deleted")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which is kept in the database")
	return cmd
}

func (m *migrated) newStatus() *cobra.Command {
	return m.command("status", "List the migrations", func(cmd *cobra.Command) error {
		states, err := migrations.List(cmd.Context(), m.dsn, m.migrations())
		for _, s := range states {
			word := "missing"
			if s.Applied {
				word = "applied"
			}
			cmd.Printf("%-8s %s\n", word, s.Name)
		}
		if err != nil {
			return err
		}
		undone, err := migrations.ListUndone(cmd.Context(), m.dsn, m.migrations())
		for _, u := range undone {
			cmd.Printf("%s was undone by %s on %s: %s\n", u.Name, u.By, u.At.UTC().Format(time.RFC3339), u.Reason)
		}
		return err
	})
}

// rolesText lists the roles and the next step.
func rolesText(set migrations.Set, prefix string) string {
	if set == migrations.Registry {
		return fmt.Sprintf("roles %[1]s_owner (migrations), %[1]s_api (registry serve), %[1]s_audit (reading)\n"+
			"next, for a user that logs in: GRANT %[1]s_api TO <user>\n", prefix)
	}
	return fmt.Sprintf("roles %[1]s_owner (migrations), %[1]s_api and %[1]s_controller (serve), %[1]s_audit (reading)\n"+
		"next, for a user that logs in: GRANT %[1]s_api, %[1]s_controller TO <user>\n", prefix)
}

// ready migrates a database, or checks that it has the schema that this binary needs.
func ready(ctx context.Context, dsn string, set migrations.Set, migrate bool, log *zap.Logger) error {
	if !migrate {
		return migrations.Current(ctx, dsn, set)
	}
	applied, err := migrations.Up(ctx, dsn, set)
	if len(applied) > 0 {
		log.Info("migrated", zap.Strings("applied", applied))
	}
	return err
}

// schemaFor is how long a successful check of the schema and the rights is valid.
const schemaFor = 5 * time.Second

// schemaCheck checks that the database has the schema that this binary needs, and that its user has the rights.
func schemaCheck(q migrations.Querier, set migrations.Set) check {
	var seen atomic.Pointer[time.Time] // time of the last success
	return check{name: "schema", run: func(ctx context.Context) error {
		if at := seen.Load(); at != nil && time.Since(*at) < schemaFor {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err := migrations.Ready(ctx, q, set)
		if now := time.Now(); err == nil {
			seen.Store(&now)
		}
		return err
	}}
}
