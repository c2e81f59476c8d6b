package read

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/standby"
)

// ListRequest asks for a page of resources.
type ListRequest struct {
	Kind    string // empty: all kinds
	Limit   int
	Token   string // of the page before; the other fields are the same as in its request
	Filter  string // AIP-160
	OrderBy string // AIP-132; empty: by kind and name
	// ShowDeleted: also resources of scheduled deletions, which are hidden.
	ShowDeleted bool
	// Within are the names that the caller may read. A page token does not depend on them: they may change
	// between pages.
	Within grant.Within
}

// cursor is a page token: the last resource of the page before, and the values of its sort keys.
type cursor struct {
	// Request is a hash of the filter, the order and the kind.
	Request []byte            `json:"r"`
	Kind    string            `json:"k"`
	Name    string            `json:"n"`
	Keys    []json.RawMessage `json:"v,omitempty"`
}

func (r ListRequest) hash() []byte {
	parts := []string{r.Kind, r.Filter, r.OrderBy}
	if r.ShowDeleted {
		parts = append(parts, "deleted")
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:8]
}

func (r ListRequest) cursor() (*cursor, error) {
	if r.Token == "" {
		return nil, nil //nolint:nilnil // the first page
	}
	c := &cursor{}
	raw, err := base64.RawURLEncoding.DecodeString(r.Token)
	if err != nil || json.Unmarshal(raw, c) != nil {
		return nil, &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("want the next_page_token of an earlier answer"),
		}
	}
	if strings.ContainsRune(c.Name+c.Kind, 0) {
		return nil, &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("want the next_page_token of an earlier answer"),
		}
	}
	if string(c.Request) != string(r.hash()) {
		return nil, &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("it is of a list of another kind, filter or order"),
		}
	}
	return c, nil
}

// listedSQL is a table x of resources with the columns of filters and orders, and withDeletedSQL the same
// with those of scheduled deletions.
const (
	listedSQL      = listedOfSQL + `NOT s.hidden) AS x `
	withDeletedSQL = listedOfSQL + `(s.state = {active} OR NOT s.hidden)) AS x `
	listedOfSQL    = `
FROM (
    SELECT s.uid, s.kind_id, k.kind, s.name, s.state, s.revision, s.generation, s.created_at, s.updated_at, r.labels, r.body, r.owners, s.block_deletion,
        s.finalizers, r.status, COALESCE(r.status_generation, 0) AS status_generation, ` + scheduledSQL + ` AS scheduled
    FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id LEFT JOIN dbcontroller.resource r ON r.id = s.id
    WHERE `
)

func (r ListRequest) tableSQL() string {
	if r.ShowDeleted {
		return db.Codes(withDeletedSQL)
	}
	return listedSQL
}

const listColumns = `
SELECT x.uid, x.kind_id, x.name, x.state, x.revision, x.generation, x.created_at, x.updated_at, x.labels, x.body, x.owners, x.block_deletion,
    x.finalizers, x.status, x.status_generation, x.scheduled`

// listTimeout is the longest time for one page.
const listTimeout = 10 * time.Second

// ErrCostly reports that a list exceeded listTimeout.
var ErrCostly = errors.New(
	"the list takes too long: ask for one kind, leave order_by out, or use a filter that more resources match")

// List reads a page of resources, and returns the token for the next one; it is empty after the last.
func (s *Reader) List(ctx context.Context, req ListRequest) ([]peer.Resource, string, error) {
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	page, err := standby.Read(bounded, s.Cfg.Standby, func(ctx context.Context) (listed, error) {
		return s.list(ctx, req)
	})
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return nil, "", ErrCostly
	}
	return page.resources, page.next, err
}

// listed is a page of a list, and the token for the next one.
type listed struct {
	resources []peer.Resource
	next      string
}

func (s *Reader) list(ctx context.Context, req ListRequest) (page listed, err error) {
	v, err := s.Current()
	if err != nil {
		return page, err
	}
	from, err := req.cursor()
	if err != nil {
		return page, err
	}
	ids, names := make([]int32, 1), make([]string, 1)
	if req.Kind != "" {
		ids[0], names[0], err = s.kindToRead(ctx, v, req.Kind)
	} else if err = s.gate.CheckRuns(ctx, s.Pool, v); err == nil {
		// otherwise the kinds that only another version has would be left out
		ids, names, err = s.kindsToRead(ctx, v)
	}
	if err != nil {
		return page, err
	}
	if from != nil {
		if from.Kind = s.KindNow(from.Kind); !slices.Contains(names, from.Kind) {
			return page, &peer.InvalidError{
				Resource: "page_token",
				Err:      fmt.Errorf("it continues with kind %s, which no longer exists", from.Kind),
			}
		}
	}
	l := &listing{store: s, req: req, kinds: ids, names: names}
	if req.OrderBy != "" {
		err = l.ordered(ctx, from)
	} else {
		err = l.byName(ctx, from)
	}
	if err != nil {
		return page, err
	}
	return l.answer()
}

type listing struct {
	store *Reader
	req   ListRequest
	kinds []int32
	names []string
	found []scannedResource
	keys  [][]byte // JSON arrays: the sort key of each resource; none for a list by name
	bytes int      // of the rows that were read
	cut   bool     // the page has maxPageBytes
}

// collect reads rows until the page has maxPageBytes, so that no page takes more memory.
func (l *listing) collect(rows pgx.Rows, scan func(pgx.CollectableRow) (scannedResource, error)) error {
	defer rows.Close()
	for rows.Next() {
		for _, value := range rows.RawValues() {
			l.bytes += len(value)
		}
		if l.cut = l.bytes > maxPageBytes && len(l.found) > 0; l.cut {
			return nil
		}
		found, err := scan(rows)
		if err != nil {
			return err
		}
		l.found = append(l.found, found)
	}
	return rows.Err()
}

// maxPageBytes is the size of the rows at which a page ends early: several pages of one caller are in memory
// at a time.
const maxPageBytes = 1 << 20

// malformed returns *InvalidError for values that PostgreSQL cannot convert, such as in a forged token.
func malformed(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "22") {
		return &peer.InvalidError{
			Resource: "filter or page_token",
			Err:      errors.New("it has a value that PostgreSQL cannot convert"),
		}
	}
	return fmt.Errorf("list: %w", err)
}

// byName lists kind after kind, and of each kind range after range of its names, in the order of the index on
// names; rows of tables in the order of their key.
func (l *listing) byName(ctx context.Context, from *cursor) error {
	where, err := l.store.compile(l.req.Filter, 6)
	if err != nil {
		return err
	}
	sql := listColumns + l.req.tableSQL() +
		`WHERE x.kind_id = $1 AND x.name > $2 AND x.name >= $4 AND x.name < $5 AND ` + where.sql.String() +
		` ORDER BY x.name LIMIT $3`
	for i, kind := range l.kinds {
		after := ""
		if from != nil {
			if l.names[i] != from.Kind {
				continue
			}
			after, from = from.Name, nil
		}
		if t := l.store.rows.Of(kind); t != nil {
			if err := l.byKey(ctx, t, l.names[i], after); err != nil || l.cut || len(l.found) == l.req.Limit {
				return err
			}
			continue
		}
		for _, names := range l.req.Within.Of(l.names[i]) {
			if names.Below <= after {
				continue
			}
			rows, err := l.store.Pool.Query(ctx, sql, append([]any{
				kind, after, l.req.Limit - len(l.found), names.From,
				names.Below,
			}, where.args...)...)
			if err != nil {
				return malformed(err)
			}
			if err := l.collect(rows, scanResource); err != nil {
				return malformed(err)
			}
			if l.cut || len(l.found) == l.req.Limit {
				return nil
			}
		}
	}
	return nil
}

// ordered lists the matching resources by the sort keys, then by kind and name.
func (l *listing) ordered(ctx context.Context, from *cursor) error {
	for i, kind := range l.kinds {
		if l.store.rows.Of(kind) != nil {
			return unlisted("order_by", l.names[i],
				"they are listed in the order of its key; leave order_by out, or ask for another kind")
		}
	}
	c, err := l.store.compile(l.req.Filter, 3)
	if err != nil {
		return err
	}
	c.within(l.req.Within, l.kinds, l.names)
	keys, err := orderBy(l.req.OrderBy, c)
	if err != nil {
		return err
	}
	keys = append(keys, sortKey{sql: "to_jsonb(x.kind)"}, sortKey{sql: "to_jsonb(x.name)"})
	if from != nil && len(from.Keys) != len(keys) {
		return &peer.InvalidError{
			Resource: "page_token",
			Err:      errors.New("want the next_page_token of an earlier answer"),
		}
	}
	var exprs, order []string
	for _, k := range keys {
		exprs = append(exprs, k.sql)
		if k.descending {
			order = append(order, k.sql+" DESC")
		} else {
			order = append(order, k.sql)
		}
	}
	sql := listColumns + `, jsonb_build_array(` + strings.Join(exprs, ", ") + `)` + l.req.tableSQL() +
		`WHERE x.kind_id = ANY ($1) AND ` + c.sql.String() +
		` AND ` + after(c, keys, from) + ` ORDER BY ` + strings.Join(order, ", ") + ` LIMIT $2`
	rows, err := l.store.Pool.Query(ctx, sql, append([]any{l.kinds, l.req.Limit}, c.args...)...)
	if err != nil {
		return malformed(err)
	}
	err = l.collect(rows, func(row pgx.CollectableRow) (scannedResource, error) {
		var keys []byte
		r, err := scanResource(&withLast{row, &keys})
		l.keys = append(l.keys, keys)
		return r, err
	})
	if err != nil {
		return malformed(err)
	}
	return nil
}

// after returns the condition that a row comes after the cursor.
func after(c *condition, keys []sortKey, from *cursor) string {
	if from == nil {
		return "true"
	}
	var ways []string
	for i, k := range keys {
		var all []string
		for j := range i {
			all = append(all, keys[j].sql+" = "+c.param(string(from.Keys[j]), "jsonb"))
		}
		op := " > "
		if k.descending {
			op = " < "
		}
		all = append(all, k.sql+op+c.param(string(from.Keys[i]), "jsonb"))
		ways = append(ways, "("+strings.Join(all, " AND ")+")")
	}
	return "(" + strings.Join(ways, " OR ") + ")"
}

// withLast scans the last column into last, and the others as before.
type withLast struct {
	pgx.CollectableRow
	last *[]byte
}

func (r *withLast) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(dest, r.last)...)
}

func (l *listing) answer() (listed, error) {
	more := l.cut || len(l.found) == l.req.Limit
	out := make([]peer.Resource, len(l.found))
	for i, r := range l.found {
		out[i] = r.Resource
		for j, id := range l.kinds {
			if id == r.kindID {
				out[i].Kind = l.names[j]
			}
		}
	}
	if !more || len(out) == 0 {
		return listed{resources: out}, nil
	}
	last := out[len(out)-1]
	next := cursor{Request: l.req.hash(), Kind: last.Kind, Name: last.Name}
	if l.keys != nil {
		if err := json.Unmarshal(l.keys[len(out)-1], &next.Keys); err != nil {
			return listed{}, err
		}
	}
	raw, err := json.Marshal(next)
	return listed{out, base64.RawURLEncoding.EncodeToString(raw)}, err
}
