package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// A database that cannot be reached, or takes nothing for now, is told from a statement that is wrong.
func TestADatabaseThatIsAwayIsToldFromAFault(t *testing.T) {
	t.Parallel()
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/x?connect_timeout=1")
	require.Error(t, refused)
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
		{refused, true},
		{io.ErrUnexpectedEOF, true},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, true},
		{&pgconn.PgError{Code: "57014", Message: "canceling statement due to statement timeout"}, false},
		{&pgconn.PgError{Code: "42601", Message: "syntax error"}, false},
		{&pgconn.PgError{Code: "23505"}, false},
		{context.Canceled, false},
		{errors.New("something else"), false},
	} {
		require.Equal(t, c.away, shadow.DatabaseAway(fmt.Errorf("read: %w", c.err)), "%v", c.err)
	}
}
