package attach

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/schema"
)

// Finding is the result of a check of a table.
type Finding struct {
	Text string `json:"text"`
	SQL  string `json:"sql,omitempty"` // a statement that helps
	// Refuses: the table cannot be attached before this is done.
	Refuses bool `json:"refuses,omitempty"`

	index []string // the columns of the index that SQL creates
}

type checker struct {
	service string
	model   *schema.Model
	kind    *schema.Kind
	table   *catalogue.Table // under the names of the declaration
	present *catalogue.Table
	names   names
	out     []Finding
}

func (c *checker) refuse(sql, format string, args ...any) {
	c.out = append(c.out, Finding{Text: fmt.Sprintf(format, args...), SQL: sql, Refuses: true})
}

func (c *checker) advise(sql, format string, args ...any) {
	c.out = append(c.out, Finding{Text: fmt.Sprintf(format, args...), SQL: sql})
}

// check compares the declaration of a kind with the catalogue of its database.
func check(db *catalogue.Database, model *schema.Model, k *schema.Kind, n names) []Finding {
	c := &checker{
		service: model.Descriptor.Service, model: model, kind: k, table: n.renamed(db, k),
		present: db.Table(n.table), names: n,
	}
	if c.table == nil {
		c.refuse("", "there is no table %s; names are written as in the catalogue, in upper and lower case", k.Table)
		return c.out
	}
	c.relation()
	c.key()
	c.gone()
	for i := range k.References {
		c.reference(&k.References[i])
	}
	return c.out
}

func (c *checker) relation() {
	t := c.table
	switch {
	case t.Partition:
		c.refuse("", "%s is a partition: attach the partitioned table", t.Name)
	case t.Form == catalogue.Partitioned:
		c.advise("",
			"%s is partitioned: DETACH, DROP and ATTACH of a partition fire no trigger. A new partition needs attach again before statements name it instead of the table; "+
				"rows that a detached or dropped partition takes away are seen by verify alone: delete rows to which others refer first", t.Name)
	case t.Form != catalogue.Ordinary:
		c.refuse("", "%s is no ordinary table: attach the table behind it", t.Name)
	case t.Inherits || t.Inherited:
		c.refuse("", "%s has a parent or children by inheritance: a key is unique only in each of them", t.Name)
	}
}

func (c *checker) key() {
	t := c.table
	if !c.exist("key", c.kind.Key) {
		return
	}
	for _, name := range c.kind.Key {
		column := t.Column(name)
		if !column.Type.Canonical() {
			c.refuse("",
				"key column %s is of type %s; a key is of %s, whose values have one text (a numeric without digits behind the point)", name, column.Type, strings.Join(schema.KeyTypes, ", "))
		}
		if !column.NotNull {
			c.refuse(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL;", c.names.table.SQL(),
				schema.QuoteIdentifier(c.names.column(name))), "key column %s can be NULL", name)
		}
	}
	if !t.UniqueOn(c.kind.Key) {
		c.refuse("", "no unique index has exactly the columns %s", strings.Join(c.kind.Key, ", "))
	}
}

// gone checks the column that says of rows that they are deleted.
func (c *checker) gone() {
	if c.kind.Gone == "" || !c.exist("gone", []string{c.kind.Gone}) {
		return
	}
	column := c.table.Column(c.kind.Gone)
	switch t := column.Type; {
	case column.Generated:
		c.refuse("", "gone: %s is generated: the controller says by it that it deletes a row", column.Name)
	case t.Schema != "pg_catalog" || t.String() != schema.GoneFlag && !slices.Contains(schema.GoneTimes, t.String()):
		c.refuse("", "gone: %s is of type %s; want %s, which is true, or %s, which is not NULL", column.Name, t,
			schema.GoneFlag, strings.Join(schema.GoneTimes, ", "))
	}
}

func (c *checker) exist(what string, columns []string) bool {
	ok := true
	for _, name := range columns {
		if c.table.Column(name) == nil {
			c.refuse("", "%s: %s has no column %q", what, c.table.Name, name)
			ok = false
		}
	}
	return ok
}

func (c *checker) reference(r *schema.Reference) {
	columns := r.Columns
	if r.Region.Column != "" {
		columns = append(slices.Clone(columns), r.Region.Column)
	}
	if r.When.Column != "" {
		columns = append(slices.Clone(columns), r.When.Column)
	}
	if !c.exist("columns", columns) {
		return
	}
	name := strings.Join(r.Columns, ", ")
	c.target(r, name)
	c.condition(r)
	if len(r.Targets) > 1 {
		c.refuse("", "%s: a value of columns cannot tell which of %d kinds it names: declare one target", name,
			len(r.Targets))
	}
	if r.Behaviour.Unsets() && !r.UnsetToDefault || r.Missing == schema.MissingUnset {
		unset := r.Unset
		if len(unset) == 0 {
			unset = r.Columns
		}
		for _, column := range unset {
			switch col := c.table.Column(column); {
			case c.table.InPrimaryKey(column):
				c.refuse("",
					"%s: UNSET sets it to NULL, and it is a column of the primary key, which has no NULL: declare BLOCK or CASCADE_DELETE, or refer by columns outside the primary key", column)
			case col.NotNull:
				c.refuse(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", c.names.table.SQL(),
					schema.QuoteIdentifier(
						c.names.column(column))), "%s: UNSET sets it to NULL, and it is NOT NULL", column)
			case col.Generated:
				c.refuse("", "%s: UNSET sets it to NULL, and it is generated", column)
			}
		}
	}
	c.written(r, columns)
	if finds := indexed(r); !c.table.Finds(r.Columns) && !c.table.Finds(finds) {
		finds = c.names.all(finds)
		c.refuse(c.present.CreateIndex(finds),
			"%s: no index finds the rows that refer to a target: it answers who refers (attach --create-indexes creates it)", name)
		c.out[len(c.out)-1].index = finds
		for _, i := range c.present.Indexes {
			if !i.Valid && slices.Equal(i.Columns, finds) {
				c.advise(fmt.Sprintf("DROP INDEX CONCURRENTLY %s.%s;", schema.QuoteIdentifier(c.names.table.Schema),
					schema.QuoteIdentifier(i.Name)), "%s: the index %s is left of a build that did not end", name, i.Name)
			}
		}
	}
	c.native(r, name)
}

// written checks columns that the database computes, and the type of the column with the region.
func (c *checker) written(r *schema.Reference, columns []string) {
	if r.Behaviour.Unsets() && r.UnsetToDefault {
		for _, column := range r.Columns {
			if c.table.Column(column).Generated {
				c.refuse("", "%s: UNSET sets it to its DEFAULT, and it is generated", column)
			}
		}
	}
	if c.table.Form == catalogue.Partitioned { // a row that moves has no value there yet when its trigger is fired
		for _, column := range columns {
			if c.table.Column(column).Generated {
				c.refuse("", "%s: it is generated, and %s is partitioned: refer by an ordinary column", column,
					c.table.Name)
			}
		}
	}
	if region := r.Region.Column; region != "" {
		if t := c.table.Column(region).Type; !t.Enum && (t.Schema != "pg_catalog" || !schema.Textual(t.String())) {
			c.refuse("", "region: %s is of type %s; want a text or an enum", region, t)
		}
	}
}

// condition checks that a column can have the value that a reference asks for.
func (c *checker) condition(r *schema.Reference) {
	if r.When.Column == "" {
		return
	}
	t, value := c.table.Column(r.When.Column).Type, r.When.Value
	bits := map[string]int{"smallint": 16, "integer": 32, "bigint": 64}[t.String()]
	n, err := strconv.ParseInt(value, 10, max(bits, 16))
	switch {
	case t.Enum && t.Domain:
		c.refuse("",
			"when: %s is of a domain over an enum, which PostgreSQL compares with no literal: change its type to the enum", r.When.Column)
	case t.Enum && !slices.Contains(t.Labels, value):
		c.refuse("", "when: %s has no value %q; its values are %s", r.When.Column, value, strings.Join(t.Labels, ", "))
	case t.Enum:
	case t.Schema == "pg_catalog" && schema.Textual(t.String()):
		if t.String() == "character" && strings.HasSuffix(value, " ") {
			c.refuse("", "when: %s is of type character, whose values have no blanks at the end", r.When.Column)
		}
	case t.Schema != "pg_catalog" || bits == 0:
		c.refuse("", "when: %s is of type %s; want an integer, a text or an enum", r.When.Column, t)
	case err != nil || strconv.FormatInt(n, 10) != value:
		c.refuse("", "when: %s is of type %s, and %q is no text of one", r.When.Column, t, value)
	}
}

// indexed returns the columns of the index that finds the rows that refer to a target.
func indexed(r *schema.Reference) []string {
	if r.When.Column == "" {
		return r.Columns
	}
	return append([]string{r.When.Column}, r.Columns...)
}

// native advises about native keys: a key that acts beside the reference, or a key that would be better
// because both tables are in one database.
func (c *checker) native(r *schema.Reference, name string) {
	beside := false
	for _, n := range c.table.Natives {
		if slices.Equal(n.Columns, r.Columns) {
			c.advise("", "%s: the native key %s holds these columns as well; it acts beside this reference",
				name, n.Name)
			beside = true
		}
	}
	if beside || len(r.Targets) != 1 || r.Region.Column != "" || r.Region.Fixed != "" {
		return
	}
	id, err := c.model.Descriptor.KindID(r.Targets[0])
	if err != nil || id.Service != c.service {
		return
	}
	for i := range c.model.Descriptor.Kinds {
		if k := &c.model.Descriptor.Kinds[i]; k.Name == id.Kind && k.Table != (schema.TableName{}) {
			c.advise(nativeSQL(c.names.table, c.names.all(r.Columns), r, k),
				"%s: both tables are in one database: a native key is better than a reference of ours", name)
		}
	}
}

func nativeSQL(table schema.TableName, columns []string, r *schema.Reference, target *schema.Kind) string {
	quoted := func(names []string) string {
		out := make([]string, len(names))
		for i, name := range names {
			out[i] = schema.QuoteIdentifier(name)
		}
		return strings.Join(out, ", ")
	}
	action := ""
	switch {
	case r.Behaviour.Unsets():
		action = " ON DELETE SET NULL"
	case r.Behaviour.Cascades():
		action = " ON DELETE CASCADE"
	}
	return fmt.Sprintf("ALTER TABLE %s ADD FOREIGN KEY (%s) REFERENCES %s (%s)%s NOT VALID;", table.SQL(),
		quoted(columns), target.Table.SQL(), quoted(target.Key), action)
}

// target checks the columns and keys by which a statement finds the right to refer to a target.
func (c *checker) target(r *schema.Reference, name string) {
	for _, column := range r.Columns {
		if t := c.table.Column(column).Type; !t.Canonical() {
			c.refuse("",
				"%s is of type %s; the columns of a reference are of %s, whose values have one text (a numeric without digits behind the point)", column, t, strings.Join(schema.KeyTypes, ", "))
		}
	}
	for _, target := range r.Targets {
		id, err := c.model.Descriptor.KindID(target)
		switch {
		case err != nil:
		case !c.model.Delegable(id):
			c.refuse("",
				"%s: %s gives no right to refer to it without asking (delegation: none, constraints_disabled, or referable_by without %s)", name, target, c.service)
		}
	}
}

// membersSQL counts the processes that cannot serve references of rows.
const membersSQL = `SELECT count(*) FROM dbcontroller.member WHERE NOT delegates`

func checkMembers(ctx context.Context, tx pgx.Tx, k *schema.Kind) ([]Finding, error) {
	if len(k.References) == 0 {
		return nil, nil
	}
	c := &checker{kind: k}
	var without int
	if err := tx.QueryRow(ctx, membersSQL).Scan(&without); err != nil {
		return nil, fmt.Errorf("read the processes of the deployment: %w", err)
	}
	if without > 0 {
		c.refuse("",
			"%d processes of the deployment cannot serve references of rows: run all of them without --delegations=false", without)
	}
	return c.out, nil
}

// traitsSQL reads properties of a table that the catalogue of a scan does not have.
const traitsSQL = `
SELECT c.relpersistence::text, c.relrowsecurity, c.relforcerowsecurity, EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid),
    pg_catalog.pg_has_role(c.relowner, 'USAGE'), pg_catalog.pg_get_userbyid(c.relowner)::text,
    COALESCE((SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(p.proowner)) FROM pg_catalog.pg_proc p WHERE p.oid = pg_catalog.to_regproc('dbcontroller.change_rows')), 'rows'),
    ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
        WHERE a.attrelid = c.oid AND a.attname = ANY ($3) AND NOT l.collisdeterministic),
    ARRAY(SELECT t.relid::pg_catalog.regclass::text FROM pg_catalog.pg_partition_tree(c.oid) AS t JOIN pg_catalog.pg_class p ON p.oid = t.relid
        WHERE t.level > 0 AND (p.relkind = 'f' OR p.relpersistence <> 'p' OR EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.ev_class = p.oid)) ORDER BY 1),
    ARRAY(SELECT t.relid::pg_catalog.regclass::text FROM pg_catalog.pg_partition_tree(c.oid) AS t
        WHERE t.level > 0 AND ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
            <> ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) ORDER BY 1),
    ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_cast k ON k.castsource IN (t.oid, t.typbasetype)
        WHERE a.attrelid = c.oid AND a.attname = ANY ($4) AND k.casttarget = 'text'::regtype AND k.castfunc <> 0 AND k.oid >= 16384 ORDER BY 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`

// checkTraits checks them; attaching also needs the owner's rights.
func checkTraits(ctx context.Context, tx pgx.Tx, k *schema.Kind, n names, attaching bool) ([]Finding, error) {
	c := &checker{kind: k}
	var persistence, owner, changer string
	var secured, forced, rules, owns bool
	var loose, odd, shuffled, cast []string
	err := tx.QueryRow(ctx, traitsSQL, n.table.Schema, n.table.Name, n.all(k.Key), n.all(declaredColumns(k))).
		Scan(&persistence, &secured, &forced, &rules, &owns, &owner, &changer, &loose, &odd, &shuffled, &cast)
	if err != nil {
		return nil, fmt.Errorf("read the properties of %s: %w", k.Table, err)
	}
	if persistence != "p" {
		c.refuse("", "%s is temporary or unlogged: a crash empties it without a trigger", k.Table)
	}
	switch {
	case forced:
		c.refuse("", "row-level security is FORCEd for %s: the controller would not see its rows", k.Table)
	case secured:
		c.advise(fmt.Sprintf("ALTER ROLE controller BYPASSRLS; ALTER ROLE %s BYPASSRLS;", changer),
			"%s has row-level security: the role of serve (here controller) and %s, as which rows are changed, have to see all rows, else none is read", k.Table, changer)
	}
	if rules {
		c.refuse("", "%s has rules, which rewrite statements before triggers see them", k.Table)
	}
	if attaching && !owns {
		c.refuse("", "%s belongs to %s: attach as that role", k.Table, owner)
	}
	for _, partition := range odd {
		c.refuse("",
			"the partition %s is a foreign table, unlogged, or has rules: its triggers would not see all changes",
			partition)
	}
	for _, partition := range shuffled {
		c.refuse("",
			"the partition %s has its columns in another order than the table, and triggers read rows by the places of columns: make it anew by CREATE TABLE … PARTITION OF", partition)
	}
	for _, column := range cast {
		c.refuse("",
			"%s is of a type with a cast to text of its own, whose code would run with the rights of the controller: DROP CAST", column)
	}
	for _, column := range loose {
		c.refuse("", "key column %s has a nondeterministic collation: equal keys may have different texts", column)
	}
	return c.out, nil
}
