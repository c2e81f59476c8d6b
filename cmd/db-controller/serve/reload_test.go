package serve

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// The parts of a process start with the settings that were read last, also when the settings were read before
// the parts existed.
func TestSettingsThatAreReadEarlyAreApplied(t *testing.T) {
	t.Parallel()
	var r reloads[int]
	var applied []int
	apply := func(n int) { applied = append(applied, n) }
	r.pass(1)
	r.pass(2)
	r.to(apply)
	r.pass(3)
	require.Equal(t, []int{2, 3}, applied)
}

func TestThePaceOfAuditsChanges(t *testing.T) {
	t.Parallel()
	a := newAuditing(auditConfig{interval: time.Hour, rate: 1000})
	a.reload(auditConfig{interval: time.Minute, rate: 5})
	a.reload(auditConfig{interval: time.Second, rate: 6})
	pause, rate := a.pace()
	require.Equal(t, time.Second, pause)
	require.Equal(t, 6, rate)
	require.Len(t, a.changed, 1)
}

// New connections have the password that the file has then. A file that is gone, damaged, or about another
// database or user changes nothing.
func TestNewConnectionsHaveTheNewPassword(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zap.InfoLevel)
	p := &passwordFile{path: filepath.Join(t.TempDir(), "dsn"), log: zap.New(core), last: "first"}
	for _, c := range []struct{ content, want string }{
		{"", "first"}, // no file yet
		{"postgres://u:first@localhost:5432/iam\n", "first"},
		{"postgres://u:second@localhost:5432/iam\n", "second"},
		{"host=localhost port=5432 user=u dbname=iam password=third", "third"},
		{"postgres://u:x@localhost:5432/other", "third"},
		{"postgres://other:x@localhost:5432/iam", "third"},
		{"postgres://u:x@elsewhere:5432/iam", "third"},
		{"postgres://u:x@localhost:5433/iam", "third"},
		{"nonsense", "third"},
	} {
		if c.content != "" {
			require.NoError(t, os.WriteFile(p.path, []byte(c.content), 0o600))
		}
		cfg, err := pgx.ParseConfig("postgres://u:first@localhost:5432/iam")
		require.NoError(t, err)
		require.NoError(t, p.beforeConnect(t.Context(), cfg))
		require.Equal(t, c.want, cfg.Password, c.content)
	}
	require.Equal(t, 2, seen.Len(), "a line for each change")
}
