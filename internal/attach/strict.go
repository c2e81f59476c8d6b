package attach

import (
	"fmt"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// take returns the statements that lock the rights to the distinct targets of the strict references of the rows added, or fail; of
// an UPDATE, to those that a row did not name before. The number is that of the statement, or null when it names none.
func take(d *schema.Definition, update bool) string {
	var targets, taken []string
	for _, r := range d.References {
		if r.Strict != nil {
			of := targetsOf(d, r, update)
			targets, taken = append(targets, of), append(taken, takeOf(r, of))
		}
	}
	if len(targets) == 0 {
		return ""
	}
	return fmt.Sprintf(`own.number := nextval('dbcontroller.statement');
    own.known := (%s);
    IF own.known IS NULL THEN
        own.number := NULL;
    ELSIF NOT own.known THEN
        own.number := (SELECT dbcontroller.take_rights(TG_RELID::regclass, array_agg(t.service), array_agg(t.kind), array_agg(t.region), array_agg(t.name), array_agg(t.blocks)) FROM (
        SELECT DISTINCT t.* FROM (
        %s
        ) AS t) AS t);
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
		return fmt.Sprintf("dbcontroller.take(own.number, %s, %s, %s, %s, %t)", literal(r.Strict.Kind.Service), literal(r.Strict.Kind.Kind), region, names, r.Strict.Blocks)
	}
	if r.Region == "" {
		return fmt.Sprintf("SELECT %s AS taken FROM (%s) AS t", call(ownRegion(r), "array_agg(t.name)"), targets)
	}
	return fmt.Sprintf("SELECT bool_and(%s) AS taken FROM (SELECT t.region, array_agg(t.name) AS names FROM (%s) AS t GROUP BY t.region) AS t",
		call("t.region", "t.names"), targets)
}

// ownRegion is the region of the targets of a reference without a column for it; null: that of this deployment.
func ownRegion(r schema.DefinitionReference) string {
	if r.Strict.Region == "" {
		return "NULL::text"
	}
	return literal(r.Strict.Region)
}

// targetsOf returns the query for the targets of one reference. A row counts once for each of its targets, on each side of an UPDATE.
func targetsOf(d *schema.Definition, r schema.DefinitionReference, update bool) string {
	var conditions []string
	for _, c := range r.Columns {
		conditions = append(conditions, "r."+schema.QuoteIdentifier(c)+" IS NOT NULL")
	}
	region := ownRegion(r)
	if r.Region != "" {
		region = "r." + schema.QuoteIdentifier(r.Region) + "::text COLLATE \"C\""
		conditions = append(conditions, region+" IS NOT NULL")
	}
	condition, name := strings.Join(conditions, " AND "), targetName(r)
	from := "added AS r WHERE " + condition
	if update {
		from = bothSides(fmt.Sprintf("%s AS holder, %s AS region, %s AS name", rowName(d), region, name), condition) +
			" GROUP BY t.holder, t.region, t.name HAVING bool_and(t.added)"
		region, name = "t.region", "t.name"
	}
	return fmt.Sprintf("SELECT %s AS service, %s AS kind, %s AS region, %s AS name, %t AS blocks FROM %s",
		literal(r.Strict.Kind.Service), literal(r.Strict.Kind.Kind), region, name, r.Strict.Blocks, from)
}

// targetName returns the expression for the name of the target of the row r, as schema.ColumnReference has it.
func targetName(r schema.DefinitionReference) string {
	if r.Strict.Collection == "" {
		return fmt.Sprintf("pg_catalog.left(r.%s::text, %d) COLLATE \"C\"", schema.QuoteIdentifier(r.Columns[0]), clippedName)
	}
	key := make([]schema.KeyColumn, len(r.Columns))
	for i, c := range r.Columns {
		key[i] = schema.KeyColumn{Name: c, Type: r.Strict.Types[i]}
	}
	return rowName(&schema.Definition{Collection: r.Strict.Collection, Key: key})
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'::text" }
