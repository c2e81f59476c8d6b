// Package rows reads, locks and changes the rows of attached tables, and gives a row that is referred to its
// shadow.
//
// A user's transaction locks its rows, and then, in a trigger, their shadows. The store locks a row before
// its shadow where it can (references), and after it where it must (deletions): then with a lock timeout
// below deadlock_timeout, so that in a deadlock the store's transaction fails and is tried again.
package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Rows are the rows of the attached tables of a deployment.
type Rows struct {
	*db.DB
	tables atomic.Pointer[map[int32]*Table]
	reads  atomic.Int64 // the number of the last reading that began
	mu     sync.Mutex
	read   int64 // guarded by mu; the reading that tables are of
}

// New returns the rows of a database; Load reads which tables are attached.
func New(d *db.DB) *Rows { return &Rows{DB: d} }

// The view fixes the types of its columns. A domain has the category of its type.
const selectAttachmentsSQL = `
SELECT a.kind_id, a.kind, a.ready, a.definition, a.former, a.walked, ARRAY(SELECT c.attname::text FROM pg_attribute c JOIN pg_type t ON t.oid = c.atttypid
    WHERE c.attrelid = to_regclass('dbcontroller.attached_' || a.kind_id) AND c.attnum > 0 AND t.typcategory = 'E')
FROM dbcontroller.attachment a ORDER BY a.kind_id`

// Load reads which tables are attached.
func (s *Rows) Load(ctx context.Context) error {
	_, err := s.LoadDetached(ctx)
	return err
}

// LoadDetached is Load, and returns the numbers of kinds whose tables are detached, and whose references are
// still to be given up.
func (s *Rows) LoadDetached(ctx context.Context) (detached []int32, err error) {
	return s.load(ctx, s.Pool)
}

// Refresh reads which tables are attached before rows decide, or are deleted or changed: a process that has
// just started, or has not noticed an attach or a detach of the last moments, would leave rows behind, or
// delete rows of a detached table. behind: the database runs another version than this process, so that it
// may have tables although this version has none.
func (s *Rows) Refresh(ctx context.Context, q db.Querier, behind bool) error {
	if v := s.Version.Load(); !behind && (v == nil || !v.Tables) && len(s.Tables()) == 0 {
		return nil
	}
	_, err := s.load(ctx, q)
	return err
}

func (s *Rows) load(ctx context.Context, q db.Querier) (detached []int32, err error) {
	number := s.reads.Add(1)
	found, err := q.Query(ctx, selectAttachmentsSQL)
	if err != nil {
		return nil, fmt.Errorf("read the attached tables: %w", err)
	}
	tables := map[int32]*Table{}
	var id int32
	var kind string
	var raw, formerly []byte
	var ready, walked bool
	var enums []string
	_, err = pgx.ForEachRow(found, []any{&id, &kind, &ready, &raw, &formerly, &walked, &enums}, func() error {
		if !ready {
			detached = append(detached, id)
			return nil
		}
		var d schema.Definition
		if err := json.Unmarshal(raw, &d); err != nil {
			return fmt.Errorf("definition of the attachment of %s: %w", kind, err)
		}
		var former []schema.DefinitionReference
		if err := json.Unmarshal(formerly, &former); err != nil {
			return fmt.Errorf("former references of the attachment of %s: %w", kind, err)
		}
		tables[id] = newTable(id, kind, d, former, slices.Clone(enums))
		tables[id].Walked, tables[id].Former = walked, len(former) > 0
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the attached tables: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if number > s.read { // else a later reading is stored
		s.read = number
		if before := s.tables.Swap(&tables); len(tables) > 0 && (before == nil || len(*before) == 0) {
			s.WakeAttached()
		}
	}
	return detached, nil
}

// Tables returns the attached tables by the number of their kind.
func (s *Rows) Tables() map[int32]*Table {
	if tables := s.tables.Load(); tables != nil {
		return *tables
	}
	return nil
}

// Of returns the table of a kind; nil when none is attached.
func (s *Rows) Of(kindID int32) *Table { return s.Tables()[kindID] }

// Table is an attached table, with the statements on its rows, by its view. The statements consist of quoted
// identifiers and types of the definition; values are parameters. A row is found by the texts of its key
// columns, one array each.
type Table struct {
	KindID int32
	// Kind is its name when the table was attached.
	Kind       string
	Definition schema.Definition
	Walked     bool // the distinct values of the references have rights, or are lacking
	Former     bool // there are former references

	enums                                 []string // columns of an enum, or of a domain over one
	readSQL, shareSQL, lockSQL, deleteSQL string
	firstPageSQL, nextPageSQL             string
	// referring are the references, and after them the former ones: until each value has its new right rows
	// count under both.
	referring []*referring
}

func newTable(kindID int32, kind string, d schema.Definition, former []schema.DefinitionReference,
	enums []string,
) *Table {
	t := &Table{KindID: kindID, Kind: kind, Definition: d, enums: enums}
	view := t.view()
	from := fmt.Sprintf("FROM %s JOIN %s AS t ON %s", t.keys(), view, t.sameKey())
	order := " ORDER BY " + t.columns("t.")
	t.readSQL = fmt.Sprintf("SELECT i.n, %s %s", t.values(), from)
	share := "FOR KEY SHARE"
	if d.Gone != nil { // a row is deleted by an UPDATE of no key
		share = "FOR SHARE"
	}
	t.shareSQL = fmt.Sprintf("SELECT i.n %s%s %s OF t", from, order, share)
	t.lockSQL = fmt.Sprintf("SELECT i.n %s%s FOR UPDATE OF t", from, order)
	t.deleteSQL = fmt.Sprintf("%s %s WHERE %s RETURNING %s", t.deletion(), t.changed(), t.sameKey(), t.keyTexts())
	page := fmt.Sprintf("SELECT %s, %s FROM %s AS t", t.keyTexts(), t.values(), view)
	t.firstPageSQL = page + order + " LIMIT $1"
	t.nextPageSQL = fmt.Sprintf("%s WHERE (%s) > (%s)%s LIMIT $1", page, t.columns("t."), t.parameters(2), order)
	for i := range d.References {
		t.referring = append(t.referring, newReferring(t, &d.References[i]))
	}
	for i := range former {
		t.referring = append(t.referring, newReferring(t, &former[i]))
	}
	return t
}

// view returns the view of the table for a statement.
func (t *Table) view() string { return schema.TableView(t.KindID).SQL() }

// deletion returns the beginning of a statement that deletes rows t, up to the other relations: it says of a
// row that it is deleted, where a column does.
func (t *Table) deletion() string {
	gone := t.Definition.Gone
	if gone == nil {
		return fmt.Sprintf("DELETE FROM %s AS t USING", t.view())
	}
	value := "now()"
	if gone.Type == schema.GoneFlag {
		value = "true"
	}
	return fmt.Sprintf("UPDATE %s AS t SET %s = %s FROM", t.view(), schema.QuoteIdentifier(gone.Name), value)
}

// keys returns the parameters, an array of texts for each key column, as the relation i (k1, k2, …, n).
func (t *Table) keys() string {
	var arrays, names []string
	for i := range t.Definition.Key {
		arrays, names = append(arrays, fmt.Sprintf("$%d::text[]", i+1)), append(names, fmt.Sprintf("k%d", i+1))
	}
	return fmt.Sprintf("unnest(%s) WITH ORDINALITY AS i (%s, n)", strings.Join(arrays, ", "), strings.Join(names, ", "))
}

// changed returns the parameter of change with keys as the same relation.
func (t *Table) changed() string {
	var arrays, names []string
	for i := range t.Definition.Key {
		arrays, names = append(arrays, fmt.Sprintf("ARRAY(SELECT unnest(($1::text[])[%d:%[1]d]))", i+1)),
			append(names, fmt.Sprintf("k%d", i+1))
	}
	return fmt.Sprintf("unnest(%s) WITH ORDINALITY AS i (%s, n)", strings.Join(arrays, ", "), strings.Join(names, ", "))
}

func (t *Table) sameKey() string {
	same := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		same[i] = fmt.Sprintf("t.%s = i.k%d::%s", schema.QuoteIdentifier(c.Name), i+1, schema.CastType(c.Type))
	}
	return strings.Join(same, " AND ")
}

func (t *Table) columns(prefix string) string {
	names := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		names[i] = prefix + schema.QuoteIdentifier(c.Name)
	}
	return strings.Join(names, ", ")
}

func (t *Table) parameters(first int) string {
	casts := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		casts[i] = fmt.Sprintf("$%d::text::%s", first+i, schema.CastType(c.Type))
	}
	return strings.Join(casts, ", ")
}

func (t *Table) keyTexts() string {
	texts := make([]string, len(t.Definition.Key))
	for i, c := range t.Definition.Key {
		texts[i] = fmt.Sprintf("t.%s::text", schema.QuoteIdentifier(c.Name))
	}
	return "ARRAY[" + strings.Join(texts, ", ") + "]"
}

// values returns the columns of all references as one array: of each reference its columns, then its region
// column if it has one.
func (t *Table) values() string {
	var texts []string
	for _, r := range t.Definition.References {
		for _, c := range r.Columns {
			text := t.text("t.", c)
			if when := t.condition(&r, "t."); when != nil {
				text = "CASE WHEN " + strings.Join(when, " AND ") + " THEN " + text + " END"
			}
			texts = append(texts, text)
		}
		if r.Region != "" {
			texts = append(texts, t.text("t.", r.Region))
		}
	}
	return "ARRAY[" + strings.Join(texts, ", ") + "]::text[]"
}

// text returns the text of a column, which has a prefix. The owner of an enum can give it a cast to text at
// any time, whose code a session would run with its own rights: format calls the output function, which is
// PostgreSQL's.
func (t *Table) text(prefix, column string) string {
	name := prefix + schema.QuoteIdentifier(column)
	if !slices.Contains(t.enums, column) {
		return name + "::text"
	}
	return "CASE WHEN " + name + " IS NOT NULL THEN pg_catalog.format('%s', " + name + ") END"
}

// condition returns the conditions on a row, whose columns have a prefix, under which it refers: by the type,
// for the index, and by the text.
func (t *Table) condition(r *schema.DefinitionReference, prefix string) []string {
	if r.When == nil {
		return nil
	}
	value := schema.QuoteLiteral(r.When.Value)
	return []string{
		prefix + schema.QuoteIdentifier(r.When.Column) + " = " + value,
		"(" + t.text(prefix, r.When.Column) + `) COLLATE "C" = ` + value,
	}
}

// Key names a row.
type Key struct {
	Kind int32
	Name string
}

// Any reports whether one of the keys is of an attached table.
func (s *Rows) Any(keys []Key) bool {
	tables := s.Tables()
	return slices.ContainsFunc(keys, func(k Key) bool { return tables[k.Kind] != nil })
}

// ErrDeletionPending is the error of a deletion of a row that was deleted before: it waits until that
// deletion is carried out.
var ErrDeletionPending = fmt.Errorf(
	"%w: a row of an attached table was deleted, and its deletion is not carried out yet", peer.ErrAborted)

const lockTimeoutSQL = `SET LOCAL lock_timeout = '300ms'`

// grouped returns the names of attached kinds, by kind.
func (s *Rows) grouped(keys []Key) map[*Table][]string {
	tables, groups := s.Tables(), map[*Table][]string{}
	if len(tables) == 0 {
		return nil
	}
	for _, k := range keys {
		if t := tables[k.Kind]; t != nil {
			groups[t] = append(groups[t], k.Name)
		}
	}
	return groups
}

// each calls run for the attached kinds of keys, in the order of their numbers.
func (s *Rows) each(keys []Key, run func(t *Table, names []string) error) error {
	groups := s.grouped(keys)
	order := make([]*Table, 0, len(groups))
	for t := range groups {
		order = append(order, t)
	}
	slices.SortFunc(order, func(a, b *Table) int { return int(a.KindID - b.KindID) })
	for _, t := range order {
		if err := run(t, groups[t]); err != nil {
			return err
		}
	}
	return nil
}

// present runs a statement that returns the index of each row that exists, and returns the names of these
// rows.
func (t *Table) present(ctx context.Context, q db.Querier, sql string, names []string) ([]string, error) {
	args, at := t.arrays(names)
	if len(at) == 0 {
		return nil, nil
	}
	found, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	var n int
	var there []string
	_, err = pgx.ForEachRow(found, []any{&n}, func() error { there = append(there, names[at[n-1]]); return nil })
	return there, err
}

// Share locks rows against deletion until the end of the transaction, and returns the names of the existing
// ones.
func (t *Table) Share(ctx context.Context, tx pgx.Tx, names []string) ([]string, error) {
	return t.present(ctx, tx, t.shareSQL, names)
}

var insertShadowsSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::smallint[]) AS i (uid, name, shard)
    WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = $4 AND s.name = i.name)
), s AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
    SELECT uid, $4, {active}, shard, nextval('dbcontroller.revision'), 1, name FROM i
    ON CONFLICT ON CONSTRAINT shadow_name DO NOTHING
    RETURNING *
), r AS (
    INSERT INTO dbcontroller.resource (id, body) SELECT id, '{}' FROM s
)` + db.ChangeTo(`{active}`, `(
    SELECT uid, revision, generation, kind_id, created_at, name, NULL::jsonb AS labels, '{}'::jsonb AS body, NULL::jsonb AS owners, block_deletion,
        NULL::text[] AS finalizers, NULL::jsonb AS status, NULL::bigint AS status_generation FROM s
) AS created`))

// A transaction of the users with an older snapshot would not see a reference that is established here: the
// new version of the shadow fails it.
const touchShadowsSQL = `
WITH locked AS (
    SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = ANY ($2) ORDER BY id FOR NO KEY UPDATE
)
UPDATE dbcontroller.shadow s SET updated_at = s.updated_at FROM locked WHERE s.id = locked.id`

// EnsureNamed gives rows of attached tables shadows, in a transaction of its own: most rows have none,
// because no reference names them.
func (s *Rows) EnsureNamed(ctx context.Context, keys ...Key) error {
	if !s.Any(keys) {
		return nil
	}
	return s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		_, err := s.Ensure(ctx, tx, keys)
		return err
	})
}

// Ensure locks the rows among some targets against deletion, and inserts a shadow for each existing one. It
// returns the targets whose row does not exist. It fails with db.CodeLockNotAvailable when a transaction that
// deletes one of them takes long.
func (s *Rows) Ensure(ctx context.Context, tx pgx.Tx, targets []Key) (absent []Key, err error) {
	err = s.each(targets, func(t *Table, names []string) error {
		if _, err := tx.Exec(ctx, lockTimeoutSQL); err != nil {
			return err
		}
		there, err := t.Share(ctx, tx, names)
		if err != nil {
			return fmt.Errorf("lock rows of %s: %w", t.Definition.Table, err)
		}
		exists := map[string]bool{}
		for _, name := range there {
			exists[name] = true
		}
		for _, name := range names {
			if !exists[name] {
				absent = append(absent, Key{t.KindID, name})
			}
		}
		if err := s.giveShadows(ctx, tx, t.KindID, there); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SET LOCAL lock_timeout TO DEFAULT`)
		return err
	})
	return absent, err
}

func (s *Rows) giveShadows(ctx context.Context, tx pgx.Tx, kindID int32, names []string) error {
	slices.Sort(names) // two transactions that insert the same shadows wait for one another in one order
	names = slices.Compact(names)
	uids, shards := make([]uuid.UUID, len(names)), make([]int16, len(names))
	for i, name := range names {
		uids[i], shards[i] = uuid.Must(uuid.NewV7()), int16(schema.Shard(name))
	}
	b := &pgx.Batch{}
	b.Queue(touchShadowsSQL, kindID, names)
	b.Queue(insertShadowsSQL, uids, names, shards, kindID)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("give rows shadows: %w", err)
	}
	return nil
}

const selectGoingSQL = `
SELECT DISTINCT i.kind_id, i.name FROM unnest($1::int[], $2::text[]) AS i (kind_id, name)
CROSS JOIN LATERAL (SELECT FROM dbcontroller.deleted_row d WHERE d.kind_id = i.kind_id AND d.name = i.name AND d.gone IS NOT NULL LIMIT 1) AS d`

// After TRUNCATE, any row of the table.
const selectPendingDeletionsSQL = selectGoingSQL + `
UNION
SELECT i.kind_id, i.name FROM unnest($1::int[], $2::text[]) AS i (kind_id, name) WHERE i.kind_id IN (SELECT kind_id FROM dbcontroller.deleted_row WHERE name IS NULL)`

// Going returns the targets with a deleted row whose deletion is not carried out yet. It reads rows that were
// committed before the lock of their shadows was granted, so call it after that lock.
func (s *Rows) Going(ctx context.Context, tx pgx.Tx, targets []Key) ([]Key, error) {
	return s.deleted(ctx, tx, selectGoingSQL, targets)
}

func (s *Rows) deleted(ctx context.Context, tx pgx.Tx, sql string, keys []Key) ([]Key, error) {
	var kinds []int32
	var names []string
	for t, of := range s.grouped(keys) {
		for _, name := range of {
			kinds, names = append(kinds, t.KindID), append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	found, err := tx.Query(ctx, sql, kinds, names)
	if err != nil {
		return nil, fmt.Errorf("read deleted rows: %w", err)
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[Key])
}

// Take reads which tables are attached, locks those rows that a deletion will change, and fails with
// ErrDeletionPending when one of them was deleted and its deletion is still to be carried out: a row of the
// same name is another one.
func (s *Rows) Take(ctx context.Context, tx pgx.Tx, keys []Key, behind bool) error {
	if err := s.Refresh(ctx, tx, behind); err != nil {
		return err
	}
	err := s.each(keys, func(t *Table, names []string) error {
		if _, err := tx.Exec(ctx, lockTimeoutSQL); err != nil {
			return err
		}
		if _, err := t.present(ctx, tx, t.lockSQL, names); err != nil {
			return fmt.Errorf("lock rows of %s: %w", t.Definition.Table, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	pendingOf, err := s.deleted(ctx, tx, selectPendingDeletionsSQL, keys)
	if err == nil && len(pendingOf) > 0 {
		err = fmt.Errorf("%s: %w", pendingOf[0].Name, ErrDeletionPending)
	}
	return err
}

// arrays returns the parameters for some names, and their indexes. Names that no row can have are left out.
func (t *Table) arrays(names []string) (args []any, at []int) {
	columns, at := t.keyColumns(names)
	for _, c := range columns {
		args = append(args, c)
	}
	return args, at
}

// keyColumns is arrays for change.
func (t *Table) keyColumns(names []string) (columns [][]string, at []int) {
	columns = make([][]string, len(t.Definition.Key))
	for i, name := range names {
		key, ok := t.Definition.RowKey(name)
		if !ok {
			continue
		}
		at = append(at, i)
		for c := range columns {
			columns[c] = append(columns[c], key[c])
		}
	}
	return columns, at
}
