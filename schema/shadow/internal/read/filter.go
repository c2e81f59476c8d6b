package read

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.einride.tech/aip/filtering"
	"go.einride.tech/aip/ordering"
	"google.golang.org/genproto/googleapis/api/expr/v1alpha1"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
)

// Limits of lists and watches.
const (
	maxFilterBytes = 4096
	maxOrderFields = 8
)

// condition is SQL over a row x with the columns of a resource, and its parameters. Every value of a caller
// is a parameter.
type condition struct {
	sql  strings.Builder
	args []any
	// next is the number of the next parameter.
	next int
	// stored returns the name that a kind is stored by.
	stored func(kind string) string
}

func (c *condition) param(v any, cast string) string {
	c.args = append(c.args, v)
	c.next++
	return "$" + strconv.Itoa(c.next-1) + "::" + cast
}

// compile turns a filter (AIP-160) into a condition whose parameters begin with a number. An empty filter is
// true.
func (s *Reader) compile(filter string, first int) (*condition, error) {
	c := &condition{next: first, stored: func(kind string) string {
		return s.Names.Root(schema.KindID{Service: s.Self.Service, Kind: kind}).Kind
	}}
	if strings.TrimSpace(filter) == "" {
		c.sql.WriteString("true")
		return c, nil
	}
	if len(filter) > maxFilterBytes {
		return nil, &peer.InvalidError{Resource: "filter", Err: fmt.Errorf("%d bytes, at most %d are allowed",
			len(filter), maxFilterBytes)}
	}
	if strings.ContainsRune(filter, 0) {
		return nil, &peer.InvalidError{Resource: "filter", Err: errors.New("it has a NUL character")}
	}
	var p filtering.Parser
	p.Init(filter)
	parsed, err := p.Parse()
	if err != nil { // the parser's own text tells of its functions
		return nil, &peer.InvalidError{
			Resource: "filter",
			Err: fmt.Errorf("%q is no filter: want comparisons such as labels.team = \"a\", joined by AND, OR and NOT",
				filter),
		}
	}
	if err := c.term(parsed.GetExpr()); err != nil {
		return nil, &peer.InvalidError{Resource: "filter", Err: err}
	}
	return c, nil
}

// within adds the condition that a resource is one of the names that its kind is limited to. Nil adds
// nothing. It follows the condition of a filter.
func (c *condition) within(names grant.Within, ids []int32, kinds []string) {
	if names == nil {
		return
	}
	var of []int32
	var from, below []string
	for i, id := range ids {
		for _, r := range names.Of(kinds[i]) {
			of, from, below = append(of, id), append(from, r.From), append(below, r.Below)
		}
	}
	c.sql.WriteString(` AND EXISTS (SELECT FROM unnest(` + c.param(of, "int[]") + `, ` + c.param(from, "text[]") +
		`, ` + c.param(below, "text[]") +
		`) AS w (kind_id, low, high) WHERE w.kind_id = x.kind_id AND x.name >= w.low AND x.name < w.high)`)
}

// comparators are the only parts of a filter that become SQL text.
var comparators = map[string]bool{
	filtering.FunctionEquals: true, filtering.FunctionNotEquals: true, filtering.FunctionHas: true,
	filtering.FunctionLessThan: true, filtering.FunctionLessEquals: true, filtering.FunctionGreaterThan: true,
	filtering.FunctionGreaterEquals: true,
}

func (c *condition) term(e *expr.Expr) error {
	call := e.GetCallExpr()
	if call == nil {
		return errors.New("want comparisons such as labels.team = \"a\", joined by AND, OR and NOT")
	}
	switch call.GetFunction() {
	case filtering.FunctionAnd, filtering.FunctionFuzzyAnd:
		return c.joined(" AND ", call.GetArgs())
	case filtering.FunctionOr:
		return c.joined(" OR ", call.GetArgs())
	case filtering.FunctionNot:
		c.sql.WriteString("NOT ")
		return c.joined("", call.GetArgs())
	}
	if !comparators[call.GetFunction()] || len(call.GetArgs()) != 2 {
		return fmt.Errorf("unknown function %s", call.GetFunction())
	}
	path, err := fieldPath(call.GetArgs()[0])
	if err != nil {
		return err
	}
	literal, err := literalOf(call.GetArgs()[1])
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(path, "."), err)
	}
	c.sql.WriteString("COALESCE(")
	if err := c.compare(path, call.GetFunction(), literal); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(path, "."), err)
	}
	c.sql.WriteString(", false)")
	return nil
}

func (c *condition) joined(by string, terms []*expr.Expr) error {
	c.sql.WriteString("(")
	for i, t := range terms {
		if i > 0 {
			c.sql.WriteString(by)
		}
		if err := c.term(t); err != nil {
			return err
		}
	}
	c.sql.WriteString(")")
	return nil
}

func fieldPath(e *expr.Expr) ([]string, error) {
	if id := e.GetIdentExpr(); id != nil {
		return []string{id.GetName()}, nil
	}
	if s := e.GetSelectExpr(); s != nil {
		path, err := fieldPath(s.GetOperand())
		return append(path, s.GetField()), err
	}
	return nil, errors.New("want a field on the left, such as name, labels.team or body.spec.size")
}

// literal is a value on the right: a string, a number, a word such as true or ACTIVE.
type literal struct {
	text   string
	number bool
	word   bool
}

func literalOf(e *expr.Expr) (literal, error) {
	if id := e.GetIdentExpr(); id != nil {
		return literal{text: id.GetName(), word: true}, nil
	}
	switch v := e.GetConstExpr().GetConstantKind().(type) {
	case *expr.Constant_StringValue:
		return literal{text: v.StringValue}, nil
	case *expr.Constant_Int64Value:
		return literal{text: strconv.FormatInt(v.Int64Value, 10), number: true}, nil
	case *expr.Constant_DoubleValue:
		return literal{text: strconv.FormatFloat(v.DoubleValue, 'g', -1, 64), number: true}, nil
	}
	return literal{}, errors.New("want a string, a number, true, false or null on the right")
}

// columnsOf has the columns of x, by their names in filters, and their types.
var columnsOf = map[string]struct{ column, cast string }{
	"name": {"x.name", "text"}, "kind": {"x.kind", "text"}, "uid": {"x.uid::text", "text"},
	"revision": {"x.revision", "bigint"}, "generation": {"x.generation", "bigint"},
	"create_time": {"x.created_at", "timestamptz"}, "update_time": {"x.updated_at", "timestamptz"},
}

func (c *condition) compare(path []string, op string, v literal) error {
	switch {
	case path[0] == "body" && len(path) > 1:
		at := c.param(path[1:], "text[]")
		return c.compareJSON("x.body #> "+at, "x.body #>> "+at, op, v)
	case path[0] == "labels" && len(path) == 2:
		key := c.param(path[1], "text")
		return c.compareJSON("x.labels -> "+key, "x.labels ->> "+key, op, v)
	case path[0] == "labels" && len(path) == 1 && op == filtering.FunctionHas:
		c.sql.WriteString("jsonb_exists(x.labels, " + c.param(v.text, "text") + ")")
		return nil
	case path[0] == "state" && len(path) == 1:
		return c.compareState(op, v)
	}
	column, ok := columnsOf[path[0]]
	if !ok || len(path) > 1 {
		return errors.New(
			"unknown field: known are name, kind, uid, state, revision, generation, create_time, update_time, labels.<key>, body.<field>")
	}
	if op == filtering.FunctionHas {
		op = filtering.FunctionEquals
	}
	switch column.cast {
	case "bigint":
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil {
			return errors.New("want a whole number")
		}
		c.operator(column.column, op, c.param(n, "bigint"))
	case "timestamptz":
		t, err := time.Parse(time.RFC3339Nano, v.text)
		if err != nil {
			return errors.New(`want a time such as "2024-05-01T00:00:00Z"`)
		}
		c.operator(column.column, op, c.param(t, "timestamptz"))
	default:
		if path[0] == "kind" {
			v.text = c.stored(v.text)
		}
		c.compareText(column.column, op, v.text)
	}
	return nil
}

func (c *condition) compareState(op string, v literal) error {
	states := map[string]peer.State{"ACTIVE": peer.Active, "DELETING": peer.Deleting}
	state, ok := states[v.text]
	if !ok || op != filtering.FunctionEquals && op != filtering.FunctionNotEquals {
		return errors.New("want = or != with ACTIVE or DELETING")
	}
	c.operator("x.state", op, c.param(int16(state), "smallint"))
	return nil
}

func (c *condition) operator(left, op, right string) {
	if op == filtering.FunctionNotEquals {
		op = "<>"
	}
	c.sql.WriteString(left + " " + op + " " + right)
}

// compareText translates the star of AIP-160, which stands for any text, and \* (in a filter's string:
// "\\*"), which is a star: names can contain one.
func (c *condition) compareText(text, op, v string) {
	if !strings.Contains(v, "*") || op != filtering.FunctionEquals && op != filtering.FunctionNotEquals {
		c.operator(text, op, c.param(v, "text"))
		return
	}
	// In this order: the escapes of the filter come before the characters that LIKE gives a meaning.
	pattern := strings.NewReplacer(`\*`, "*", `\\`, `\\`, `\`, `\\`, "%", `\%`, "_", `\_`, "*", "%").Replace(v)
	like := " LIKE "
	if op == filtering.FunctionNotEquals {
		like = " NOT LIKE "
	}
	c.sql.WriteString(text + like + c.param(pattern, "text"))
}

// compareJSON compares a value in a body or a label with the value on the right; values of different types do
// not match.
func (c *condition) compareJSON(value, text, op string, v literal) error {
	switch {
	case op == filtering.FunctionHas && v.text == "*":
		c.sql.WriteString("(" + value + ") <> 'null'")
	case op == filtering.FunctionHas:
		// Of a list an element, of a map a key, otherwise the value itself.
		c.sql.WriteString("CASE jsonb_typeof(" + value + ") WHEN 'string' THEN (" + text + ") = " +
			c.param(v.text, "text"))
		c.sql.WriteString(" WHEN 'object' THEN jsonb_exists(" + value + ", " + c.param(v.text, "text") + ")")
		c.sql.WriteString(" ELSE (" + value + ") @> " + c.json(v) + " END")
	case v.word && v.text == "null" && op == filtering.FunctionEquals:
		c.sql.WriteString("COALESCE(" + value + ", 'null') = 'null'")
	case v.word && v.text == "null" && op == filtering.FunctionNotEquals:
		c.sql.WriteString("COALESCE(" + value + ", 'null') <> 'null'")
	case v.number || v.word && (v.text == "true" || v.text == "false"):
		kind := "'boolean'"
		if v.number {
			kind = "'number'"
		}
		if op == filtering.FunctionNotEquals {
			c.sql.WriteString("(" + value + ") IS DISTINCT FROM " + c.json(v))
			return nil
		}
		c.sql.WriteString("jsonb_typeof(" + value + ") = " + kind + " AND ")
		c.operator("("+value+")", op, c.json(v))
	default:
		if op == filtering.FunctionNotEquals && !strings.Contains(v.text, "*") {
			c.sql.WriteString("(" + text + ") IS DISTINCT FROM " + c.param(v.text, "text"))
			return nil
		}
		if op == filtering.FunctionNotEquals { // with a star
			c.sql.WriteString("COALESCE(jsonb_typeof(" + value + ") <> 'string', true) OR ")
		} else {
			c.sql.WriteString("jsonb_typeof(" + value + ") = 'string' AND ")
		}
		c.compareText("("+text+")", op, v.text)
	}
	return nil
}

func (c *condition) json(v literal) string {
	switch {
	case v.number:
		return "to_jsonb(" + c.param(v.text, "text") + "::numeric)"
	case v.word && (v.text == "true" || v.text == "false"):
		return "to_jsonb(" + c.param(v.text == "true", "boolean") + ")"
	}
	return "to_jsonb(" + c.param(v.text, "text") + ")"
}

// sortKey is a key of an order: SQL of type jsonb, so that a page token can hold its value.
type sortKey struct {
	sql        string
	descending bool
}

// orderBy reads an order (AIP-132): fields of a resource, each with desc when it is descending.
func orderBy(text string, c *condition) ([]sortKey, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var o ordering.OrderBy
	if err := o.UnmarshalString(text); err != nil {
		return nil, &peer.InvalidError{
			Resource: "order_by",
			Err:      fmt.Errorf("%q is no order: want fields such as create_time desc, body.size", text),
		}
	}
	if len(o.Fields) > maxOrderFields {
		return nil, &peer.InvalidError{Resource: "order_by", Err: fmt.Errorf("at most %d fields are allowed",
			maxOrderFields)}
	}
	var keys []sortKey
	for _, f := range o.Fields {
		path := f.SubFields()
		key := sortKey{descending: f.Desc}
		switch column := columnsOf[path[0]]; {
		case path[0] == "body" && len(path) > 1:
			key.sql = "COALESCE(x.body #> " + c.param(path[1:], "text[]") + ", 'null')"
		case path[0] == "labels" && len(path) == 2:
			key.sql = "COALESCE(x.labels -> " + c.param(path[1], "text") + ", 'null')"
		case len(path) > 1 || !slices.Contains([]string{
			"name", "kind", "revision", "generation", "create_time",
			"update_time",
		}, path[0]):
			return nil, &peer.InvalidError{
				Resource: "order_by",
				Err: fmt.Errorf(
					"unknown field %q: known are name, kind, revision, generation, create_time, update_time, labels.<key>, body.<field>", f.Path),
			}
		case column.cast == "timestamptz":
			key.sql = "to_jsonb(extract(epoch FROM " + column.column + "))"
		default:
			key.sql = "to_jsonb(" + column.column + ")"
		}
		keys = append(keys, key)
	}
	return keys, nil
}
