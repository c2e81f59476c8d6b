package clusters

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/wait"
	"github.com/jackc/pgx/v5"
)

// The database of the targets is restored to a full backup, by recovery to the backup's end, which is
// noticed.
func TestClustersPgBackRest(t *testing.T) {
	chosen(t)
	for name, how := range map[string]string{"recovered": "--type=immediate --target-action=promote"} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			bin, data := launcher.Binaries(t.Context()), filepath.Join(dir, "data")
			at, err := playground.FreeAddresses(1)
			require.NoError(t, err)
			dsn := "postgres://postgres@" + at[0] + "/%s?sslmode=disable"
			file := write(t, filepath.Join(dir, "pgbackrest.conf"), `[global]
repo1-path=%[1]s/repo
log-path=%[1]s
lock-path=%[1]s/lock
spool-path=%[1]s/spool
start-fast=y
[own]
pg1-path=%[1]s/data
pg1-socket-path=%[1]s
pg1-port=%[2]s
pg1-user=postgres
`, dir, port(at[0]))
			backrest := func(args ...string) {
				execute(t, "pgbackrest", append([]string{"--config=" + file, "--stanza=own"}, args...)...)
			}
			execute(t, filepath.Join(bin, "initdb"), "-U", "postgres", "-A", "trust", "-D", data)
			connected := func(database string) *pgx.Conn {
				var conn *pgx.Conn
				require.Eventually(t, func() bool {
					conn, err = pgx.Connect(t.Context(), fmt.Sprintf(dsn, database))
					return err == nil
				}, wait.Limit, wait.Poll)
				return conn
			}
			serve := func() *playground.Process {
				p := daemon(t, dir, "postgres", "", filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-p",
					port(at[0]), "-c", "listen_addresses=127.0.0.1",
					"-c", "archive_mode=on", "-c", "archive_command=pgbackrest --config="+file+
						" --stanza=own archive-push %p")
				require.NoError(t, connected("postgres").Close(t.Context()))
				return p
			}
			server := serve()
			conn := connected("postgres")
			_, err = conn.Exec(t.Context(), "CREATE DATABASE own")
			require.NoError(t, err)
			require.NoError(t, conn.Close(t.Context()))
			f := start(t, services, map[string]string{aWest: fmt.Sprintf(dsn, "own")})
			f.mustPut(aWest+"targets/kept", nil)
			f.mustPut(aWest+"targets/held", nil)
			f.mustPut(bWest+"holders/held", fields{"block": aWest + "targets/held"})
			f.settled()
			backrest("stanza-create")
			backrest("backup", "--type=full")
			f.mustPut(aWest+"targets/lost", nil)
			f.mustPut(bWest+"holders/new", fields{"block": aWest + "targets/kept"})
			f.mustPut(bWest+"holders/held", nil)
			f.mustPut(bWest+"holders/lost", fields{"block": aWest + "targets/lost"})
			f.mustPut(bWest+"holders/cascades", fields{"cascade": aWest + "targets/lost"})
			f.settled()

			p := f.Deployments[id(t, aWest)]
			require.NoError(t, p.Stop())
			require.NoError(t, server.Signal(syscall.SIGINT))
			require.Eventually(t, server.Ended, wait.Limit, wait.Poll)
			backrest(append([]string{"restore", "--delta"}, strings.Fields(how)...)...)
			serve()
			require.NoError(t, p.Start())
			require.NoError(t, p.WaitReady(t.Context()))
			f.agreed("a.example.com/us-west2", 2)
			err = f.delete(aWest + "targets/kept")
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.ErrorContains(t, err, bWest+"holders/new")
			require.NoError(t, f.delete(aWest+"targets/held"), "its holder has let go, which was lost")
			out, code := f.run("verify")
			require.Equal(t, 1, code, out)
			require.Contains(t, out, "2 differences left")
			require.Contains(t, out, "TARGET_GONE  "+bWest+"holders/lost (block) and "+aWest+"targets/lost")
			t.Logf("verify: %s", out)
			out, code = f.run("verify", "--repair", "--dangling=act", "--reason", "the backup was older", "--yes")
			require.Equal(t, 1, code, out)
			require.Contains(t, out, "1 difference left")
			require.False(t, f.exists(bWest+"holders/cascades"))
			f.mustPut(bWest+"holders/lost", nil)
			f.settled()
			f.verified()
			out, _ = f.run("status", "a.example.com/us-west2")
			require.Contains(t, out, "the database was failed over or restored 1 time, last noticed")
		})
	}
}
