package attach

import (
	"fmt"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// take returns the statements that lock the rights to the distinct targets of the strict references of the rows added, or fail; of
// an UPDATE, to those that a row did not name before. The number is that of the statement, or null when it names none.
func take(d *schema.Definition, update bool) string {
	var targets []string
	for _, r := range d.References {
		if r.Strict != nil {
			targets = append(targets, targetsOf(d, r, update))
		}
	}
	if len(targets) == 0 {
		return ""
	}
	named := strings.Join(targets, "\n        UNION ALL ")
	return fmt.Sprintf(`known := (SELECT bool_and(dbcontroller.take_known(number, t.service, t.kind, t.region, t.names, t.blocks)) FROM (
        SELECT t.service, t.kind, t.region, t.blocks, array_agg(DISTINCT t.name) AS names FROM (
        %[1]s
        ) AS t GROUP BY t.service, t.kind, t.region, t.blocks) AS t);
    IF known IS NULL THEN
        number := NULL;
    ELSIF NOT known THEN
        number := (SELECT dbcontroller.take_rights(TG_RELID::regclass, array_agg(t.service), array_agg(t.kind), array_agg(t.region), array_agg(t.name), array_agg(t.blocks)) FROM (
        SELECT DISTINCT t.* FROM (
        %[1]s
        ) AS t) AS t);
    END IF;
    `, named)
}

// targetsOf returns the query for the targets of one reference. A row counts once for each of its targets, on each side of an UPDATE.
func targetsOf(d *schema.Definition, r schema.DefinitionReference, update bool) string {
	var conditions []string
	for _, c := range r.Columns {
		conditions = append(conditions, "r."+schema.QuoteIdentifier(c)+" IS NOT NULL")
	}
	region := literal(r.Strict.Region)
	switch {
	case r.Region != "":
		region = "r." + schema.QuoteIdentifier(r.Region) + "::text"
		conditions = append(conditions, region+" IS NOT NULL")
	case r.Strict.Region == "":
		region = "NULL::text"
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
		return "r." + schema.QuoteIdentifier(r.Columns[0]) + "::text"
	}
	key := make([]schema.KeyColumn, len(r.Columns))
	for i, c := range r.Columns {
		key[i] = schema.KeyColumn{Name: c, Type: r.Strict.Types[i]}
	}
	return rowName(&schema.Definition{Collection: r.Strict.Collection, Key: key})
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'::text" }
