package launcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrClaimed says that another process has claimed the server.
var ErrClaimed = errors.New("the server is claimed by another process")

// claimLock is the key of the advisory lock of a claim, in the maintenance database.
const claimLock = 0x6462632d646576 // "dbc-dev"

// Claim takes the server for this process, until Stop or the end of the process; it returns ErrClaimed when
// another process has it. A program that drops databases by fixed names claims the server first: another
// process may use them.
func (p *Server) Claim(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.dsn)
	if err != nil {
		return fmt.Errorf("claim the server: %w", err)
	}
	var claimed bool
	if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(claimLock)).Scan(&claimed); err == nil &&
		!claimed {
		err = ErrClaimed
	}
	if err != nil {
		_ = conn.Close(ctx)
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim = conn
	return nil
}
