package scan

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

// small is the number of rows up to which a target without an index on its key is read for each batch.
const small = 100_000

// encode makes one text of several, which decode takes apart.
func encode(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteString(strconv.Itoa(len(v)) + ":" + v)
	}
	return b.String()
}

func decode(s string, n int) []string {
	if n == 1 {
		return []string{s}
	}
	out := make([]string, 0, n)
	for s != "" {
		length, rest, _ := strings.Cut(s, ":")
		size, _ := strconv.Atoi(length)
		out, s = append(out, rest[:size]), rest[size:]
	}
	return out
}

// keysSQL selects the numbers of the keys in arrays of texts, one array for each column, for which the
// condition holds.
func keysSQL(columns int, condition string) string {
	arrays, names := make([]string, columns), make([]string, columns)
	for i := range columns {
		arrays[i], names[i] = fmt.Sprintf("$%d::text[]", i+1), fmt.Sprintf("v%d", i+1)
	}
	return "SELECT k.n FROM unnest(" + strings.Join(arrays, ", ") + ") WITH ORDINALITY AS k (" + strings.Join(names,
		", ") + ", n) WHERE " + condition
}

// columnsOf turns rows of values into one array for each column.
func columnsOf(rows [][]string, columns int) []any {
	arrays := make([][]string, columns)
	for i := range arrays {
		arrays[i] = make([]string, len(rows))
		for j, row := range rows {
			arrays[i][j] = row[i]
		}
	}
	out := make([]any, columns)
	for i := range arrays {
		out[i] = arrays[i]
	}
	return out
}

// matching is the condition that a row of t has the key in k.v<from+1>, ….
func matching(key []string, matches []catalogue.Match, from int) string {
	conditions := make([]string, len(key))
	for i, name := range key {
		conditions[i] = "t." + schema.QuoteIdentifier(name) + " = " + matches[i].Cast(fmt.Sprintf("k.v%d", from+i+1))
	}
	return strings.Join(conditions, " AND ")
}

// existing returns which of the values are keys of a target.
func (d *database) existing(ctx context.Context, t *catalogue.Target, values [][]string) (map[int]bool, error) {
	asked, at := valid(t.Matches, values)
	if len(asked) == 0 {
		return nil, nil
	}
	query := keysSQL(len(t.Key), "EXISTS (SELECT FROM "+t.Table.Name.SQL()+" t WHERE "+matching(t.Key, t.Matches, 0)+
		")")
	found, err := d.numbers(ctx, t.Table.Finds(t.Key), query, asked, len(t.Key))
	out := make(map[int]bool, len(found))
	for i := range found {
		out[at[i]] = true
	}
	return out, err
}

// valid returns the rows whose values are of the types of the keys, and their places.
func valid(matches []catalogue.Match, rows [][]string) (out [][]string, at []int) {
	for i, row := range rows {
		ok := true
		for j, m := range matches {
			ok = ok && m.Valid(row[j])
		}
		if ok {
			out, at = append(out, row), append(at, i)
		}
	}
	return out, at
}

// unchanged returns which of the rows are still there with the same values. Each row is its key, then the
// values.
func (d *database) unchanged(ctx context.Context, r *catalogue.Reference, rows [][]string) (map[int]bool, error) {
	condition := matching(r.Key, keyMatches(r.Table, r.Key), 0)
	for i, name := range r.Columns {
		condition += fmt.Sprintf(" AND t.%s::text = k.v%d", schema.QuoteIdentifier(name), len(r.Key)+i+1)
	}
	columns := len(r.Key) + len(r.Columns)
	return d.numbers(ctx, true, keysSQL(columns, "EXISTS (SELECT FROM "+r.Table.Name.SQL()+" t WHERE "+condition+")"),
		rows, columns)
}

// keyMatches returns the way to find rows by the texts of their keys, nil when there is none.
func keyMatches(t *catalogue.Table, key []string) []catalogue.Match {
	if !t.Finds(key) {
		return nil
	}
	out := make([]catalogue.Match, len(key))
	for i, name := range key {
		m, ok := catalogue.Compare(t.Column(name).Type, t.Column(name).Type)
		if !ok {
			return nil
		}
		out[i] = m
	}
	return out
}

func (d *database) numbers(ctx context.Context, byIndex bool, query string, rows [][]string,
	columns int,
) (out map[int]bool, err error) {
	err = patiently(ctx, func() error {
		out = make(map[int]bool, len(rows))
		return d.askOnce(ctx, byIndex, func(rows pgx.Rows) error {
			var n int64
			_, err := pgx.ForEachRow(rows, []any{&n}, func() error { out[int(n)-1] = true; return nil })
			return err
		}, query, columnsOf(rows, columns)...)
	})
	return out, err
}

// patiently repeats statements that a lock or a standby's replay interrupted.
func patiently(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == 3 || !postgres.Busy(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(try) * 500 * time.Millisecond):
		}
	}
}

// readable returns why a target's keys cannot be asked for: each batch would read the whole table. "" when
// they can.
func (d *database) readable(ctx context.Context, t *catalogue.Target) (reason string, err error) {
	if t.Table.Finds(t.Key) {
		return "", nil
	}
	var plan []byte
	err = d.ask(ctx, false, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "EXPLAIN (FORMAT JSON) SELECT FROM "+t.Table.Name.SQL()).Scan(&plan)
	})
	if err != nil {
		return "", err
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if err := json.Unmarshal(plan, &plans); err != nil || len(plans) == 0 {
		return "", fmt.Errorf("read the plan of %s: %w", t.Table.Name, err)
	}
	if plans[0].Plan.Rows > small {
		return fmt.Sprintf("%s %s has no index on (%s), and about %.0f rows: each batch would read all of them",
			d.Label, t.Table.Name, strings.Join(t.Key, ", "), plans[0].Plan.Rows), nil
	}
	return "", nil
}
