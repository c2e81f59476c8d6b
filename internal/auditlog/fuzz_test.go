package auditlog

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A log that is verified at once and a log that is verified in two parts have the same result. A log that is
// whole has one number for each line.
func FuzzLogs(f *testing.F) {
	path := filepath.Join(f.TempDir(), "audit.log")
	for range 2 {
		sink, err := OpenSink(path)
		require.NoError(f, err)
		l, err := Open(Config{Source: "s", Sink: sink, Classes: Classes, Required: true, Logger: zap.NewNop()})
		require.NoError(f, err)
		require.NoError(f, l.Record(f.Context(), Event{Class: Deletes, Outcome: Allowed, Identity: "user/ann"}))
		require.NoError(f, l.Close())
	}
	good, err := os.ReadFile(path) //nolint:gosec // written above
	require.NoError(f, err)
	f.Add(good)
	f.Add(append(bytes.Clone(good), good...))
	f.Add(good[:len(good)-1])
	f.Add(good[bytes.IndexByte(good, '\n')+1:])
	f.Add([]byte(`{"seq":1,"hash":""}`))
	f.Fuzz(func(t *testing.T, log []byte) {
		var whole, parts Chain
		err := whole.Verify(bytes.NewReader(log))
		cut := bytes.IndexByte(log, '\n') + 1
		err2 := parts.Verify(bytes.NewReader(log[:cut]))
		if err2 == nil {
			err2 = parts.Verify(bytes.NewReader(log[cut:]))
		}
		if (err == nil) != (err2 == nil) || whole != parts {
			t.Fatalf("at once: %+v, %v; in parts: %+v, %v", whole, err, parts, err2)
		}
		if err == nil && whole.Begun == 0 && whole.Lines > 0 && whole.Seq-whole.First+1 != whole.Lines {
			t.Fatalf("%d lines from %d to %d", whole.Lines, whole.First, whole.Seq)
		}
	})
}
