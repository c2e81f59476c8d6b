package attach

import (
	"context"
	"crypto/md5" //nolint:gosec // compared with PostgreSQL's
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/schema"
)

// Plan describes the changes of attach for one kind.
type Plan struct {
	Kind       schema.KindID // by its oldest name, under which it is stored
	Table      schema.TableName
	Definition schema.Definition
	Findings   []Finding
	// Statements change the table; none when it is attached with this definition.
	Statements []string

	// Deletes is the number of resources whose deletion is carried out when the table is attached: a column
	// that was not declared before says that their rows are deleted.
	Deletes int64

	kindID   int32
	names    names
	defaults map[string]string  // of columns, by their declared names
	former   []string           // the columns of former references, by their declared names
	readers  []string           // roles
	relation uint32             // of PostgreSQL, when it was planned
	swap     bool               // another table is attached
	tables   []schema.TableName // with the triggers: the table, and its partitions
}

// Refused reports whether a finding refuses the table.
func (p *Plan) Refused() bool {
	for _, f := range p.Findings {
		if f.Refuses {
			return true
		}
	}
	return false
}

// Deployment reads which deployment a database belongs to.
func Deployment(ctx context.Context, conn *pgx.Conn) (d schema.DeploymentID, err error) {
	err = conn.QueryRow(ctx, `SELECT service, region FROM dbcontroller.meta`).Scan(&d.Service, &d.Region)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000"):
		return d, errors.New(
			"the database is not that of a deployment yet: the tables have to be in the database of db-controller serve; run db-controller migrate up, and then serve, there first")
	case errors.Is(err, pgx.ErrNoRows):
		return d, errors.New(
			"no process has served a deployment from this database yet: run db-controller serve there first")
	case errors.As(err, &pg) && pg.Code == "42501":
		return d, strange(ctx, conn, err)
	case err != nil:
		return d, fmt.Errorf("read the deployment of the database: %w", err)
	}
	return d, nil
}

// errDry rolls back.
var errDry = errors.New("nothing is changed")

// sessionSQL sets what the texts of values depend on, as the sessions of serve have it: the texts are names.
const sessionSQL = `
SELECT pg_catalog.set_config('TimeZone', 'UTC', true), pg_catalog.set_config('DateStyle', 'ISO, YMD', true), pg_catalog.current_setting('server_encoding')`

// setSession sets the session of a transaction. It fails in a database whose texts are no texts.
func setSession(ctx context.Context, tx pgx.Tx) error {
	var encoding string
	if err := tx.QueryRow(ctx, sessionSQL).Scan(nil, nil, &encoding); err != nil {
		return fmt.Errorf("set the session: %w", err)
	}
	if encoding == "SQL_ASCII" {
		return errors.New("the encoding of the database is SQL_ASCII, in which a text is any bytes, and names of resources are texts: " +
			"restore a dump of it into a database with the encoding UTF8")
	}
	return nil
}

// Prepare checks the kinds of a model that have tables, and plans their attachment. It changes nothing,
// except that kinds get their numbers unless dry is set.
func Prepare(ctx context.Context, conn *pgx.Conn, model *schema.Model, dry bool) ([]*Plan, error) {
	var plans []*Plan
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := setSession(ctx, tx); err != nil {
			return err
		}
		db := &catalogue.Database{}
		if err := scan.ReadCatalogue(ctx, tx, db); err != nil {
			return fmt.Errorf("read the catalogue: %w", err)
		}
		waits, err := checkVersion(ctx, tx, model)
		if err != nil {
			return err
		}
		for i := range model.Descriptor.Kinds {
			k := &model.Descriptor.Kinds[i]
			if k.Table == (schema.TableName{}) {
				continue
			}
			plan, err := prepare(ctx, tx, db, model, k)
			if err != nil {
				return err
			}
			plan.Findings = append(plan.Findings, waits...)
			plans = append(plans, plan)
		}
		if dry {
			return errDry
		}
		return nil
	})
	if errors.Is(err, errDry) {
		err = nil
	}
	return plans, err
}

// CreateIndexes creates the indexes that plans lack and need, one after another, beside the statements of
// applications. told is called before each. It reports whether there was one.
func CreateIndexes(ctx context.Context, conn *pgx.Conn, plans []*Plan,
	told func(sql string),
) (created bool, err error) {
	if _, err := conn.Exec(ctx, `SET statement_timeout = 0`); err != nil { // an index may take hours
		return false, fmt.Errorf("set the session: %w", err)
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), `RESET statement_timeout`) }()
	done := map[string]bool{} // several references may need one
	for _, p := range plans {
		for _, f := range p.Findings {
			if !f.Refuses || !strings.HasPrefix(f.SQL, "CREATE INDEX") || done[f.SQL] {
				continue
			}
			done[f.SQL] = true
			statements, err := ofPartitions(ctx, conn, p.names.table, f.index)
			if err != nil {
				return created, err
			}
			for _, sql := range append(statements, f.SQL) {
				told(sql)
				if _, err := conn.Exec(ctx, sql); err != nil {
					return created, fmt.Errorf("%s: %w", sql, err)
				}
			}
			created = true
		}
	}
	return created, nil
}

// The partitions with rows that have no such index.
const partitionsSQL = `
SELECT t.relid::pg_catalog.regclass::text FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) AS t
WHERE t.isleaf AND t.level > 0 AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = t.relid AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = pg_catalog.cardinality($2::text[])
        AND ARRAY(SELECT a.attname::text FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = t.relid AND a.attnum = k.attnum
                AND (i.indcollation::pg_catalog.oid[])[k.n - 1] IN (0, a.attcollation, 'pg_catalog."C"'::pg_catalog.regcollation) ORDER BY k.n) = $2::text[])
ORDER BY t.relid`

// ofPartitions returns the statements that create an index on each partition of a table beside the statements
// of applications. The index of the table takes them over.
func ofPartitions(ctx context.Context, conn *pgx.Conn, table schema.TableName, columns []string) ([]string, error) {
	rows, err := conn.Query(ctx, partitionsSQL, table.SQL(), columns)
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", table, err)
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", table, err)
	}
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = schema.QuoteIdentifier(c)
	}
	out := make([]string, len(partitions))
	for i, name := range partitions {
		out[i] = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s);", name, strings.Join(quoted, ", "))
	}
	return out, nil
}

// checkVersion finds that the deployment runs another version than the one to attach.
func checkVersion(ctx context.Context, tx pgx.Tx, model *schema.Model) ([]Finding, error) {
	var running string
	if err := tx.QueryRow(ctx, `SELECT version FROM dbcontroller.meta`).Scan(&running); err != nil {
		return nil, fmt.Errorf("read the version of the deployment: %w", err)
	}
	if running == model.Descriptor.Version {
		return nil, nil
	}
	return []Finding{{Text: fmt.Sprintf(
		"the deployment runs version %q: while its version does not declare the table as %s does, no row is read; see db-controller set-version",
		running, model.Descriptor.Version)}}, nil
}

const kindSQL = `
WITH made AS (
    INSERT INTO dbcontroller.kind (service, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id
)
SELECT id FROM made UNION ALL SELECT id FROM dbcontroller.kind WHERE service = $1 AND kind = $2`

func prepare(ctx context.Context, tx pgx.Tx, db *catalogue.Database, model *schema.Model,
	k *schema.Kind,
) (*Plan, error) {
	id := schema.KindID{Service: model.Descriptor.Service, Kind: k.Name}
	n, err := namesOf(ctx, tx, db, model.Root(id), k.Table)
	if err != nil {
		return nil, err
	}
	p := &Plan{Kind: model.Root(id), Table: k.Table, Findings: check(db, model, k, n), names: n}
	table := n.renamed(db, k)
	if table == nil {
		return p, nil
	}
	traits, err := checkTraits(ctx, tx, k, n, true)
	if err != nil {
		return nil, err
	}
	members, err := checkMembers(ctx, tx, k)
	if err != nil {
		return nil, err
	}
	triggers, err := checkTriggers(ctx, tx, n.table)
	if err != nil {
		return nil, err
	}
	others, err := checkOthers(ctx, tx, n.table)
	if err != nil {
		return nil, err
	}
	lack, err := findLacking(ctx, tx, n.table, n.all(declaredChanges(k)))
	if err != nil {
		return nil, err
	}
	regions, err := checkRegions(ctx, tx, model, k)
	if err != nil {
		return nil, err
	}
	var grants []string
	for _, l := range lack {
		if l.owns {
			grants = l.grants
		} else {
			p.Findings = append(p.Findings, l.finding())
		}
	}
	if p.Findings = slices.Concat(p.Findings, traits, members, regions, triggers, others); p.Refused() {
		return p, nil
	}
	kind, err := model.Kind(k.Name)
	if err != nil {
		return nil, err
	}
	p.Definition = kind.Definition(func(column string) string { return table.Column(column).Type.String() })
	p.Definition.Partitioned = table.Form == catalogue.Partitioned
	if err := tx.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1)::oid`, n.table.SQL()).Scan(&p.relation); err != nil {
		return nil, fmt.Errorf("read %s: %w", n.table, err)
	}
	if p.tables, err = tablesOf(ctx, tx, n.table); err != nil {
		return nil, err
	}
	if p.Definition.PartitionKey, err = partitionKey(ctx, tx, n.table); err != nil {
		return nil, err
	}
	if err := tx.QueryRow(ctx, kindSQL, p.Kind.Service, p.Kind.Kind).Scan(&p.kindID); err != nil {
		return nil, fmt.Errorf("number kind %s: %w", p.Kind, err)
	}
	if p.readers, err = readers(ctx, tx); err != nil {
		return nil, err
	}
	if p.defaults, err = defaultsOf(ctx, tx, &p.Definition, n); err != nil {
		return nil, err
	}
	if p.Findings = append(p.Findings, noDefaults(&p.Definition, table, p.defaults)...); p.Refused() {
		return p, nil
	}
	if p.Deletes, err = p.goneBefore(ctx, tx); err != nil {
		return nil, err
	}
	if p.former, err = formerColumns(ctx, tx, p.kindID, n, table); err != nil {
		return nil, err
	}
	drift, err := driftOf(ctx, tx, p.kindID, &p.Definition)
	if err != nil {
		return nil, err
	}
	if p.swap, err = swapped(ctx, tx, p.kindID, n.table); err != nil {
		return nil, err
	}
	if len(drift) == 0 {
		if drift, err = tableDrift(ctx, tx, p.kindID); err != nil {
			return nil, err
		}
	}
	if len(drift) > 0 || p.swap || p.surplus() {
		p.Statements = p.statements()
	}
	p.Statements = append(p.Statements, grants...)
	return p, nil
}

func declaredChanges(k *schema.Kind) []string {
	var references [][]string
	for i := range k.References {
		references = append(references, k.References[i].Columns)
	}
	if k.Gone != "" {
		references = append(references, []string{k.Gone})
	}
	return changes(k.Key, references)
}

// statements makes the functions, and replaces the triggers.
func (p *Plan) statements() (out []string) {
	if p.swap {
		for _, event := range events {
			out = append(out, dropFunction(p.kindID, event))
		}
	}
	for _, table := range p.tables { // the table first: partitions have copies of its trigger for rows
		for _, event := range events {
			out = append(out, fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s", triggerName(event), table.SQL()))
		}
	}
	out = append(out, p.viewStatements()...)
	sum := p.Definition.Checksum()
	for _, t := range triggersOf(p.kindID, &p.Definition) {
		f := functionName(p.kindID, t.event)
		out = append(out, t.function(p.kindID, sum), "REVOKE ALL ON FUNCTION "+f+"() FROM PUBLIC")
		for _, table := range t.tables(p.tables) {
			out = append(out, t.create(p.kindID, &p.Definition, table))
		}
	}
	return out
}

// A statement fires the triggers of the table that it names, and not the triggers of its partitions.
const tablesSQL = `
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass($1) OR c.relispartition AND c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) AS t)
ORDER BY c.oid <> pg_catalog.to_regclass($1), c.oid`

const partitionKeySQL = `
SELECT DISTINCT COALESCE(a.attname::text, '') FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) AS t
JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = t.relid CROSS JOIN LATERAL pg_catalog.unnest(p.partattrs::int2[]) AS k (attnum)
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0 ORDER BY 1`

// partitionKey returns the columns that say to which partition a row of a table belongs.
func partitionKey(ctx context.Context, tx pgx.Tx, table schema.TableName) ([]string, error) {
	rows, err := tx.Query(ctx, partitionKeySQL, table.SQL())
	if err != nil {
		return nil, fmt.Errorf("read the partition key of %s: %w", table, err)
	}
	key, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the partition key of %s: %w", table, err)
	}
	return key, nil
}

// tablesOf returns a table and its partitions, with theirs.
func tablesOf(ctx context.Context, tx pgx.Tx, table schema.TableName) ([]schema.TableName, error) {
	rows, err := tx.Query(ctx, tablesSQL, table.SQL())
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", table, err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[schema.TableName])
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", table, err)
	}
	return tables, nil
}

// sources returns the functions of the triggers, for verifications.
func (p *Plan) sources() map[string]string {
	sources := map[string]string{}
	for _, t := range triggersOf(p.kindID, &p.Definition) {
		sum := md5.Sum([]byte(t.source(p.Definition.Checksum()))) //nolint:gosec // no secret: PostgreSQL computes the same
		sources[triggerName(t.event)] = hex.EncodeToString(sum[:])
	}
	return sources
}

const (
	// Rows count under the former references until each value has its new right. A former reference whose
	// columns are gone is left out.
	insertAttachmentSQL = `
INSERT INTO dbcontroller.attachment AS a (kind_id, kind, definition, checksum, functions, strict, ready, partitions)
VALUES (@kind_id, @kind, @definition, @checksum, @functions, @strict, true,
    ARRAY(SELECT i.inhrelid || ':' || i.xmin FROM pg_catalog.pg_inherits i WHERE i.inhrelid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(@table::regclass) AS t)))
ON CONFLICT (kind_id) DO UPDATE SET kind = EXCLUDED.kind, partitions = EXCLUDED.partitions, definition = EXCLUDED.definition, checksum = EXCLUDED.checksum,
    functions = EXCLUDED.functions, strict = EXCLUDED.strict, ready = true, walked = false, confirmed = false, attached_at = now(),
    former = (
        SELECT COALESCE(jsonb_agg(DISTINCT f.reference), '[]') FROM (
            SELECT jsonb_array_elements(a.former) AS reference
            UNION ALL
            SELECT jsonb_array_elements(COALESCE(a.definition -> 'references', '[]'))
        ) AS f
        WHERE a.ready AND NOT (f.reference -> 'columns' ?| @replaced OR COALESCE(f.reference ->> 'region' = ANY (@replaced), false) OR COALESCE(f.reference #>> '{when,column}' = ANY (@replaced), false))
            AND NOT EXISTS (SELECT FROM jsonb_array_elements(COALESCE(EXCLUDED.definition -> 'references', '[]')) AS n WHERE n = f.reference)
            AND NOT EXISTS (
                SELECT FROM jsonb_array_elements_text(f.reference -> 'columns' || CASE WHEN f.reference ? 'region' THEN jsonb_build_array(f.reference -> 'region') ELSE '[]' END
                    || CASE WHEN f.reference ? 'when' THEN jsonb_build_array(f.reference #> '{when,column}') ELSE '[]' END) AS c
                WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute p WHERE p.attrelid = @view::regclass AND p.attname = c AND NOT p.attisdropped)))`

	// Rows of resources may have been deleted while no trigger saw it.
	anyGoneSQL = `INSERT INTO dbcontroller.deleted_row (kind_id) VALUES ($1)`

	// Another table of the kind before, under another name. One that has the name of that table has taken its
	// place.
	otherTableSQL = `
SELECT definition FROM dbcontroller.attachment
WHERE kind_id = $1 AND definition -> 'table' <> $2::jsonb -> 'table' AND COALESCE(dbcontroller.attached_relation($1) <> pg_catalog.to_regclass($3), true)`

	// The triggers belong to the schema's owner, who may write the tables of the controller and is, where
	// roles are divided, no superuser.
	schemaOwnerSQL = `SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(nspowner)) FROM pg_catalog.pg_namespace WHERE nspname = 'dbcontroller'`
)

// Apply carries a plan out in one transaction: the triggers of a table are there together or not at all. It
// waits for the lock of the table at most 200 ms at a time, so that no statement of the application waits
// behind it for longer, and tries again until ctx ends. Told is called before each pause, with an error that
// names the locked table.
func Apply(ctx context.Context, conn *pgx.Conn, p *Plan, told func(error)) error {
	raw, err := json.Marshal(p.Definition)
	if err != nil {
		return err
	}
	functions, err := json.Marshal(p.sources())
	if err != nil {
		return err
	}
	return patiently(ctx, conn, told, func(tx pgx.Tx) error {
		var present bool
		if err := tx.QueryRow(ctx, `SELECT pg_catalog.to_regclass($1) IS NOT DISTINCT FROM $2::oid`,
			p.names.table.SQL(), p.relation).Scan(&present); err != nil {
			return fmt.Errorf("read %s: %w", p.names.table, err)
		}
		if !present {
			return fmt.Errorf("%s was renamed or replaced meanwhile: attach again", p.names.table)
		}
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog, pg_temp`); err != nil {
			return err
		}
		var owner string
		if err := tx.QueryRow(ctx, schemaOwnerSQL).Scan(&owner); err != nil {
			return fmt.Errorf("read the owner of schema dbcontroller: %w", err)
		}
		var other []byte
		switch err := tx.QueryRow(ctx, otherTableSQL, p.kindID, string(raw), p.names.table.SQL()).Scan(&other); {
		case err == nil:
			return fmt.Errorf("kind %s is attached to another table: detach it first", p.Kind)
		case !errors.Is(err, pgx.ErrNoRows):
			return lockOf(attachments, err)
		}
		if err := p.allServe(ctx, tx); err != nil {
			return err
		}
		if err := p.number(ctx, tx); err != nil {
			return err
		}
		for _, sql := range p.Statements {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return lockOf(p.names.table.String(), err)
			}
		}
		made := []string{"VIEW " + schema.TableView(p.kindID).SQL(), "FUNCTION " + rowFunction(p.kindID)}
		for _, t := range triggersOf(p.kindID, &p.Definition) {
			made = append(made, "FUNCTION "+functionName(p.kindID, t.event))
		}
		for _, object := range made {
			if _, err := tx.Exec(ctx, "ALTER "+object+" OWNER TO "+owner); err != nil {
				return err
			}
		}
		// the walk notes them anew
		if _, err := tx.Exec(ctx, `DELETE FROM dbcontroller.lacking WHERE kind_id = $1`, p.kindID); err != nil {
			return lockOf("dbcontroller.lacking", err)
		}
		if _, err := tx.Exec(ctx, anyGoneSQL, p.kindID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertAttachmentSQL, pgx.StrictNamedArgs{
			"kind_id": p.kindID, "kind": p.Kind.Kind, "definition": string(raw), "checksum": p.Definition.Checksum(),
			"functions": string(functions), "strict": p.Definition.Strict(), "table": p.names.table.SQL(),
			"view": schema.TableView(p.kindID).SQL(), "replaced": append([]string{}, p.names.replaced...),
		})
		return lockOf(attachments, err)
	})
}

const numberTargetsSQL = `
WITH d AS (
    INSERT INTO dbcontroller.deployment (service, region) SELECT $1, COALESCE($3, m.region) FROM dbcontroller.meta m WHERE m.singleton AND NOT $4 ON CONFLICT DO NOTHING
)
INSERT INTO dbcontroller.kind (service, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// number numbers the kinds and deployments of targets: the plans of the triggers have the numbers as
// constants.
func (p *Plan) number(ctx context.Context, tx pgx.Tx) error {
	for _, r := range p.Definition.References {
		region := &r.Target.Region
		if *region == "" {
			region = nil
		}
		if _, err := tx.Exec(ctx, numberTargetsSQL, r.Target.Kind.Service, r.Target.Kind.Kind, region,
			r.Region != ""); err != nil {
			return fmt.Errorf("number the targets of %s: %w", p.Table, err)
		}
	}
	return nil
}

// allServe fails when a process of the deployment cannot serve references of rows. One that joins afterwards
// finds the attachment.
func (p *Plan) allServe(ctx context.Context, tx pgx.Tx) error {
	if len(p.Definition.References) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock(110373738146831)`); err != nil { // of joins
		return lockOf("the list of the deployment's processes", err)
	}
	var without int
	if err := tx.QueryRow(ctx, membersSQL).Scan(&without); err != nil {
		return err
	}
	if without > 0 {
		return fmt.Errorf(
			"%d processes of the deployment cannot serve references of %s: they run with --delegations=false",
			without, p.Table)
	}
	return nil
}

// ReadAgain makes the controller look at all values of a table again, after statements that no trigger saw.
func ReadAgain(ctx context.Context, conn *pgx.Conn, p *Plan) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, anyGoneSQL, p.kindID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lookAll(&p.Definition, " SELECT ")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE dbcontroller.attachment SET walked = false WHERE kind_id = $1`, p.kindID)
		return err
	})
	if err != nil {
		return fmt.Errorf("read table %s again: %w", p.Table, err)
	}
	return nil
}

// attachments is the table of all attachments.
const attachments = "dbcontroller.attachment"

// lockOf names the object that another transaction has locked, if that is the error.
func lockOf(what string, err error) error {
	if locked(err) {
		return fmt.Errorf("%s is locked by another transaction: %w", what, err)
	}
	return err
}

func locked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01")
}

// patiently runs a transaction under a short lock timeout, again and again while a lock is not to be had.
func patiently(ctx context.Context, conn *pgx.Conn, told func(error), run func(pgx.Tx) error) error {
	for pauses := (retry.Backoff{First: 100 * time.Millisecond, Max: 2 * time.Second}); ; {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '200ms'`); err != nil {
				return err
			}
			return run(tx)
		})
		if !locked(err) {
			return err
		}
		told(err)
		if pauses.Wait(ctx) != nil {
			return err
		}
	}
}
