package scan

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/schema"
)

// ours selects the relations that are neither the system's, db-controller's nor an extension's, nor a
// temporary one.
const ours = `n.nspname <> 'dbcontroller' AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = 'pg_catalog.pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e')`

const tablesSQL = `
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.reltuples::bigint, c.relispartition,
  NOT c.relispartition AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid),
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
  c.relrowsecurity AND row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), current_user::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE ` + ours + ` ORDER BY 2, 3`

// rootsSQL estimates a partitioned table by its partitions.
const rootsSQL = `
SELECT c.oid, sum(greatest(l.reltuples, 0))::bigint FROM pg_catalog.pg_class c, pg_catalog.pg_partition_tree(c.oid) p
JOIN pg_catalog.pg_class l ON l.oid = p.relid WHERE c.relkind = 'p' AND NOT c.relispartition AND p.isleaf GROUP BY c.oid`

const columnsSQL = `
SELECT c.oid, a.attname::text, tn.nspname::text, t.typname::text, t.typtype = 'e', a.attnotnull OR d.typnotnull, a.attgenerated <> '',
  has_column_privilege(c.oid, a.attnum, 'SELECT'),
  d.typtype = 'd', t.typname = 'numeric' AND COALESCE(NULLIF(a.atttypmod, -1), d.typtypmod) > 0 AND (COALESCE(NULLIF(a.atttypmod, -1), d.typtypmod) - 4) & 2047 = 0,
  CASE WHEN t.typtype = 'e' THEN ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
WHERE ` + ours + ` ORDER BY c.oid, a.attnum`

const indexesSQL = `
SELECT c.oid, ic.relname::text, i.indisunique, i.indisprimary, i.indisvalid AND i.indisready, i.indimmediate, am.amname::text,
  COALESCE(pg_get_expr(i.indpred, i.indrelid), ''),
  ARRAY(SELECT COALESCE(a.attname::text, '') FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum AND k.attnum > 0
      AND (i.indcollation::oid[])[k.n - 1] IN (0, a.attcollation, 'pg_catalog."C"'::regcollation) WHERE k.n <= i.indnkeyatts ORDER BY k.n)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid JOIN pg_catalog.pg_am am ON am.oid = ic.relam
WHERE ` + ours + ` ORDER BY c.oid, ic.relname`

const nativesSQL = `
SELECT c.oid, f.conname::text, tn.nspname::text, t.relname::text, f.confdeltype::text, f.condeferrable,
  ARRAY(SELECT a.attname::text FROM unnest(f.conkey) WITH ORDINALITY k (attnum, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum ORDER BY k.n),
  ARRAY(SELECT a.attname::text FROM unnest(f.confkey) WITH ORDINALITY k (attnum, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum ORDER BY k.n)
FROM pg_catalog.pg_constraint f JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = f.confrelid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE f.contype = 'f' AND f.conparentid = 0 AND ` + ours + ` ORDER BY c.oid, f.conname`

// readCatalogue reads the catalogue in one snapshot.
func (d *database) readCatalogue(ctx context.Context) error {
	out := &catalogue.Database{Label: d.Label, Service: d.Service, Region: d.Region}
	err := d.snapshot(ctx, func(tx pgx.Tx) error { return ReadCatalogue(ctx, tx, out) })
	if err != nil {
		return fmt.Errorf("read the catalogue of %s: %w", d.Label, err)
	}
	d.catalogue = out
	return nil
}

// ReadCatalogue reads the tables of a database.
func ReadCatalogue(ctx context.Context, tx pgx.Tx, out *catalogue.Database) error {
	tables := map[uint32]*catalogue.Table{}
	for _, read := range []func(context.Context, pgx.Tx, *catalogue.Database, map[uint32]*catalogue.Table) error{
		readTables, readRoots, readColumns, readIndexes, readNatives,
	} {
		if err := read(ctx, tx, out, tables); err != nil {
			return err
		}
	}
	return nil
}

func readTables(ctx context.Context, tx pgx.Tx, db *catalogue.Database, tables map[uint32]*catalogue.Table) error {
	rows, err := tx.Query(ctx, tablesSQL)
	if err != nil {
		return err
	}
	var oid uint32
	var t catalogue.Table
	_, err = pgx.ForEachRow(rows, []any{
		&oid, &t.Name.Schema, &t.Name.Name, &t.Form, &t.Rows, &t.Partition, &t.Inherits, &t.Inherited, &t.RowsHidden,
		&t.Readable, &t.SchemaUsable, &db.Role,
	}, func() error {
		one := t
		tables[oid] = &one
		db.Tables = append(db.Tables, &one)
		return nil
	})
	return err
}

func readRoots(ctx context.Context, tx pgx.Tx, _ *catalogue.Database, tables map[uint32]*catalogue.Table) error {
	rows, err := tx.Query(ctx, rootsSQL)
	if err != nil {
		return err
	}
	var oid uint32
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&oid, &n}, func() error {
		if t := tables[oid]; t != nil {
			t.Rows = n
		}
		return nil
	})
	return err
}

func readColumns(ctx context.Context, tx pgx.Tx, _ *catalogue.Database, tables map[uint32]*catalogue.Table) error {
	rows, err := tx.Query(ctx, columnsSQL)
	if err != nil {
		return err
	}
	var oid uint32
	var c catalogue.Column
	_, err = pgx.ForEachRow(rows, []any{
		&oid, &c.Name, &c.Type.Schema, &c.Type.Name, &c.Type.Enum, &c.NotNull,
		&c.Generated, &c.Readable, &c.Type.Domain, &c.Type.Whole, &c.Type.Labels,
	}, func() error {
		if t := tables[oid]; t != nil {
			t.Columns = append(t.Columns, c)
		}
		return nil
	})
	return err
}

func readIndexes(ctx context.Context, tx pgx.Tx, _ *catalogue.Database, tables map[uint32]*catalogue.Table) error {
	rows, err := tx.Query(ctx, indexesSQL)
	if err != nil {
		return err
	}
	var oid uint32
	var i catalogue.Index
	_, err = pgx.ForEachRow(rows, []any{
		&oid, &i.Name, &i.Unique, &i.Primary, &i.Valid, &i.Immediate, &i.Method,
		&i.Predicate, &i.Columns,
	}, func() error {
		if t := tables[oid]; t != nil {
			t.Indexes = append(t.Indexes, i)
		}
		i.Columns = nil
		return nil
	})
	return err
}

func readNatives(ctx context.Context, tx pgx.Tx, _ *catalogue.Database, tables map[uint32]*catalogue.Table) error {
	rows, err := tx.Query(ctx, nativesSQL)
	if err != nil {
		return err
	}
	var oid uint32
	var key catalogue.NativeKey
	var target schema.TableName
	_, err = pgx.ForEachRow(rows, []any{
		&oid, &key.Name, &target.Schema, &target.Name, &key.OnDelete, &key.Deferrable,
		&key.Columns, &key.TargetKey,
	}, func() error {
		if t := tables[oid]; t != nil {
			key.Target = target
			t.Natives = append(t.Natives, key)
		}
		key.Columns, key.TargetKey = nil, nil
		return nil
	})
	return err
}
