package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// blank is the content of a new clone of a template. The clones of a template have the same numbers of
// objects and of transactions, so the content of one clone is true for all.
type blank struct {
	readSQL   string // reads the state of the catalogues, and the names of the tables that have changed
	state     string
	rows      map[string][]byte // of the tables that are not empty, in the format of COPY
	setvalSQL string            // sets all sequences
}

// firstObject is the number of the first object that initdb has not made.
const firstObject = "16384"

const (
	// cataloguesSQL returns the query for the state of the catalogues. A changed row has a new xmin, and a
	// removed one is not counted. The rows of tables and indexes change also with a TRUNCATE: their columns
	// are compared. The schemas of temporary tables stay for ever. An object of a kind whose catalogue is not
	// read has a row in pg_depend, on its schema or its functions.
	cataloguesSQL = `
SELECT format('SELECT concat_ws('', '', %s)', string_agg(
    format('(SELECT %L || count(*) || ''+'' || count(*) FILTER (WHERE age(xmin) < age(%L::xid)) FROM %s%s)', relname || ' ', pg_current_xact_id()::xid, oid::regclass,
        CASE relname WHEN 'pg_class' THEN ' WHERE oid < ` + firstObject + `' WHEN 'pg_namespace' THEN ' WHERE nspname !~ ''^pg_(toast_)?temp_''' ELSE '' END), ', ' ORDER BY relname) ||
    ', (SELECT md5(string_agg((oid, relname, relnamespace, reltype, relowner, relam, reltablespace, relpersistence, relkind, relnatts, relchecks, relhasrules, relhastriggers,
        relhassubclass, relrowsecurity, relforcerowsecurity, relreplident, relispartition, relacl, reloptions)::text, '''' ORDER BY oid)) FROM pg_class WHERE oid >= ` + firstObject + `)' ||
    ', (SELECT (datallowconn, datconnlimit, datacl, datdba)::text FROM pg_database WHERE datname = current_database())' ||
    ', (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE datname = current_database())' ||
    ', (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()), (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())')
FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relname IN ('pg_attrdef', 'pg_attribute', 'pg_class', 'pg_constraint', 'pg_default_acl', 'pg_depend', 'pg_enum',
    'pg_event_trigger', 'pg_extension', 'pg_index', 'pg_inherits', 'pg_largeobject_metadata', 'pg_namespace', 'pg_policy', 'pg_proc', 'pg_publication', 'pg_publication_namespace', 'pg_publication_rel',
    'pg_rewrite', 'pg_sequence', 'pg_statistic_ext', 'pg_trigger', 'pg_type')`

	// tablesSQL returns the names of the tables with rows, and the query for the tables that have changed by
	// size or statistics.
	tablesSQL = `
SELECT array_agg(oid::regclass::text ORDER BY oid) FILTER (WHERE pg_relation_size(oid) > 0),
    format('SELECT oid::regclass::text FROM pg_class JOIN (VALUES %s) AS b (oid, size, tuples) USING (oid) WHERE pg_relation_size(oid) <> size OR reltuples <> tuples',
        string_agg(format('(%s::oid, %s, %s::real)', oid, pg_relation_size(oid), reltuples), ', '))
FROM pg_class WHERE relkind = 'r' AND oid >= ` + firstObject
	rowsSQL = `SELECT md5(string_agg((t.ctid, t)::text, '' ORDER BY t.ctid)) FROM %s t`

	sequencesSQL = `
SELECT 'SELECT ' || string_agg(format('setval(%L, %s, %L)', oid::regclass, COALESCE(pg_sequence_last_value(oid), seqstart), pg_sequence_last_value(oid) IS NOT NULL), ', ')
FROM pg_class JOIN pg_sequence ON oid = seqrelid`

	// asOwnerSQL begins a reset, in a session of a store. It removes the statistics of ANALYZE, which
	// autovacuum runs as well.
	asOwnerSQL = `
SET LOCAL ROLE NONE; SET LOCAL enable_seqscan = on; SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = '5s';
DELETE FROM pg_statistic WHERE starelid >= ` + firstObject
)

var errChanged = errors.New("the test has changed the catalogues")

// readBlank reads a database that nothing has changed yet. It returns nil on a server whose given user is no
// superuser: catalogues cannot be read there.
func readBlank(ctx context.Context, pool *pgxpool.Pool) (*blank, error) {
	var all bool
	if err := pool.QueryRow(ctx, `SELECT rolsuper FROM pg_roles WHERE rolname = session_user`).Scan(&all); err != nil ||
		!all {
		return nil, err
	}
	b := &blank{rows: map[string][]byte{}}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, asOwnerSQL); err != nil {
			return err
		}
		var catalogues string
		if err := tx.QueryRow(ctx, cataloguesSQL).Scan(&catalogues); err != nil {
			return err
		}
		changed, err := b.readTables(ctx, tx)
		if err != nil {
			return err
		}
		b.readSQL = fmt.Sprintf("SELECT (%s), ARRAY (%s)", catalogues, strings.Join(changed, " UNION "))
		if err := tx.QueryRow(ctx, sequencesSQL).Scan(&b.setvalSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, b.readSQL).Scan(&b.state, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("read a new database: %w", err)
	}
	return b, nil
}

// readTables reads the rows of the tables, and returns the queries for the changed tables.
func (b *blank) readTables(ctx context.Context, tx pgx.Tx) (changed []string, err error) {
	var (
		names []string
		sizes string
	)
	if err := tx.QueryRow(ctx, tablesSQL).Scan(&names, &sizes); err != nil {
		return nil, err
	}
	changed = append(changed, sizes)
	for _, name := range names {
		var content bytes.Buffer
		if _, err := tx.Conn().PgConn().CopyTo(ctx, &content, "COPY "+name+" TO STDOUT"); err != nil {
			return nil, err
		}
		b.rows[name] = content.Bytes()
		query, digest := fmt.Sprintf(rowsSQL, name), ""
		if err := tx.QueryRow(ctx, query).Scan(&digest); err != nil {
			return nil, err
		}
		changed = append(changed, fmt.Sprintf("SELECT '%s' WHERE (%s) IS DISTINCT FROM '%s'", name, query, digest))
	}
	return changed, nil
}

// smallSQL selects, from the tables in $1, the tables that have at most 64 kB and were never analysed.
const smallSQL = `SELECT oid::regclass::text FROM pg_class WHERE oid = ANY ($1::text[]::regclass[]) AND pg_relation_size(oid) <= 65536 AND reltuples = -1`

// empty removes the rows of tables. The few rows of a small table are deleted, and leave a page or some:
// TRUNCATE takes ten times as long, since it makes new files for each table and index, and all sessions read
// the catalogues, and plan their statements, again.
func empty(ctx context.Context, tx pgx.Tx, tables []string) error {
	if len(tables) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, smallSQL, tables)
	if err != nil {
		return err
	}
	small, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	sql := "SET LOCAL session_replication_role = replica"
	for _, table := range small {
		sql += "; DELETE FROM " + table
	}
	if large := slices.DeleteFunc(slices.Clone(tables), func(table string) bool {
		return slices.Contains(small, table)
	}); len(large) > 0 {
		sql += "; TRUNCATE " + strings.Join(large, ", ")
	}
	_, err = tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// restore gives a database the contents of a new one, or returns errChanged.
func (b *blank) restore(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var (
			state   string
			changed []string
		)
		if _, err := tx.Exec(ctx, asOwnerSQL); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, b.readSQL).Scan(&state, &changed); err != nil {
			return err
		}
		if state != b.state {
			return errChanged
		}
		if err := empty(ctx, tx, changed); err != nil {
			return err
		}
		for _, name := range changed {
			if rows := b.rows[name]; len(rows) > 0 {
				if _, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(rows),
					"COPY "+name+" FROM STDIN"); err != nil {
					return err
				}
			}
		}
		_, err := tx.Exec(ctx, b.setvalSQL)
		return err
	})
}
