package db

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Named are the arguments of a statement that has @name in its text. It works as pgx.StrictNamedArgs, which
// parses the text at every call; here each text is parsed once.
type Named map[string]any

// positional is a statement with $1, $2 and so on, and which argument each of them is.
type positional struct {
	sql   string
	names []string
}

// positionals are *positional by the text with names: a fixed number of constants.
var positionals sync.Map

// RewriteQuery implements pgx.QueryRewriter.
func (n Named) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	p, err := n.positional(ctx, conn, sql)
	if err != nil {
		return "", nil, err
	}
	args := make([]any, len(p.names))
	for i, name := range p.names {
		arg, ok := n[name]
		if !ok {
			return "", nil, fmt.Errorf("the argument %s is missing in %q", name, sql)
		}
		args[i] = arg
	}
	if len(n) != len(args) {
		return "", nil, fmt.Errorf("%d arguments for the %d names of %q", len(n), len(args), sql)
	}
	return p.sql, args, nil
}

func (n Named) positional(ctx context.Context, conn *pgx.Conn, sql string) (*positional, error) {
	if p, ok := positionals.Load(sql); ok {
		return p.(*positional), nil
	}
	itself := pgx.StrictNamedArgs{}
	for name := range n {
		itself[name] = name
	}
	text, names, err := itself.RewriteQuery(ctx, conn, sql, nil)
	if err != nil {
		return nil, err
	}
	p := &positional{sql: text}
	for _, name := range names {
		p.names = append(p.names, name.(string))
	}
	positionals.Store(sql, p)
	return p, nil
}
