package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The age of one server is measured, so that the connections may not be to several; TLS with a fallback of
// the same server is one.
func TestReadsAreOfOneStandby_I37(t *testing.T) {
	t.Parallel()
	for dsn, refused := range map[string]bool{
		"postgres://u@127.0.0.1:5432/db":                                                    false,
		"postgres://u@127.0.0.1:5432/db?sslmode=prefer":                                     false,
		"postgres://u@127.0.0.1:5432,127.0.0.2:5432/db?target_session_attrs=prefer-standby": true,
		"postgres://u@127.0.0.1:5432,127.0.0.1:5433/db":                                     true,
	} {
		c := readConfig{login: login{dsn: dsn}, maxLag: time.Second}
		if err := c.check(false); refused {
			require.ErrorContains(t, err, "names several servers", dsn)
		} else {
			require.NoError(t, err, dsn)
		}
	}
	require.ErrorContains(t, (&readConfig{maxLag: time.Millisecond}).check(false), "want at least 100ms")
}
