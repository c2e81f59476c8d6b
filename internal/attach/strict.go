package attach

import (
	"fmt"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// take returns the statement that locks the rights to the distinct targets of the strict references of the rows added, or fails; of
// an UPDATE, to those that a row did not name before.
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
	return fmt.Sprintf(`number := (SELECT dbcontroller.take_rights(TG_RELID::regclass, array_agg(t.service), array_agg(t.kind), array_agg(t.region), array_agg(t.name), array_agg(t.blocks)) FROM (
        %s
    ) AS t);
    `, strings.Join(targets, "\n        UNION "))
}

func targetsOf(d *schema.Definition, r schema.DefinitionReference, update bool) string {
	var conditions []string
	for _, c := range r.Columns {
		conditions = append(conditions, "r."+schema.QuoteIdentifier(c)+" IS NOT NULL")
	}
	region, columns := literal(r.Strict.Region), r.Columns
	switch {
	case r.Region != "":
		region, columns = "r."+schema.QuoteIdentifier(r.Region)+"::text", append(columns[:len(columns):len(columns)], r.Region)
		conditions = append(conditions, region+" IS NOT NULL")
	case r.Strict.Region == "":
		region = "NULL::text"
	}
	if update {
		conditions = append(conditions, "NOT EXISTS (SELECT FROM removed AS n WHERE "+sameKey(d)+" AND "+sameColumns(columns)+")")
	}
	return fmt.Sprintf("SELECT %s AS service, %s AS kind, %s AS region, %s AS name, %t AS blocks FROM added AS r WHERE %s",
		literal(r.Strict.Kind.Service), literal(r.Strict.Kind.Kind), region, targetName(r), r.Strict.Blocks, strings.Join(conditions, " AND "))
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
