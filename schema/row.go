package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// TableModel is the table of a compiled kind. The rows are the resources: the key names one, and the columns
// of a reference become one field of its body.
type TableModel struct {
	Name       TableName
	Key        []string
	Gone       string
	References []ColumnReference

	collection string
}

// ColumnReference is a compiled reference of columns.
type ColumnReference struct {
	// Path is the field of the body that stands for the columns.
	Path      string
	Columns   []string
	Region    TargetRegion
	Behaviour Behaviour
	Enforce   Enforcement
	Missing   Missing
	None      []string
	When      RowCondition
	Unset     []string // the columns that UNSET sets
	ToDefault bool     // UNSET sets them to their DEFAULT
	MatchFull bool

	target     KindID // by its oldest name; zero without a target
	service    string
	collection string // of the target's names, or "" when the column holds the name itself
}

// compileTable expects a kind that passed Check, and its compiled references.
func compileTable(k *Kind, references []referenceModel, root func(KindID) KindID) *TableModel {
	if k.Table == (TableName{}) {
		return nil
	}
	t := &TableModel{Name: k.Table, Key: k.Key, Gone: k.Gone, collection: collectionOf(compilePatterns(k.Patterns))}
	for i, r := range k.References {
		c := ColumnReference{
			Path: r.BodyPath(), Columns: r.Columns, Region: r.Region, Behaviour: r.Behaviour, Enforce: r.Enforce,
			Missing: r.Missing, None: r.None, When: r.When,
			Unset: r.Unset, ToDefault: r.UnsetToDefault, MatchFull: r.MatchFull,
		}
		if len(c.Unset) == 0 {
			c.Unset = c.Columns
		}
		if targets := references[i].targets; len(targets) > 0 {
			c.target, c.service, c.collection = root(targets[0].id), targets[0].id.Service,
				collectionOf(targets[0].patterns)
		}
		t.References = append(t.References, c)
	}
	return t
}

// collectionOf returns the collection of names with one id, or "" for names of other shapes.
func collectionOf(patterns []Pattern) string {
	if len(patterns) == 1 && len(patterns[0].Segments) == 2 {
		return patterns[0].Segments[0]
	}
	return ""
}

// nameOf returns the name of the row with a key, given as the texts of its columns.
func nameOf(collection string, key []string) (string, error) {
	name := collection + "/" + EscapeID(keyText(key))
	return name, CheckName(name)
}

// keyText joins the columns of a key. The key of one column is its text; in a key of several, a backslash
// precedes commas and backslashes. dbcontroller.key_part is the same in SQL.
func keyText(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	quoted := make([]string, len(parts))
	for i, part := range parts {
		quoted[i] = strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(part)
	}
	return strings.Join(quoted, ",")
}

func splitKey(text string, n int) ([]string, bool) {
	if n == 1 {
		return []string{text}, true
	}
	parts, part := []string{}, strings.Builder{}
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
			part.WriteByte(text[i])
		case text[i] == ',':
			parts = append(parts, part.String())
			part.Reset()
		default:
			part.WriteByte(text[i])
		}
	}
	parts = append(parts, part.String())
	return parts, len(parts) == n && keyText(parts) == text
}

// Target returns the full name to which the values of the columns refer; "" when one of them, or the region,
// is NULL (MATCH SIMPLE).
func (r *ColumnReference) Target(self DeploymentID, values []*string, region *string) (string, error) {
	if slices.Contains(values, nil) || r.Region.Column != "" && region == nil {
		return "", nil
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = *v
	}
	target := DeploymentID{Service: r.service, Region: self.Region}
	switch {
	case r.Region.Column != "":
		target.Region = *region
	case r.Region.Fixed != "":
		target.Region = r.Region.Fixed
	}
	if err := CheckRegion(target.Region); err != nil {
		return "", fmt.Errorf("column %s: %w", r.Region.Column, err)
	}
	name, err := r.nameOf(texts)
	if err != nil {
		return "", fmt.Errorf("columns %s: %w", strings.Join(r.Columns, ", "), err)
	}
	return FullName{Deployment: target, Name: name}.String(), nil
}

// nameOf returns the name of the target without its deployment.
func (r *ColumnReference) nameOf(texts []string) (string, error) {
	if r.collection != "" {
		return nameOf(r.collection, texts)
	}
	return texts[0], CheckName(texts[0])
}

// BodyPath returns the field of the body that stands for the reference: its path, or a name made of its
// columns.
func (r *Reference) BodyPath() string {
	if len(r.Columns) == 0 {
		return r.Path
	}
	text := strings.Join(r.Columns, "__")
	if r.When != (RowCondition{}) {
		text += "__" + r.When.Value
	}
	if fieldGrammar.MatchString(text) {
		return text
	}
	parts := r.Columns
	if r.When != (RowCondition{}) {
		parts = append(slices.Clone(parts), r.When.Column, r.When.Value)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	plain := notInField.ReplaceAllString(text, "_")
	return "_" + plain[:min(len(plain), 50)] + "_" + hex.EncodeToString(sum[:4])
}

var notInField = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// Definition describes an attached table: its triggers, and the statements on its rows, are made from it. It
// is stored with the attachment.
type Definition struct {
	Collection string                `json:"collection"` // begins the names of the rows
	Table      TableName             `json:"table"`
	Key        []KeyColumn           `json:"key"`
	References []DefinitionReference `json:"references,omitempty"`
	// Gone is the column that says of a row that it is deleted, and its type; nil: rows are deleted by DELETE
	// alone.
	Gone *KeyColumn `json:"gone,omitempty"`
	// Partitioned: the table has partitions. It is of the database, and no part of the declaration.
	Partitioned bool `json:"partitioned,omitempty"`
	// PartitionKey are the columns that say to which partition a row belongs, on all levels; "" is an
	// expression.
	PartitionKey []string `json:"partition_key,omitempty"`
}

// KeyColumn is a column of a key, and its type.
type KeyColumn struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// DefinitionReference are the columns of a reference, and the field that stands for them in bodies.
type DefinitionReference struct {
	Path      string    `json:"path"`
	Columns   []string  `json:"columns"`
	Types     []string  `json:"types"`            // of the columns
	Region    string    `json:"region,omitempty"` // the column with the region
	Target    RowTarget `json:"target"`
	Behaviour Behaviour `json:"behaviour"`
	// a statement fails without the right to refer to the target; else the right is asked for after the
	// commit
	Strict  bool     `json:"strict,omitempty"`
	Missing Missing  `json:"missing,omitempty"` // the effect on rows whose target does not exist
	None    []string `json:"none,omitempty"`    // the values of its one column that name nothing

	Unset     []string `json:"unset,omitempty"`      // the columns that UNSET sets; none: all
	ToDefault bool     `json:"to_default,omitempty"` // UNSET sets them to their DEFAULT
	MatchFull bool     `json:"match_full,omitempty"` // a row has a value in all of the columns, or in none

	When *RowCondition `json:"when,omitempty"` // rows that it is not true of name nothing by this reference
}

// RowTarget describes the targets of a reference.
type RowTarget struct {
	Kind KindID `json:"kind"` // by its oldest name
	// begins the names of the targets; without it the column holds the name
	Collection string `json:"collection,omitempty"`
	// of the targets, where no column has it; without both, the deployment's region
	Region string `json:"region,omitempty"`
}

// Blocks reports whether rows need the right to block; else they need the acting right.
func (r *DefinitionReference) Blocks() bool { return r.Behaviour == Block }

// Definition returns the definition of the attachment of a kind with a table, whose columns have these types.
func (k *KindModel) Definition(typeOf func(column string) string) Definition {
	d := Definition{Collection: k.Table.collection, Table: k.Table.Name}
	for _, name := range k.Table.Key {
		d.Key = append(d.Key, KeyColumn{Name: name, Type: typeOf(name)})
	}
	if k.Table.Gone != "" {
		d.Gone = &KeyColumn{Name: k.Table.Gone, Type: typeOf(k.Table.Gone)}
	}
	for i := range k.Table.References {
		r := &k.Table.References[i]
		of := DefinitionReference{
			Path: r.Path, Columns: r.Columns, Region: r.Region.Column, Target: RowTarget{
				Kind:       r.target,
				Collection: r.collection, Region: r.Region.Fixed,
			},
			Behaviour: r.Behaviour, Strict: r.Enforce == EnforceStrict, Missing: r.Missing, None: r.None,
			ToDefault: r.ToDefault, MatchFull: r.MatchFull,
		}
		if len(r.Unset) < len(r.Columns) {
			of.Unset = r.Unset
		}
		for _, c := range r.Columns {
			of.Types = append(of.Types, typeOf(c))
		}
		if r.When != (RowCondition{}) {
			of.When = &r.When
		}
		d.References = append(d.References, of)
	}
	return d
}

// Values returns the texts of the columns that name a target, and reports whether they can name it.
func (r *DefinitionReference) Values(target string) ([]string, bool) {
	values, ok := r.values(target)
	return values, ok && !r.NamesNothing(values)
}

// NamesNothing reports whether the texts of the columns name nothing, as NULL does.
func (r *DefinitionReference) NamesNothing(values []string) bool {
	return len(r.None) > 0 && slices.Contains(r.None, values[0])
}

func (r *DefinitionReference) values(target string) ([]string, bool) {
	if r.Target.Collection == "" {
		return []string{target}, true
	}
	d := Definition{Collection: r.Target.Collection, Key: make([]KeyColumn, len(r.Columns))}
	for i, c := range r.Columns {
		d.Key[i] = KeyColumn{Name: c, Type: r.Types[i]}
	}
	return d.RowKey(target)
}

// TargetName returns the name of the target of a reference with these texts in its columns, and reports
// whether it can be one.
func (r *DefinitionReference) TargetName(values []string) (string, bool) {
	if r.Target.Collection == "" {
		return values[0], CheckName(values[0]) == nil
	}
	name, err := nameOf(r.Target.Collection, values)
	return name, err == nil
}

// Strict reports whether a reference of the table is strict.
func (d *Definition) Strict() bool {
	return slices.ContainsFunc(d.References, func(r DefinitionReference) bool { return r.Strict })
}

// TableView returns the view of an attached table. Its columns have the names of the declaration: PostgreSQL
// follows renames of the table and of its columns in the view.
func TableView(kindID int32) TableName {
	return TableName{Schema: "dbcontroller", Name: fmt.Sprintf("attached_%d", kindID)}
}

// Columns returns the columns of the key and of the references, each once: the key comes first.
func (d *Definition) Columns() (columns []string) {
	for _, c := range d.Key {
		columns = append(columns, c.Name)
	}
	key := len(columns)
	for _, r := range d.References {
		columns = append(columns, r.AllColumns()...)
	}
	if d.Gone != nil {
		columns = append(columns, d.Gone.Name)
	}
	rest := slices.DeleteFunc(columns[key:], func(c string) bool { return slices.Contains(columns[:key], c) })
	slices.Sort(rest)
	return append(columns[:key], slices.Compact(rest)...)
}

// UnsetColumns returns the columns that UNSET sets.
func (r *DefinitionReference) UnsetColumns() []string {
	if len(r.Unset) > 0 {
		return r.Unset
	}
	return r.Columns
}

// AllColumns returns the columns on which the target of a row depends.
func (r *DefinitionReference) AllColumns() []string {
	columns := slices.Clone(r.Columns)
	if r.Region != "" {
		columns = append(columns, r.Region)
	}
	if r.When != nil {
		columns = append(columns, r.When.Column)
	}
	return columns
}

// Describes reports whether the definition equals the definition of the kind as its version declares it.
func (d *Definition) Describes(k *KindModel) bool {
	if k.Table == nil || len(d.Key) != len(k.Table.Key) {
		return false
	}
	types := d.Types()
	declared := k.Definition(func(column string) string { return types[column] })
	return d.Checksum() == declared.Checksum()
}

// Types returns the types of the columns of the key and of the references, without the columns of regions and
// conditions.
func (d *Definition) Types() map[string]string {
	types := map[string]string{}
	if d.Gone != nil {
		types[d.Gone.Name] = d.Gone.Type
	}
	for _, c := range d.Key {
		types[c.Name] = c.Type
	}
	for _, r := range d.References {
		for i, c := range r.Columns {
			if i < len(r.Types) {
				types[c] = r.Types[i]
			}
		}
	}
	return types
}

// Checksum identifies the content.
func (d *Definition) Checksum() string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q %q", d.Collection, d.Table, d.Key)
	if d.Gone != nil {
		_, _ = fmt.Fprintf(h, " gone %q", *d.Gone)
	}
	for _, r := range d.References {
		when := r.When
		r.When = nil
		if _, _ = fmt.Fprintf(h, " %+v", r); when != nil {
			_, _ = fmt.Fprintf(h, " when %q", *when)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// RowName returns the name of the row with a key, given as the texts of its columns.
func (d *Definition) RowName(key []string) (string, error) { return nameOf(d.Collection, key) }

// RowKey returns the texts of the key columns in a name, and reports whether a row can have them.
func (d *Definition) RowKey(name string) ([]string, bool) {
	collection, id, ok := strings.Cut(name, "/")
	if !ok || collection != d.Collection {
		return nil, false
	}
	parts, ok := splitKey(unescape(id), len(d.Key))
	for i := range parts {
		ok = ok && i < len(d.Key) && d.Key[i].fits(parts[i])
	}
	return parts, ok
}

// KeyTypes are the types that a key can have: each value has one text in all sessions, and equal values have
// equal texts. The names come from format_type. A numeric has no digits behind the point; times are of UTC,
// in the ISO form.
var KeyTypes = []string{
	"smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", "character", "date",
	"timestamp without time zone", "timestamp with time zone",
}

// GoneFlag is the type of a column that says by true that a row is deleted. One of GoneTimes says so by not
// being NULL.
const GoneFlag = "boolean"

// GoneTimes are types of columns that say when a row was deleted.
var GoneTimes = []string{"date", "timestamp without time zone", "timestamp with time zone"}

// CastType returns the name of a type of KeyTypes by which texts of any length are cast.
func CastType(t string) string {
	if t == "character" { // the cast to this name keeps one character
		return "bpchar"
	}
	return t
}

// Textual reports whether a type of KeyTypes has the values of texts, which a collation can compare.
func Textual(t string) bool { return t == "text" || t == "character varying" || t == "character" }

// Timed reports whether the texts of the values of a type depend on settings of the session.
func Timed(t string) bool {
	_, timed := timeForms[t]
	return timed
}

// timeForms are the forms of the types of times behind a day. PostgreSQL leaves zeros at the end of a
// fraction out.
var timeForms = map[string]string{
	"date": "", "timestamp without time zone": " 15:04:05.999999",
	"timestamp with time zone": " 15:04:05.999999+00",
}

// dayGrammar matches a day, whose year has at least four digits, and the text behind it.
var dayGrammar = regexp.MustCompile(`^([0-9]{4,6})-([0-9]{2})-([0-9]{2})(.*?)( BC)?$`)

// fitsTime reports whether PostgreSQL prints a time as this text. The years are in the range of all types.
func fitsTime(kind, text string) bool {
	if text == "infinity" || text == "-infinity" {
		return true
	}
	m := dayGrammar.FindStringSubmatch(text)
	if m == nil || len(m[1]) > 4 && m[1][0] == '0' {
		return false
	}
	year, _ := strconv.Atoi(m[1])
	if year == 0 || year > 290_000 || m[5] != "" && year > 4700 {
		return false
	}
	if m[5] != "" {
		year = 1 - year
	}
	month, _ := strconv.Atoi(m[2])
	day, _ := strconv.Atoi(m[3])
	at := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	if at.Month() != time.Month(month) || at.Day() != day {
		return false
	}
	clock, err := time.Parse(timeForms[kind], m[4])
	return err == nil && clock.Format(timeForms[kind]) == m[4]
}

// fits reports whether a text is the text of a value of the column.
func (c KeyColumn) fits(text string) bool {
	if bits := map[string]int{"smallint": 16, "integer": 32, "bigint": 64}[c.Type]; bits > 0 {
		n, err := strconv.ParseInt(text, 10, bits)
		return err == nil && strconv.FormatInt(n, 10) == text
	}
	if Timed(c.Type) {
		return fitsTime(c.Type, text)
	}
	switch c.Type {
	case "uuid":
		return uuidGrammar.MatchString(text)
	case "numeric":
		return wholeGrammar.MatchString(text)
	case "character":
		return fitsText(text) && !strings.HasSuffix(text, " ") // which is no part of the value
	}
	return fitsText(text)
}

func fitsText(text string) bool { return utf8.ValidString(text) && !strings.Contains(text, "\x00") }

var (
	uuidGrammar  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	wholeGrammar = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,999}|NaN)$`)
)
