package postgres

import (
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// unavailable are the SQLSTATEs, and prefixes of SQLSTATEs, of a server that answers but cannot work at
// present.
var unavailable = []string{
	"08",     // connection exceptions
	"53",     // insufficient resources: connections, memory, disk
	"57P",    // shuts down, starts up, or has ended the session
	"58",     // system errors, such as I/O errors
	readOnly, // as a standby is
	"55000",  // in recovery, or the database accepts no connections
}

// Unavailable reports whether an error says that the database cannot be reached or takes no writes at
// present. The operation can be repeated.
func Unavailable(err error) bool {
	var (
		pg      *pgconn.PgError
		connect *pgconn.ConnectError
		network *net.OpError
	)
	switch {
	case errors.As(err, &connect): // for any reason
		return true
	case errors.As(err, &pg):
		return hasPrefix(pg.Code, unavailable)
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed),
		errors.Is(err, pgconn.ErrConnClosed): // by an end of the session in the middle of a pipeline
		return true
	}
	return pgconn.SafeToRetry(err) // nothing was sent
}

// diskFull and readOnly are the SQLSTATEs of writes that fail while reads succeed.
const (
	diskFull = "53100"
	readOnly = "25006"
)

// ErrDiskFull is the reason why a database takes no writes that need space.
var ErrDiskFull = errors.New("the disk of the database is full: nothing is written until it has space")

// ErrReadOnly is the reason why a database takes no writes.
var ErrReadOnly = errors.New("the database is read-only")

// refusesWrites returns why the database refuses writes, as an error says; nil when the error does not say
// so.
func refusesWrites(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return nil
	case pg.Code == diskFull:
		return ErrDiskFull
	case pg.Code == readOnly:
		return ErrReadOnly
	}
	return nil
}

// DiskFull reports whether a statement failed because its table or index could not grow. It changed nothing.
func DiskFull(err error) bool { return errors.Is(refusesWrites(err), ErrDiskFull) }

// Objection returns the constraint, if it is one, and the message with which a constraint of a table outside
// of a schema, or a trigger, refused a statement or a commit.
func Objection(err error, schema string) (constraint, text string, ok bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.SchemaName == schema {
		return "", "", false
	}
	violated, raised := strings.HasPrefix(pg.Code, "23") && pg.SchemaName != "", pg.Code == "P0001" ||
		pg.Code == "23503"
	return pg.ConstraintName, pg.Message, violated || raised
}

// InForeignCode returns the message of an error in code that a function of a schema ran: of a trigger, or of a
// function in a constraint, which found no table or function of a name, or has no right to it.
func InForeignCode(err error, schema string) (text string, ok bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || !slices.Contains([]string{"42P01", "42883", "3F000", "42501"}, pg.Code) {
		return "", false
	}
	inside, _, called := strings.Cut(pg.Where, "function "+schema+".")
	return pg.Message, called && strings.Contains(inside, "function ")
}

// Denied reports whether the user lacks a privilege.
func Denied(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42501"
}

// SettingError is the error of a connection that cannot be used as the server, the role, or a pooler in front
// of them is set. Waiting does not change that.
type SettingError struct {
	Remedy string
	Err    error
}

func (e *SettingError) Error() string {
	if e.Err == nil {
		return e.Remedy
	}
	return e.Remedy + " (" + e.Err.Error() + ")"
}
func (e *SettingError) Unwrap() error { return e.Err }

// ofPooler names the remedy of an error that only a pooler gives, and returns other errors as they are. The
// codes are PgBouncer's: 08P01 for a startup parameter that it does not know, and in transaction mode 26000
// and 42P05 for prepared statements of another session.
func ofPooler(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
	case pg.Code == "08P01" && strings.Contains(pg.Message, "startup parameter"):
		return &SettingError{"the pooler in front of PostgreSQL refuses the settings of sessions; put into pgbouncer.ini: ignore_startup_parameters = " +
			strings.Join(slices.Sorted(maps.Keys(Settings)), ", ") +
			"; the next start prints what to set at the server instead", err}
	case pg.Code == "26000" || pg.Code == "42P05":
		return &SettingError{
			"prepared statements do not outlive a transaction behind a pooler in transaction mode; add default_query_exec_mode=cache_describe to the DSN", err,
		}
	}
	return err
}

// Refused reports whether the server rejects the user, or has no such database, or a pooler the session.
// Waiting does not change that.
func Refused(err error) bool {
	if errors.As(err, new(*SettingError)) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000")
}

// lockTimeout is the SQLSTATE of a statement that waited for a lock for longer than lock_timeout.
const lockTimeout = "55P03"

// LockTimedOut reports whether another transaction held a lock for longer than lock_timeout.
func LockTimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == lockTimeout
}

// busy are the SQLSTATEs of a transaction that was ended because of concurrent transactions or a timeout.
var busy = []string{
	"40", // serialization failure, deadlock
	lockTimeout,
	"55006", // an object is in use
	"57014", // a statement was cancelled, by statement_timeout for one
	"25P03", // idle_in_transaction_session_timeout
	"25P04", // transaction_timeout
}

// Busy reports whether PostgreSQL ended a transaction because of concurrent ones or a timeout. The
// transaction can be repeated.
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
