package attach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// take returns the statements that lock the rights to the distinct targets of the strict references of the
// rows added, or fail; for an UPDATE, to the targets that a row did not name before.
func take(d *schema.Definition, update bool) string {
	var targets, taken []string
	for _, r := range strictOf(d) {
		of := targetsOf(d, r, update)
		targets, taken = append(targets, of), append(taken, takeOf(r, of))
	}
	if len(targets) == 0 {
		return ""
	}
	return fmt.Sprintf(`IF NOT (%s) THEN
        PERFORM dbcontroller.take_rights(TG_RELID::regclass, array_agg(t.service), array_agg(t.kind), array_agg(t.region), array_agg(t.name), array_agg(t.blocks)) FROM (
        SELECT DISTINCT t.* FROM (
        %s
        ) AS t) AS t;
    END IF;
    `, every(taken), strings.Join(targets, "\n        UNION ALL "))
}

// every returns the query for whether all of several queries return true; null: all of them return null.
func every(queries []string) string {
	if len(queries) == 1 {
		return queries[0]
	}
	return "SELECT bool_and(t.taken) FROM (" + strings.Join(queries, "\n        UNION ALL ") + ") AS t"
}

// takeOf returns the query that locks the rights to the targets of one reference.
func takeOf(r schema.DefinitionReference, targets string) string {
	call := func(region, names string) string {
		return fmt.Sprintf("dbcontroller.take(%s, %s, %s, %s, %t)", literal(r.Target.Kind.Service),
			literal(r.Target.Kind.Kind), region, names, r.Blocks())
	}
	if r.Region == "" {
		return fmt.Sprintf("SELECT %s AS taken FROM (%s) AS t", call(ownRegion(r), "array_agg(t.name)"), targets)
	}
	return fmt.Sprintf(
		"SELECT bool_and(%s) AS taken FROM (SELECT t.region, array_agg(t.name) AS names FROM (%s) AS t GROUP BY t.region) AS t",
		call("t.region", "t.names"), targets)
}

// ownRegion is the region of the targets of a reference without a column for it; NULL: this deployment's
// region.
func ownRegion(r schema.DefinitionReference) string {
	if r.Target.Region == "" {
		return "NULL::text"
	}
	return literal(r.Target.Region)
}

// strictOf returns the strict references.
func strictOf(d *schema.Definition) (out []schema.DefinitionReference) {
	for _, r := range d.References {
		if r.Strict {
			out = append(out, r)
		}
	}
	return out
}

// dropped returns the statements that leave a look at each right to block that rows may not need any more:
// the rights to the targets of the rows removed; for an UPDATE, to the targets that a row does not name now.
func dropped(d *schema.Definition, update bool) (out string) {
	for _, r := range d.References {
		if !r.Blocks() {
			continue
		}
		region, name, from := regionOf(r), targetName(r), "removed AS r WHERE "+strings.Join(present(r), " AND ")
		if update {
			from = bothSides(fmt.Sprintf("%s AS holder, %s AS region, %s AS name", rowName(d), region, name),
				strings.Join(present(r), " AND ")) +
				" GROUP BY t.holder, t.region, t.name HAVING NOT bool_or(t.added)"
			region, name = "t.region", "t.name"
		}
		out += fmt.Sprintf(`
    PERFORM dbcontroller.look_at_rights(%s, %s, array_agg(t.region), array_agg(t.name)) FROM (
        SELECT DISTINCT %s AS region, %s AS name FROM %s) AS t HAVING count(*) > 0;
    `, literal(r.Target.Kind.Service), literal(r.Target.Kind.Kind), region, name, from)
	}
	return out
}

// lookAll returns the calls that leave a look at each right to block a target of a kind to which the rows of
// a table refer, each after a word.
func lookAll(d *schema.Definition, word string) (out string) {
	for _, r := range d.References {
		if r.Blocks() {
			out += fmt.Sprintf("%sdbcontroller.look_at_rights_to(%s, %s);", word, literal(r.Target.Kind.Service),
				literal(r.Target.Kind.Kind))
		}
	}
	return out
}

// oneAdded returns the statements of an INSERT of one row that names one target: they leave the function when
// the right is there. Else the others decide. reused is the condition under which keys may be used again too
// early, and then the statement that looks for such keys.
func oneAdded(d *schema.Definition, reused, then string) string {
	only := onlyTarget(d.References, false)
	return fmt.Sprintf(`SELECT EXISTS (SELECT FROM added OFFSET 1), %s, %s INTO own.several, own.reused, %s FROM (SELECT %s AS name%s FROM added AS r) AS a LIMIT 1;
    IF own.reused THEN
        %s
    END IF;
    IF NOT own.several AND own.target IS NOT NULL THEN%s
    END IF;
    `, reused, only.list(), only.names("own.", ""), rowName(d), targetColumns(d.References), then, takeOne(d.References))
}

// oneChanged is oneAdded for an UPDATE of one row that keeps its key.
func oneChanged(d *schema.Definition) string {
	return fmt.Sprintf(`IF NOT own.kept AND own.target IS NOT NULL THEN%s
    END IF;
    `, takeOne(d.References))
}

// targetColumns are the columns of the region and the name of the target of each reference of the row r.
func targetColumns(references []schema.DefinitionReference) (out string) {
	for i, r := range references {
		out += fmt.Sprintf(", %s AS g%d, CASE WHEN %s THEN %s END AS t%d", regionOf(r), i,
			strings.Join(present(r), " AND "), targetName(r), i)
	}
	return out
}

// column is an expression about the row a, and the variable for it.
type column struct{ variable, expression string }

type columns []column

// onlyTarget returns the name and the region of the only target of the row a, and which reference has it; of
// an UPDATE, of the targets that the row b does not have. They are null when there are several, and when
// there is none.
func onlyTarget(references []schema.DefinitionReference, update bool) columns {
	var names []string
	var target, region, place strings.Builder
	regions := false
	for i, r := range references {
		name := fmt.Sprintf("a.t%d", i)
		if update {
			name = fmt.Sprintf(
				"CASE WHEN (a.t%[1]d = b.t%[1]d AND a.g%[1]d IS NOT DISTINCT FROM b.g%[1]d) IS NOT TRUE THEN a.t%[1]d END", i)
		}
		names = append(names, name)
		fmt.Fprintf(&target, " WHEN (%s) IS NOT NULL THEN a.t%d", name, i)
		fmt.Fprintf(&region, " WHEN (%s) IS NOT NULL THEN a.g%d", name, i)
		fmt.Fprintf(&place, " WHEN (%s) IS NOT NULL THEN %d", name, i)
		regions = regions || r.Region != ""
	}
	var out columns
	if len(references) == 1 {
		out = append(out, column{"target", names[0]})
	} else {
		several := "CASE WHEN num_nonnulls(" + strings.Join(names, ", ") + ") <> 1 THEN NULL"
		out = append(out, column{"target", several + target.String() + " END"},
			column{"place", several + place.String() + " END"})
	}
	if regions {
		out = append(out, column{"region", "CASE" + region.String() + " END"})
	}
	return out
}

// list returns the expressions, as columns.
func (c columns) list() string {
	var out []string
	for _, x := range c {
		out = append(out, x.expression+" AS "+x.variable)
	}
	return strings.Join(out, ", ")
}

// names returns the variables between two texts.
func (c columns) names(before, after string) string {
	var out []string
	for _, x := range c {
		out = append(out, before+x.variable+after)
	}
	return strings.Join(out, ", ")
}

// takeOne returns the statements that take the right to one target, and leave the function when it is there:
// PostgreSQL looks at the conditions on the right again under its lock. See dbcontroller.take, which has the
// same conditions.
func takeOne(references []schema.DefinitionReference) string {
	taken := takeTarget(references[0])
	if len(references) > 1 {
		var cases strings.Builder
		for i, r := range references {
			fmt.Fprintf(&cases, "%sIF own.place = %d THEN\n            %s\n        ",
				map[bool]string{true: "ELS"}[i > 0], i, takeTarget(r))
		}
		taken = cases.String() + "END IF;"
	}
	return `
        ` + taken + `
        GET DIAGNOSTICS own.rows = ROW_COUNT;
        IF own.rows = 1 THEN
            RETURN NULL;
        END IF;`
}

// An async reference waits for no lock, and takes no right above READ COMMITTED.
func takeTarget(r schema.DefinitionReference) string {
	right, wait, committed := "acting", "", ""
	if !r.Strict {
		wait, committed = " SKIP LOCKED", "AND current_setting('transaction_isolation') = 'read committed'"
	}
	if r.Blocks() {
		right = "block"
	}
	service, kind := literal(r.Target.Kind.Service), literal(r.Target.Kind.Kind)
	deployment := fmt.Sprintf("dbcontroller.number_of_deployment(%s, %s)", service, ownRegion(r))
	if r.Region != "" {
		deployment = fmt.Sprintf(
			"(SELECT d.id FROM dbcontroller.deployment AS d WHERE d.service = %s AND d.region = own.region)", service)
	}
	return fmt.Sprintf(`PERFORM FROM dbcontroller.foreign_target AS f
            WHERE f.name = own.target AND f.%[1]s_epoch IS NOT NULL AND f.deployment_id = %[2]s AND f.kind_id = dbcontroller.number_of_kind(%[3]s, %[4]s)
                AND f.%[1]s_epoch = COALESCE((SELECT d.epoch FROM dbcontroller.deployment AS d WHERE d.id = f.deployment_id), f.%[1]s_epoch)
                AND f.%[1]s_own = (SELECT m.epoch FROM dbcontroller.meta AS m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
                AND (SELECT x.deployment_id FROM dbcontroller.decommissioned AS x WHERE x.deployment_id = f.deployment_id) IS NULL
                AND (SELECT e.target_id FROM dbcontroller.ending AS e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
                %[5]s
            FOR KEY SHARE OF f%[6]s;`, right, deployment, service, kind, committed, wait)
}

func regionOf(r schema.DefinitionReference) string {
	if r.Region == "" {
		return ownRegion(r)
	}
	return "r." + quote(r.Region) + `::text COLLATE "C"`
}

// present are the conditions that the row r names a target.
func present(r schema.DefinitionReference) (conditions []string) {
	for _, c := range r.Columns {
		conditions = append(conditions, "r."+quote(c)+" IS NOT NULL")
		for _, none := range r.None {
			conditions = append(conditions, "r."+quote(c)+`::text COLLATE "C" <> `+literal(none))
		}
	}
	if r.Region != "" {
		conditions = append(conditions, "r."+quote(r.Region)+" IS NOT NULL")
	}
	if r.When != nil { // null: the row names nothing by it
		conditions = append(conditions, whenHolds(r))
	}
	return conditions
}

// whenHolds is the condition that the row r refers by a reference.
func whenHolds(r schema.DefinitionReference) string {
	return "r." + quote(r.When.Column) + `::text COLLATE "C" = ` + literal(r.When.Value)
}

// refer returns the statements that lock the rights to the distinct targets of the async references of the
// rows added, and note the values without a right; for an UPDATE, to the targets that a row did not name
// before.
func refer(kindID int32, d *schema.Definition, update bool) string {
	var out strings.Builder
	for _, r := range d.References {
		if r.Strict {
			continue
		}
		texts := valueOf(r)
		from := fmt.Sprintf("(SELECT DISTINCT %s AS region, %s AS name, %s AS texts FROM added AS r WHERE %s) AS t",
			regionOf(r), targetName(r), texts, strings.Join(present(r), " AND "))
		if update {
			from = fmt.Sprintf(
				"(SELECT DISTINCT t.region, t.name, t.texts FROM %s GROUP BY t.holder, t.region, t.name, t.texts HAVING bool_and(t.added)) AS t",
				bothSides(fmt.Sprintf("%s AS holder, %s AS region, %s AS name, %s AS texts", rowName(d), regionOf(r),
					targetName(r), texts), strings.Join(present(r), " AND ")))
		}
		fmt.Fprintf(&out, `PERFORM dbcontroller.refer(%d, %s, %s, %s, t.region, array_agg(t.name), array_agg(t.texts), %t) FROM %s GROUP BY t.region;
    `, kindID, literal(r.Path), literal(r.Target.Kind.Service), literal(r.Target.Kind.Kind), r.Blocks(), from)
	}
	return out.String()
}

// valueOf returns the expression for the texts of a value of the row r, as dbcontroller.lacking has them.
func valueOf(r schema.DefinitionReference) string {
	var texts []string
	for _, c := range r.Columns {
		texts = append(texts, "r."+quote(c)+"::text")
	}
	if r.Region != "" {
		texts = append(texts, "r."+quote(r.Region)+"::text")
	}
	return "pg_catalog.to_json(ARRAY[" + strings.Join(texts, ", ") + `])::text COLLATE "C"`
}

// targetsOf returns the query for the distinct targets of one reference. A row counts once for each of its
// targets, on each side of an UPDATE.
func targetsOf(d *schema.Definition, r schema.DefinitionReference, update bool) string {
	condition, region, name := strings.Join(present(r), " AND "), regionOf(r), targetName(r)
	from := "added AS r WHERE " + condition
	switch {
	case !update && r.Region == "" && exact(r):
		columns := make([]string, len(r.Columns))
		for i, c := range r.Columns {
			columns[i] = "r." + quote(c)
		}
		from = fmt.Sprintf("(SELECT DISTINCT %s FROM %s) AS r", strings.Join(columns, ", "), from)
	case update:
		from = bothSides(fmt.Sprintf("%s AS holder, %s AS region, %s AS name", rowName(d), region, name), condition) +
			" GROUP BY t.holder, t.region, t.name HAVING bool_and(t.added)"
		region, name = "t.region", "t.name"
	}
	return fmt.Sprintf("SELECT DISTINCT %s AS service, %s AS kind, %s AS region, %s AS name, %t AS blocks FROM %s",
		literal(r.Target.Kind.Service), literal(r.Target.Kind.Kind), region, name, r.Blocks(), from)
}

// exact reports whether equal values of the columns have equal texts, and the other way round: then the
// distinct values are found before they become texts, which takes half of the time. (By its collation, a text
// can be equal to another one.)
func exact(r schema.DefinitionReference) bool {
	return len(r.Types) > 0 && !slices.ContainsFunc(r.Types, schema.Textual)
}

// targetName returns the expression for the name of the target of the row r, as schema.ColumnReference has
// it.
func targetName(r schema.DefinitionReference) string {
	if r.Target.Collection == "" {
		return fmt.Sprintf("pg_catalog.left(r.%s::text, %d) COLLATE \"C\"", quote(r.Columns[0]), clippedName)
	}
	key := make([]schema.KeyColumn, len(r.Columns))
	for i, c := range r.Columns {
		key[i] = schema.KeyColumn{Name: c, Type: r.Types[i]}
	}
	return rowName(&schema.Definition{Collection: r.Target.Collection, Key: key})
}

func literal(s string) string { return shielded(schema.QuoteLiteral(s)) + "::text" }

func quote(column string) string { return shielded(schema.QuoteIdentifier(column)) }

// shielded keeps a text of the declaration from being taken for a part of a statement (declaredRows), whose
// parts have blanks. No text of PostgreSQL has a zero.
func shielded(text string) string { return strings.ReplaceAll(text, " ", "\x00") }

func unshielded(body string) string { return strings.ReplaceAll(body, "\x00", " ") }
