package serve

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/postgres"
)

// passwordFile has the DSN of a database. Its password is read for each new connection, so that a changed one
// needs no restart.
type passwordFile struct {
	path string
	log  *zap.Logger

	mu   sync.Mutex
	last string // guarded by mu; the last password
}

// beforeConnect is a hook of pools. A file that cannot be read, or is about another database or user, changes
// nothing.
func (p *passwordFile) beforeConnect(_ context.Context, to *pgx.ConnConfig) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, err := os.ReadFile(p.path)
	if err == nil {
		var now *pgx.ConnConfig
		now, err = pgx.ParseConfig(strings.TrimRight(string(raw), "\r\n"))
		if err == nil && now.Host == to.Host && now.Port == to.Port && now.Database == to.Database &&
			now.User == to.User && now.Password != p.last {
			p.last = now.Password
			p.log.Info("the password of the database has changed: new connections have the new one",
				zap.String("file", p.path))
		}
	}
	to.Password = p.last
	return nil //nolint:nilerr // the last password may still be right
}

// login is a way into the database.
type login struct {
	dsn  string
	file *string // the file that dsn was read from; empty: none
}

// pool opens connections.
func (l login) pool(ctx context.Context, name string, connections int32, log *zap.Logger) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(l.dsn)
	if err != nil {
		return nil, postgres.ErrNotADSN
	}
	if *l.file != "" {
		cfg.BeforeConnect = (&passwordFile{path: *l.file, log: log, last: cfg.ConnConfig.Password}).beforeConnect
	}
	return postgres.ConnectBeside(ctx, cfg, name, connections)
}
