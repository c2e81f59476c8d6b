// Package attach installs and removes the triggers of attached tables: it checks a table, prints the
// statements, and runs them under short locks. It runs once, as the owner of the table; the controller needs
// none of it afterwards.
package attach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// trigger is one trigger of an attached table and its function.
type trigger struct {
	event       string // of events
	transitions string
	body        string
	timed       bool // it makes texts of times
}

// tables returns the tables that get the trigger, of a table and its partitions: PostgreSQL copies a trigger
// for each row to the partitions.
func (t trigger) tables(all []schema.TableName) []schema.TableName {
	if t.event == moves {
		return all[:1]
	}
	return all
}

// Names of triggers and functions are made of the kind's number, so that detach finds them without the
// definition.
func functionName(kindID int32, event string) string {
	return fmt.Sprintf("dbcontroller.attached_%d_%s", kindID, event)
}

func triggerName(event string) string {
	if event == moves { // PostgreSQL fires triggers of a row in the order of their names
		return "zzzz_dbcontroller_move"
	}
	return "dbcontroller_" + event
}

var events = []string{"insert", "update", "delete", "truncate", moves}

// moves is the event of a row that moves to another partition. MERGE does not tell the trigger of its
// statement of such a row (PostgreSQL 15).
const moves = "move"

// triggersOf returns the triggers of a table. They are statement-level and set-based, call nothing but
// PostgreSQL, and fail only to refuse a deletion that others block, or a strict reference without a right.
// Rights that an async reference lacks are noted, to be asked for after the commit.
func triggersOf(kindID int32, d *schema.Definition) []trigger {
	gone := func(name, from string, moved bool) string {
		return fmt.Sprintf(
			"PERFORM dbcontroller.rows_deleted(%d, array_agg(%s), %t, TG_RELID::regclass) FROM %s HAVING count(*) > 0;",
			kindID, name, moved, from)
	}
	const reused = "EXISTS (SELECT FROM dbcontroller.deleted_row) OR EXISTS (SELECT FROM dbcontroller.notice)"
	again := func(name, from string) string {
		return fmt.Sprintf(
			"PERFORM dbcontroller.rows_added(%d, array_agg(%s), TG_RELID::regclass) FROM %s HAVING count(*) > 0;",
			kindID, name, from)
	}
	added := func(name, from string) string {
		return fmt.Sprintf("IF %s THEN\n        %s\n    END IF;\n    ", reused, again(name, from))
	}
	inserted := added(rowName(d), "added AS r")
	names := func(having string) string {
		return "(SELECT t.name FROM " + bothSides(rowName(d)+" AS name", "true") + " GROUP BY t.name HAVING " +
			having + ") AS m"
	}
	changed := gone("m.name", names("NOT bool_or(t.added)"), true)
	if d.Gone != nil {
		changed = gone("m.name", gones(d)+" WHERE NOT m.there", true) + "\n    " + gone("m.name",
			gones(d)+" WHERE m.there", false)
	}
	changed += "\n    " + added("m.name", names("bool_and(t.added)"))
	if len(d.References) > 0 {
		inserted = full(d, false) + oneAdded(d, reused, again(rowName(d), "added AS r")) + take(d, false) +
			refer(kindID, d, false)
		changed = oneRow(d, changed, full(d, true)+dropped(d, true), oneChanged(d)+take(d, true)+refer(kindID, d, true))
	}
	triggers := []trigger{
		{"insert", "NEW TABLE AS added", inserted, timed(d)},
		{"update", "OLD TABLE AS removed NEW TABLE AS added", changed, timed(d)},
		{"delete", "OLD TABLE AS removed", gone(rowName(d), "removed AS r", false) + dropped(d, false), timed(d)},
		{"truncate", "", fmt.Sprintf("PERFORM dbcontroller.table_truncated(%d, TG_RELID::regclass);", kindID) +
			lookAll(d, "\n    PERFORM "), false},
	}
	if d.Partitioned {
		triggers = append(triggers, trigger{moves, "", changed, timed(d)})
	}
	for i := range triggers {
		of := map[string]string{"added": "added", "removed": "removed"}
		body := triggers[i].body
		if triggers[i].event == moves {
			of = map[string]string{"added": "(SELECT NEW.*)", "removed": "(SELECT OLD.*)"}
			body = ofRow(sameColumns(kindID)+body, of)
		}
		triggers[i].body = stillPartition(kindID, d) + unshielded(declaredRows(kindID, body, of, d.Gone != nil))
	}
	return triggers
}

// gones returns the names that rows have lost by an UPDATE, as m, and in m.there whether a row still has the
// name, and is deleted by a column.
func gones(d *schema.Definition) string {
	side := func(from, flags string) string {
		return fmt.Sprintf("SELECT %s AS name, %s FROM %s AS r", rowName(d), flags, from)
	}
	return "(SELECT t.name, bool_or(t.there) AS there FROM (" + side("added",
		"true AS added, false AS removed, false AS there") + " UNION ALL " + side("removed", "false, true, false") +
		" UNION ALL " + side("any added", "false, false, true") +
		") AS t GROUP BY t.name HAVING bool_or(t.removed) AND NOT bool_or(t.added)) AS m"
}

// full returns the statements that refuse rows with NULL in some of the columns of a reference with MATCH
// FULL; of an UPDATE, the rows that it has changed.
func full(d *schema.Definition, update bool) (out string) {
	for _, r := range d.References {
		if !r.MatchFull || len(r.Columns) == 1 {
			continue
		}
		columns := make([]string, len(r.Columns))
		for i, c := range r.Columns {
			columns[i] = "r." + quote(c)
		}
		condition := fmt.Sprintf("num_nulls(%s) NOT IN (0, %d)", strings.Join(columns, ", "), len(columns))
		if r.When != nil {
			condition += " AND " + whenHolds(r)
		}
		from := "added AS r WHERE " + condition
		if update {
			from = bothSides(fmt.Sprintf("%s AS holder, ARRAY[%s::text] AS refers", rowName(d),
				strings.Join(columns, "::text, ")), condition) + " GROUP BY t.holder, t.refers HAVING bool_and(t.added)"
		}
		out += fmt.Sprintf(
			"IF EXISTS (SELECT FROM %s) THEN\n        PERFORM dbcontroller.refuse_mixed(TG_RELID::regclass, %s);\n    END IF;\n    ", from, literal(strings.Join(r.Columns, ", ")))
	}
	return out
}

// declaredRows gives the rows of transitions the names of the declaration: r is a row that the function of
// the table returns. gone: it leaves rows out that are deleted by a column, unless any row is asked for.
func declaredRows(kindID int32, body string, of map[string]string, gone bool) string {
	for name, source := range of {
		call := fmt.Sprintf("%s AS image, %s(image.*%%s) AS r", source, rowFunction(kindID))
		if gone {
			body = strings.ReplaceAll(body, "any "+name+" AS r", fmt.Sprintf(call, ", true"))
			call = fmt.Sprintf(call, ", false")
		} else {
			call = fmt.Sprintf(call, "")
		}
		body = strings.ReplaceAll(body, name+" AS r", call)
	}
	return body
}

// sameColumns fails for a partition that has its columns in another order than its table: a row is read by
// the places of its columns. attach refuses such a partition.
func sameColumns(kindID int32) string {
	return fmt.Sprintf(
		"PERFORM dbcontroller.refuse_other_columns(TG_RELID::regclass, dbcontroller.attached_relation(%d));\n    ",
		kindID)
}

// moved is the condition that a row may belong to another partition.
func moved(d *schema.Definition) string {
	var changed []string
	for _, c := range d.PartitionKey {
		if c == "" { // an expression
			return "OLD.* IS DISTINCT FROM NEW.*"
		}
		column := schema.QuoteIdentifier(c)
		changed = append(changed, "OLD."+column+" IS DISTINCT FROM NEW."+column)
	}
	return strings.Join(changed, " OR ")
}

// ofRow makes the body of an UPDATE trigger one of a trigger for one row.
func ofRow(body string, of map[string]string) string {
	for name, row := range of {
		body = strings.ReplaceAll(body, "FROM "+name+" LIMIT", "FROM "+row+" AS "+name+" LIMIT")
	}
	return strings.ReplaceAll(body, "RETURN NULL;", "RETURN NEW;")
}

// stillPartition leaves a function when it is called for a table that was a partition: a detached partition
// keeps its triggers, and its rows do not refer any more.
func stillPartition(kindID int32, d *schema.Definition) string {
	if !d.Partitioned {
		return ""
	}
	return fmt.Sprintf(`IF dbcontroller.attached_relation(%d) <> COALESCE(pg_catalog.pg_partition_root(TG_RELID::regclass), TG_RELID::regclass) THEN
        RETURN NULL;
    END IF;
    `, kindID)
}

// timed reports whether the texts of the values of a table depend on settings.
func timed(d *schema.Definition) bool {
	if slices.ContainsFunc(d.Key, func(c schema.KeyColumn) bool { return schema.Timed(c.Type) }) {
		return true
	}
	return slices.ContainsFunc(d.References, func(r schema.DefinitionReference) bool {
		return slices.ContainsFunc(r.Types, schema.Timed)
	})
}

// settings returns the settings of the trigger's function, in the form of the catalogue. Each one costs two
// microseconds a statement, so a function has only the settings on which its plans and texts depend: an
// UPDATE joins, a strict INSERT looks for rights, the others pass the rows on. The functions that they call
// have settings of their own.
func (t trigger) settings() []string {
	plans := t.planSettings()
	if t.timed { // as the sessions of the controller
		plans = append(plans, "DateStyle=iso, ymd", "TimeZone=utc")
	}
	return plans
}

func (t trigger) planSettings() []string {
	path, generic := "search_path=pg_catalog, pg_temp", "plan_cache_mode=force_generic_plan"
	switch {
	case t.event == "update":
		return []string{path, "jit=off", "enable_seqscan=off", "enable_nestloop=on", generic}
	case strings.Contains(t.body, "foreign_target"):
		return []string{path, "enable_seqscan=off", generic}
	case t.event == "delete":
		return []string{path, generic}
	}
	return []string{path}
}

// function returns the statement that makes the function of a trigger. It runs with the rights of its owner,
// so the application's roles need none, and finds only PostgreSQL's own operators and functions.
func (t trigger) function(kindID int32, checksum string) string {
	source := t.source(checksum)
	quote := dollarQuote(source)
	return fmt.Sprintf(
		`CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %s%s%[3]s`,
		functionName(kindID, t.event), "SET "+strings.ReplaceAll(strings.Join(t.settings(), " SET "), "=", " = "),
		quote, source)
}

// dollarQuote returns a dollar quote that a text does not contain: a column can have any name.
func dollarQuote(text string) string {
	tag := "$attached"
	for n := 0; strings.Contains(text, tag); n++ {
		tag = fmt.Sprintf("$attached_%d_", n)
	}
	return tag + "$"
}

func (t trigger) source(checksum string) string {
	declare := ""
	if strings.Contains(t.body, "own.kept") {
		declare = " kept boolean;"
	}
	if strings.Contains(t.body, "own.target") {
		declare += ` several boolean; reused boolean; rows bigint; place integer; region text COLLATE "C"; target text COLLATE "C";`
	}
	if declare != "" {
		// Each variable has the name of the block before it: a column of the table may have the same name.
		declare = "\n<<own>>\nDECLARE" + declare
	}
	return fmt.Sprintf(`%s
BEGIN -- %s
    %s
    RETURN %s;
END `, declare, checksum, strings.TrimSpace(t.body), map[bool]string{true: "NEW", false: "NULL"}[t.event == moves])
}

func (t trigger) create(kindID int32, d *schema.Definition, table schema.TableName) string {
	if t.event == moves {
		return fmt.Sprintf("CREATE TRIGGER %s BEFORE UPDATE ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION %s()",
			triggerName(t.event), table.SQL(), moved(d), functionName(kindID, t.event))
	}
	referencing := ""
	if t.transitions != "" {
		referencing = " REFERENCING " + t.transitions
	}
	return fmt.Sprintf("CREATE TRIGGER %s AFTER %s ON %s%s FOR EACH STATEMENT EXECUTE FUNCTION %s()",
		triggerName(t.event), strings.ToUpper(t.event), table.SQL(), referencing, functionName(kindID, t.event))
}

// clippedName is longer than any name of a resource, and short enough for an index: a longer key is noted,
// and reported.
const clippedName = schema.MaxNameBytes + 1

// rowName returns the expression for the name of the row r, as schema.Definition.RowName has it. Its
// collation does not depend on the collations of the columns: names of different collations cannot be
// compared, and nondeterministic ones take different names for equal.
func rowName(d *schema.Definition) string {
	parts := make([]string, len(d.Key))
	plain := true
	for i, c := range d.Key {
		parts[i] = "r." + quote(c.Name) + "::text"
		if schema.Textual(c.Type) || schema.Timed(c.Type) {
			plain = false
			parts[i] += ` COLLATE "C"`
			if len(d.Key) > 1 {
				parts[i] = "dbcontroller.key_part(" + parts[i] + ")"
			}
		}
	}
	key := strings.Join(parts, " || ',' || ")
	if plain {
		return fmt.Sprintf("('%s/' || %s) COLLATE \"C\"", d.Collection, key)
	}
	return fmt.Sprintf("pg_catalog.left('%s/' || dbcontroller.segment(%s), %d) COLLATE \"C\"", d.Collection, key,
		clippedName)
}

// bothSides returns the rows of an UPDATE before and after it, with the columns, as t, and in t.added whether
// a row is one of those after. Rows are compared in groups and not by a join: PostgreSQL keeps the plan of an
// earlier statement, and a join that is right for one row compares each row of a large statement with each
// other.
func bothSides(columns, condition string) string {
	side := func(from string, added bool) string {
		return fmt.Sprintf("SELECT %s, %t AS added FROM %s AS r WHERE %s", columns, added, from, condition)
	}
	return "(" + side("added", true) + " UNION ALL " + side("removed", false) + ") AS t"
}

// oneRow returns the body of an UPDATE trigger. Most statements change one row and neither its key nor its
// references: one look ends them. One row that keeps its key has not moved, and needs no groups.
func oneRow(d *schema.Definition, moved, dropped, added string) string {
	of := onlyTarget(d.References, true)
	targets, only, into := targetColumns(d.References), ", "+of.list(), ", "+of.names("own.", "")
	side := func(from string) string {
		return fmt.Sprintf("(SELECT %s AS name, ARRAY[%s] AS refers%s FROM %s AS r LIMIT 1)", rowName(d),
			strings.Join(texts(d.References), ", "), targets, from)
	}
	none := "NOT FOUND"
	if d.Gone != nil { // a row may be on one side only
		none = "NOT (FOUND OR EXISTS (SELECT FROM added AS r) OR EXISTS (SELECT FROM removed AS r))"
	}
	return fmt.Sprintf(`SELECT CASE WHEN a.name = b.name AND (SELECT count(*) FROM (SELECT FROM added LIMIT 2) AS t) = 1 THEN a.refers = b.refers END%s INTO own.kept%s FROM %s AS a, %s AS b;
    IF %s OR own.kept THEN
        RETURN NULL;
    ELSIF own.kept IS NULL THEN
        %s
    END IF;
    %s%s`, only, into, side("added"), side("removed"), none, moved, dropped, added)
}

// texts returns the columns of references of the row r, as texts: the types may have no operator that the
// function finds.
func texts(references []schema.DefinitionReference) []string {
	columns := referring(references)
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = "r." + quote(c) + `::text COLLATE "C"`
	}
	return out
}

// referring returns the columns of references, each once.
func referring(references []schema.DefinitionReference) (columns []string) {
	for _, r := range references {
		columns = append(columns, r.AllColumns()...)
	}
	slices.Sort(columns)
	return slices.Compact(columns)
}
