package feed

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// away are SQLSTATEs, and classes of them, of a server that answers, and cannot do what it was asked for now.
var away = []string{
	"08",    // connections
	"53",    // connections, memory, disk
	"57P",   // it shuts down, starts up, or ended the session
	"58",    // its files and its system
	"25006", // read-only, as a standby is
	"55000", // it is in recovery, or the database takes no connections
}

// Away reports whether an error says that the database cannot be reached, or takes no writes, for now: everything can be
// tried again.
func Away(err error) bool {
	var (
		pg      *pgconn.PgError
		connect *pgconn.ConnectError
		network *net.OpError
	)
	switch {
	case errors.As(err, &connect): // whatever the server says to that
		return true
	case errors.As(err, &pg):
		return hasPrefix(pg.Code, away)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return true
	}
	return pgconn.SafeToRetry(err) // nothing was sent
}

// busy are SQLSTATEs of a transaction that was given up because of others, or because it took too long.
var busy = []string{
	"40",    // serialisation, deadlock
	"55P03", // a lock was waited for too long
	"55006", // an object is in use
	"57014", // a statement was cancelled, as one that takes too long is
	"25P03", // an idle transaction was ended
	"25P04", // a transaction took too long
}

// Busy reports whether PostgreSQL gave a transaction up which did nothing wrong: it can be tried again.
func Busy(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && hasPrefix(pg.Code, busy)
}

func hasPrefix(code string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(code, prefix) {
			return true
		}
	}
	return false
}
