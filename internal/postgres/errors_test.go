package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
)

// Errors of an unavailable database are distinguished from errors of statements.
func TestErrorsOfAnUnavailableDatabaseAreRecognised(t *testing.T) {
	t.Parallel()
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/x?connect_timeout=1")
	require.Error(t, refused)
	_, missing := os.Open(filepath.Join(t.TempDir(), "missing"))
	for _, c := range []struct {
		err  error
		away bool
	}{
		{&pgconn.PgError{Code: "57P01", Message: "terminating connection due to administrator command"}, true},
		{&pgconn.PgError{Code: "57P03", Message: "the database system is starting up"}, true},
		{&pgconn.PgError{Code: "53100", Message: "could not extend file: No space left on device"}, true},
		{&pgconn.PgError{Code: "53300", Message: "too many connections"}, true},
		{&pgconn.PgError{Code: "25006", Message: "cannot execute INSERT in a read-only transaction"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "55000", Message: "recovery is in progress"}, true},
		{&pgconn.PgError{Code: "58030", Message: "could not read block 1: Input/output error"}, true},
		{&pgconn.PgError{Code: "58P01", Message: "could not open file"}, true},
		{refused, true},
		{io.ErrUnexpectedEOF, true},
		{fmt.Errorf("failed to deallocate cached statement(s): %w", pgconn.ErrConnClosed), true},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, true},
		{&pgconn.PgError{Code: "57014", Message: "canceling statement due to statement timeout"}, false},
		{&pgconn.PgError{Code: "42601", Message: "syntax error"}, false},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"}, false},
		{&pgconn.PgError{Code: "40001"}, false},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{missing, false},
		{errors.New("something else"), false},
	} {
		require.Equal(t, c.away, postgres.Unavailable(fmt.Errorf("read: %w", c.err)), "%v", c.err)
	}
}
