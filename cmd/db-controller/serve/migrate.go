package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/migrations"
)

// migrated is the database of the migrate commands.
type migrated struct {
	dsn, set  string
	plaintext bool
}

// NewMigrate returns the command migrate.
func NewMigrate() *cobra.Command {
	var db migrated
	cmd := &cobra.Command{Use: "migrate", Short: "Bring a database to a version of the schema"}
	cli.SecretFlag(cmd.PersistentFlags(), &db.dsn, "postgres", "DSN of the database")
	cli.PlaintextFlag(cmd.PersistentFlags(), &db.plaintext)
	cmd.PersistentFlags().StringVar(&db.set, "set", string(migrations.Deployment), "deployment or registry")
	cmd.AddCommand(db.newUp(), db.newDown(), db.newStatus(), db.newRotateKeys())
	return cmd
}

func (m *migrated) migrations() migrations.Set { return migrations.Set(m.set) }

func (m *migrated) check(cmd *cobra.Command) error {
	if s := m.migrations(); s != migrations.Deployment && s != migrations.Registry {
		return cli.Usage("--set %s: want deployment or registry", m.set)
	}
	if err := cli.RequireFlags(cmd, "postgres"); err != nil {
		return err
	}
	if err := cli.CheckDSN(m.dsn, m.plaintext); err != nil {
		return cli.Usage("%w", err)
	}
	return nil
}

// command returns a command whose flags are checked before it runs.
func (m *migrated) command(use, short string, run func(cmd *cobra.Command) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if err := m.check(cmd); err != nil {
			return err
		}
		err := run(cmd)
		if errors.As(err, new(*migrations.RefusedError)) {
			return cli.WithCode(cli.Refused, err)
		}
		return cli.OfDatabase(err)
	}}
	cli.OutputFlag(cmd)
	return cmd
}

func (m *migrated) newUp() *cobra.Command {
	var roles, dry bool
	var prefix string
	cmd := m.command("up", "Apply the missing migrations", func(cmd *cobra.Command) error {
		if cmd.Flags().Changed("role-prefix") && !roles {
			return cli.Usage("--role-prefix is for --roles, which is missing")
		}
		out := cli.PrinterOf(cmd)
		if dry {
			missing, err := migrations.Missing(cmd.Context(), m.dsn, m.migrations())
			if err != nil {
				return err
			}
			out.Line("%s", dryRunText(missing))
			return out.Document(map[string]any{"sql": append([]string{}, missing...)})
		}
		applied, err := m.up(cmd.Context(), out)
		if err == nil {
			err = m.roles(cmd, out, roles, prefix, len(applied) > 0)
		}
		return errors.Join(out.Document(map[string]any{"applied": append([]string{}, applied...)}), err)
	})
	cmd.Flags().BoolVar(&roles, "roles", false,
		"create or update roles with the least rights; needs a user who may create roles")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the SQL of the missing migrations, and change nothing")
	cmd.Flags().StringVar(&prefix, "role-prefix", "",
		"with --roles: prefix of their names; use another one for each database of a server (default: that of the roles that the database has, or else dbcontroller)")
	return cmd
}

// roles brings the roles up to date, or notes that the database's roles have no rights to the objects of new
// migrations.
func (m *migrated) roles(cmd *cobra.Command, out cli.Printer, wanted bool, prefix string, changed bool) error {
	present, err := migrations.RolePrefix(cmd.Context(), m.dsn, m.migrations())
	if err != nil {
		return err
	}
	switch {
	case !wanted && changed && present != "":
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(),
			"note: the roles %s_… have no rights to what is new: run it again with --roles\n", present)
	case wanted && prefix != "" && present != "" && present != prefix:
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(),
			"note: the roles %s_… have no rights to what is new: grant those below to their users, or run it again without --role-prefix %s\n", present, prefix)
	}
	if !wanted {
		return nil
	}
	prefix = cmp.Or(prefix, present, "dbcontroller")
	if err := migrations.Roles(cmd.Context(), m.dsn, m.migrations(), prefix); err != nil {
		return err
	}
	out.Line("%s", rolesText(m.migrations(), prefix))
	return nil
}

// dryRunText is SQL in every case.
func dryRunText(missing []string) string {
	if len(missing) == 0 {
		return "-- nothing to do: the database has the newest schema"
	}
	return strings.Join(missing, "\n")
}

func (m *migrated) up(ctx context.Context, out cli.Printer) ([]string, error) {
	applied, err := migrations.Up(ctx, m.dsn, m.migrations())
	for _, name := range applied {
		out.Line("applied %s", name)
	}
	if err == nil && len(applied) == 0 {
		out.Line("nothing to do: the database has the newest schema")
	}
	return applied, err
}

func (m *migrated) newDown() *cobra.Command {
	var yes bool
	var reason string
	cmd := m.command("down", "Undo the newest migration, which deletes its data", func(cmd *cobra.Command) error {
		if reason == "" {
			return cli.Usage("--reason is missing: the reason is stored with the decision")
		}
		if !yes {
			return cli.Usage(
				"the tables and columns of the newest migration are dropped with their data, such as the record of removals: add --yes to continue")
		}
		name, err := migrations.TakeBack(cmd.Context(), m.dsn, m.migrations(), reason)
		if err != nil {
			return err
		}
		out := cli.PrinterOf(cmd)
		out.Line("undid %s", cmp.Or(name, "nothing"))
		return out.Document(map[string]string{"undone": name})
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
		if err != nil {
			return err
		}
		undone, err := migrations.ListUndone(cmd.Context(), m.dsn, m.migrations())
		return errors.Join(printMigrations(cli.PrinterOf(cmd), states, undone), err)
	})
}

func (m *migrated) newRotateKeys() *cobra.Command {
	cmd := m.command("rotate-keys", "Replace the keys that the database keeps", func(cmd *cobra.Command) error {
		conn, err := pgx.Connect(cmd.Context(), m.dsn)
		if err != nil {
			return fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(cmd.Context())) }()
		if err := migrations.RotateKeys(cmd.Context(), conn, m.migrations()); err != nil {
			return err
		}
		out := cli.PrinterOf(cmd)
		out.Line("resume tokens have a new key; the one before is accepted until the next rotation")
		rotated := false
		if m.migrations() == migrations.Deployment {
			if rotated, err = attach.RotatePassword(cmd.Context(), conn); err != nil {
				return err
			}
		}
		if rotated {
			out.Line("the role by which statements on strict tables ask for rights has a new password")
		}
		return out.Document(map[string]bool{"tokenKey": true, "loopbackPassword": rotated})
	})
	cmd.Long = `rotate-keys replaces the keys that the database keeps, without a restart, and interrupts no watch:

  - the key that authenticates resume tokens. Tokens of the key before stay valid until the next rotation: rotate again when all watches have been
    open since, and all deployments have been heard.
  - of a deployment, the password of the role that attach has made, by which statements on strict tables ask for rights; not that of --loopback-dsn.

A backup from before a rotation lacks the new key, so that positions which other deployments show do not reveal that it was restored: start with
--restored. It needs the owner of the schema, and for the password a user who may change that role.`
	return cmd
}

func printMigrations(out cli.Printer, states []migrations.Status, undone []migrations.Undone) error {
	type state struct {
		Name    string `json:"name"`
		Applied bool   `json:"applied"`
	}
	type reverted struct {
		Name   string `json:"name"`
		By     string `json:"by"`
		Time   string `json:"time"`
		Reason string `json:"reason"`
	}
	all, back := []state{}, []reverted{}
	for _, s := range states {
		all = append(all, state{s.Name, s.Applied})
		out.Line("%-8s %s", map[bool]string{true: "applied", false: "missing"}[s.Applied], s.Name)
	}
	for _, u := range undone {
		back = append(back, reverted{u.Name, u.By, cli.At(u.At), u.Reason})
		out.Line("%s was undone by %s on %s: %s", u.Name, u.By, cli.At(u.At), u.Reason)
	}
	return out.Document(map[string]any{"migrations": all, "undone": back})
}

// rolesText lists the roles and the next step.
func rolesText(set migrations.Set, prefix string) string {
	if set == migrations.Registry {
		return fmt.Sprintf("roles %[1]s_owner (migrations), %[1]s_api (registry), %[1]s_audit (reading)\n"+
			"next, for a user that logs in: GRANT %[1]s_api TO <user>", prefix)
	}
	return fmt.Sprintf(
		"roles %[1]s_owner (migrations), %[1]s_api and %[1]s_controller (serve), %[1]s_audit (reading)\n"+
			"next, for a user that logs in: GRANT %[1]s_api, %[1]s_controller TO <user>; or for two users, of --postgres and of --postgres-controller: GRANT %[1]s_api TO <user>; GRANT %[1]s_controller TO <other>", prefix)
}

// ready migrates a database, or checks that it has the schema that this binary needs.
func ready(ctx context.Context, dsn string, set migrations.Set, migrate bool, log *zap.Logger,
	of ...migrations.Role,
) error {
	if !migrate {
		return migrations.Current(ctx, dsn, set, of...)
	}
	applied, err := migrations.Up(ctx, dsn, set)
	if len(applied) > 0 {
		log.Info("migrated", zap.Strings("applied", applied))
	}
	return err
}

// schemaFor is how long a successful check of the schema and the rights is valid.
const schemaFor = 15 * time.Second

// schemaCheck checks that the database has the schema that this binary needs, and that its user has the
// rights.
func schemaCheck(q migrations.Querier, set migrations.Set, of ...migrations.Role) check {
	var seen atomic.Pointer[time.Time] // time of the last success
	return check{name: "schema", run: func(ctx context.Context) error {
		if at := seen.Load(); at != nil && time.Since(*at) < schemaFor {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err := migrations.Ready(ctx, q, set, of...)
		if now := time.Now(); err == nil {
			seen.Store(&now)
		}
		return err
	}}
}
