package catalogue

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// Type is the type of a column; for a domain, the type under it.
type Type struct {
	Schema, Name string // as in pg_type
	Labels       []string
	Enum         bool
	Whole        bool // a numeric without digits behind the point
	Domain       bool // the column is of a domain over it
}

type class int

const (
	other class = iota
	integer
	decimal
	text
	identifier
	enumeration
)

func (t Type) class() class {
	if t.Enum {
		return enumeration
	}
	if t.Name == "citext" {
		return text
	}
	if t.Schema == "pg_catalog" {
		switch t.Name {
		case "int2", "int4", "int8":
			return integer
		case "numeric":
			return decimal
		case "text", "varchar", "bpchar", "name":
			return text
		case "uuid":
			return identifier
		}
	}
	return other
}

var names = map[string]string{
	"int2": "smallint", "int4": "integer", "int8": "bigint", "bpchar": "character", "varchar": "character varying",
	"bool":      "boolean",
	"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}

// Canonical reports whether a key can have the type: each value has one text.
func (t Type) Canonical() bool {
	return t.Schema == "pg_catalog" && slices.Contains(schema.KeyTypes, t.String()) && (t.Name != "numeric" || t.Whole)
}

func (t Type) String() string {
	if name, ok := names[t.Name]; ok && t.Schema == "pg_catalog" {
		return name
	}
	return t.Name
}

// SQL returns the quoted name of the type.
func (t Type) SQL() string {
	return schema.QuoteIdentifier(t.Schema) + "." + schema.QuoteIdentifier(t.Name)
}

// Match is the way in which values of a holder's column are compared with a target's key column.
type Match struct {
	cast  string            // the SQL type, or types, to which the text of a value is cast
	valid func(string) bool // nil when every value is one of the key's type
	// Differ says in words that the types differ.
	Differ string
}

// Cast returns the value of the key's type for an SQL expression with the text of a value that is Valid.
func (m Match) Cast(expression string) string { return "(" + expression + ")::" + m.cast }

// Valid reports whether the text of a value is one of the key's type: another one refers to nothing.
func (m Match) Valid(value string) bool { return m.valid == nil || m.valid(value) }

// spaces are the characters that PostgreSQL skips around a number.
const spaces = " \t\n\r\v\f"

var (
	decimalText = regexp.MustCompile(`^[-+]?[0-9]{1,500}(\.[0-9]{0,500})?$`)
	uuidText    = regexp.MustCompile(`^(\{[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}\}|[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7})$`)
)

func isWhole(s string) bool {
	_, err := strconv.ParseInt(strings.Trim(s, spaces), 10, 64)
	return err == nil
}

// isWholeDecimal accepts 5.00, which equals the integer 5.
func isWholeDecimal(s string) bool {
	whole, fraction, _ := strings.Cut(s, ".")
	return isWhole(whole) && strings.Trim(fraction, "0") == ""
}

// Compare returns the way to look up values of one type in a key of another, and false when there is none. A
// value refers to the key that PostgreSQL's own reading of its text in the key's type gives; a text that it
// cannot read refers to nothing.
func Compare(holder, target Type) (Match, bool) {
	var m Match
	from, to := holder.class(), target.class()
	switch {
	case to == integer && from == integer:
		m.cast = "pg_catalog.int8" // which finds smaller integers by their index as well
	case to == integer && from == decimal:
		m.cast, m.valid = "pg_catalog.numeric::pg_catalog.int8", isWholeDecimal
	case to == integer && from == text:
		m.cast, m.valid = "pg_catalog.int8", isWhole
	case to == decimal && (from == integer || from == decimal):
		m.cast = "pg_catalog.numeric"
	case to == decimal && from == text:
		m.cast, m.valid = "pg_catalog.numeric", func(s string) bool {
			return decimalText.MatchString(strings.Trim(s, spaces))
		}
	case to == identifier && from == identifier:
		m.cast = "pg_catalog.uuid"
	case to == identifier && from == text:
		m.cast, m.valid = "pg_catalog.uuid", uuidText.MatchString
	case to == text && (target.Name == "citext" || target.Name == "bpchar"):
		m.cast = target.SQL()
	case to == text:
		m.cast = "pg_catalog.text"
	case to == enumeration && (from == enumeration || from == text):
		m.cast, m.valid = target.SQL(), func(s string) bool { return slices.Contains(target.Labels, s) }
	case to == other && from == other && holder.Name == target.Name && holder.Schema == target.Schema &&
		target.Schema == "pg_catalog" && !strings.HasPrefix(target.Name, "_"):
		m.cast = target.SQL()
	default:
		return m, false
	}
	switch {
	case from != to || from == enumeration && holder.Name != target.Name:
		m.Differ = fmt.Sprintf("%s refers to %s", holder, target)
	case from == integer && width(holder) < width(target):
		m.Differ = fmt.Sprintf("%s refers to %s, and is too narrow for its larger keys", holder, target)
	}
	return m, true
}

func width(t Type) byte { return t.Name[len(t.Name)-1] }
