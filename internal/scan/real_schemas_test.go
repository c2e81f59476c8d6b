package scan_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/test/harness"
)

// realSchemas are files of Debian's packages, below the folder of DBCONTROLLER_SCAN_SCHEMAS, into which make
// scan-schemas unpacks them.
var realSchemas = map[string][]string{
	"zabbix":    {"usr/share/zabbix-server-pgsql/schema.sql.gz"},
	"kea":       {"usr/share/kea/scripts/pgsql/dhcpdb_create.pgsql"},
	"roundcube": {"usr/share/roundcube/SQL/postgres.initial.sql"},
	"powerdns":  {"usr/share/pdns-backend-pgsql/schema/schema.pgsql.sql"},
	"ejabberd":  {"usr/share/ejabberd/sql/pg.sql"},
}

// undeclared are references of these applications without a native key, which they left out for speed, or
// because the row outlives its target: the values are keys of that table.
var undeclared = []string{
	"auditlog[userid] -> users", "escalations[acknowledgeid] -> acknowledges", "escalations[actionid] -> actions",
	"escalations[eventid] -> events", "escalations[itemid] -> items",
	"escalations[r_eventid] -> events", "escalations[servicealarmid] -> service_alarms",
	"escalations[serviceid] -> services", "escalations[triggerid] -> triggers",
	"event_recovery[correlationid] -> correlation", "event_recovery[userid] -> users",
	"problem[correlationid] -> correlation", "problem[userid] -> users", "problem_tag[eventid] -> events",
	"service_problem[eventid] -> events", "history[itemid] -> items", "history_log[itemid] -> items",
	"history_str[itemid] -> items", "history_text[itemid] -> items", "history_uint[itemid] -> items",
	"trends[itemid] -> items", "trends_uint[itemid] -> items", "proxy_dhistory[dcheckid] -> dchecks",
	"proxy_dhistory[druleid] -> drules", "proxy_history[itemid] -> items",
	"task_acknowledge[acknowledgeid] -> acknowledges", "task_check_now[itemid] -> items",
	"task_close_problem[acknowledgeid] -> acknowledges", "task_data[parent_taskid] -> task",
	"task_remote_command[alertid] -> alerts", "task_remote_command[hostid] -> hosts",
	"task_remote_command[parent_taskid] -> task", "task_remote_command_result[parent_taskid] -> task",
	"task_result[parent_taskid] -> task",
	"dhcp4_audit_revision[server_id] -> dhcp4_server", "dhcp6_audit_revision[server_id] -> dhcp6_server",
	"lease4_stat[state] -> lease_state", "lease6_stat[state] -> lease_state",
	"lease6[hwaddr_source] -> lease_hwaddr_source", "lease6_stat[lease_type] -> lease6_types",
}

// The native keys of real schemas are dropped, and guessed: at least 90 % of them are found, and 95 % of the
// guesses are native keys, or other references.
func TestTheKeysOfRealSchemasAreGuessed(t *testing.T) {
	folder := os.Getenv("DBCONTROLLER_SCAN_SCHEMAS")
	if folder == "" {
		t.Skip("needs schemas of Debian's packages: make scan-schemas")
	}
	var keys, found, guesses, others int
	for name, files := range realSchemas {
		dsn := harness.Postgres(t).NewDatabase(t, "")
		for _, file := range files {
			load(t, dsn, filepath.Join(folder, file))
		}
		native := nativeKeys(readCatalogue(t, dsn)) // of tables whose rows have a name
		execute(t, dsn, `DO $$ DECLARE c record; BEGIN FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 LOOP
			EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP; END $$`)
		db := readCatalogue(t, dsn)
		guessed := guessedKeys(db)
		var missed, wrong []string
		for _, k := range native {
			if !slices.Contains(guessed, k) {
				missed = append(missed, k)
			}
		}
		for _, k := range guessed {
			switch {
			case slices.Contains(native, k):
			case slices.Contains(undeclared, k):
				others++
			default:
				wrong = append(wrong, k)
			}
		}
		keys, found, guesses = keys+len(native), found+len(native)-len(missed), guesses+len(guessed)
		t.Logf("%s: %d tables, %d keys, %d guesses, missed %d, not a key %d\n  missed:\n    %s\n  not a key:\n    %s",
			name, len(db.Tables), len(native), len(guessed), len(missed), len(wrong),
			strings.Join(missed, "\n    "), strings.Join(wrong, "\n    "))
	}
	recall, precision := float64(found)/float64(keys), float64(found+others)/float64(guesses)
	t.Logf("%d keys, recall %.3f; %d guesses, precision %.3f; of native keys alone %.3f", keys, recall, guesses,
		precision, float64(found)/float64(guesses))
	require.GreaterOrEqual(t, recall, 0.90)
	require.GreaterOrEqual(t, precision, 0.95)
}

func load(t *testing.T, dsn, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var text io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		text, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	psql := exec.CommandContext(t.Context(), "psql", "-q", "-X", dsn)
	psql.Stdin = text
	out, err := psql.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func readCatalogue(t *testing.T, dsn string) *catalogue.Database {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	db := &catalogue.Database{Label: "app", Service: "app.example.com"}
	require.NoError(t, scan.ReadCatalogue(t.Context(), tx, db))
	return db
}

func nativeKeys(db *catalogue.Database) (out []string) {
	for _, table := range db.Tables {
		if table.Key() == nil {
			continue
		}
		for _, k := range table.Natives {
			out = append(out, fmt.Sprintf("%s%v -> %s", table.Name.Name, k.Columns, k.Target.Name))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var byAnotherKey = regexp.MustCompile(
	`^app public\.(\S+) \((\S+)\) refers to app public\.(\S+) by .*: a kind has one key`)

func guessedKeys(db *catalogue.Database) (out []string) {
	guess := catalogue.GuessReferences([]*catalogue.Database{db})
	tables := map[string]string{}
	for _, d := range guess.Descriptors {
		for _, k := range d.Kinds {
			tables[d.Service+"/"+k.Name], tables[k.Name] = k.Table.Name, k.Table.Name
		}
	}
	for _, d := range guess.Descriptors {
		for _, k := range d.Kinds {
			for _, r := range k.References {
				out = append(out, fmt.Sprintf("%s%v -> %s", k.Table.Name, r.Columns, tables[r.Targets[0]]))
			}
		}
	}
	for _, note := range guess.Notes { // guessed, and not to be declared
		if m := byAnotherKey.FindStringSubmatch(note); m != nil {
			out = append(out, fmt.Sprintf("%s[%s] -> %s", m[1], m[2], m[3]))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
