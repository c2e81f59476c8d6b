package operate

import (
	"context"
	"fmt"
	"time"
)

// ServerStatus describes the PostgreSQL server of the database, for operators, as far as the role of the
// process may see it.
type ServerStatus struct {
	Version string // such as 15.4
	Size    int64  // of the database, in bytes
	// Fsync and FullPageWrites are settings without which a crash of the machine can destroy the database.
	Fsync, FullPageWrites bool
	Connections, Most     int // of all databases, without the ones reserved for superusers
	Standbys              int // connected, also receivers of the log for backups
	// Archives: the server archives its log. Archived is the time of the last success, zero before;
	// ArchiveFails reports that the last try failed.
	Archives, ArchiveFails bool
	Archived               time.Time
	// OldestTransaction and OldestPrepared are the starts of the oldest open and the oldest prepared
	// transaction of the database; zero: there is none. Open ones of other logins are seen by a role with
	// pg_read_all_stats alone.
	OldestTransaction, OldestPrepared time.Time
}

const serverStatusSQL = `
SELECT split_part(current_setting('server_version'), ' ', 1), pg_database_size(current_database()),
    current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
    (SELECT sum(numbackends)::int FROM pg_stat_database),
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT count(*) FROM pg_stat_replication),
    current_setting('archive_mode') <> 'off', COALESCE(a.last_failed_time > COALESCE(a.last_archived_time, '-infinity'), false), a.last_archived_time,
    (SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'),
    (SELECT min(prepared) FROM pg_prepared_xacts WHERE database = current_database())
FROM pg_stat_archiver a`

// Server returns the status of the PostgreSQL server.
func (s *Operations) Server(ctx context.Context) (st ServerStatus, err error) {
	var archived, transaction, prepared *time.Time
	err = s.Pool.QueryRow(ctx, serverStatusSQL).Scan(&st.Version, &st.Size, &st.Fsync, &st.FullPageWrites,
		&st.Connections, &st.Most, &st.Standbys,
		&st.Archives, &st.ArchiveFails, &archived, &transaction, &prepared)
	if err != nil {
		return st, fmt.Errorf("read the state of the PostgreSQL server: %w", err)
	}
	for into, at := range map[*time.Time]*time.Time{
		&st.Archived: archived, &st.OldestTransaction: transaction,
		&st.OldestPrepared: prepared,
	} {
		if at != nil {
			*into = *at
		}
	}
	return st, nil
}
