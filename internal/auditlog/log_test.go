package auditlog

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema/peer"
)

func open(t *testing.T, path string, required bool) *Log {
	t.Helper()
	sink, err := OpenSink(path)
	require.NoError(t, err)
	l, err := Open(Config{
		Source: "iam.example.com/eu", Sink: sink, Classes: []Class{Deletes}, Required: required,
		Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	return l
}

func verified(t *testing.T, paths ...string) (Chain, error) {
	t.Helper()
	var c Chain
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		if err := c.Verify(bytes.NewReader(raw)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// The lines of many callers, of a second process and of a file that was rotated are one chain.
func TestALogIsOneChain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, true)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			for range 10 {
				require.NoError(t, l.Record(t.Context(), Event{
					Class: Deletes, Outcome: Allowed, Identity: "user/ann",
					Names: []string{"//a.example.com/eu/things/x"},
				}))
				require.NoError(t, l.Record(t.Context(), Event{Class: Reads, Outcome: Allowed}), "not recorded")
			}
		})
	}
	callers.Wait()
	_, err := openFile(path)
	require.ErrorContains(t, err, "another process writes this audit log")
	require.NoError(t, l.Close())
	c, err := verified(t, path)
	require.NoError(t, err)
	require.EqualValues(t, 201, c.Seq, "with the first event of the process")

	half, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = half.WriteString(`{"seq":202,"ti`) // the machine stopped
	require.NoError(t, err)
	require.NoError(t, half.Close())
	l = open(t, path, true)
	require.NoError(t, os.Rename(path, path+".1"))
	for range 3 {
		require.NoError(t, l.Record(t.Context(), Event{Class: Deletes, Outcome: Denied}))
	}
	require.NoError(t, os.Truncate(path, 0), "as copytruncate does")
	require.NoError(t, l.Record(t.Context(), Event{Class: Deletes, Outcome: Denied}))
	require.NoError(t, l.Close())
	c, err = verified(t, path+".1")
	require.NoError(t, err)
	require.EqualValues(t, 202, c.Seq)
	_, err = verified(t, path+".1", path)
	require.ErrorIs(t, err, errGap, "three lines are gone")
	_, err = verified(t, path)
	require.NoError(t, err, "a part of a log")
}

// Each change of a file is found but a cut at its end.
func TestAChangeOfALogIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, true)
	for _, who := range []string{"user/ann", "user/bob", "user/eve", "user/dan"} {
		require.NoError(t, l.Record(t.Context(), Event{
			Class: Deletes, Outcome: Allowed, Identity: who,
			Reason: `a "hash":"x" in a text`,
		}))
	}
	require.NoError(t, l.Close())
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.SplitAfter(strings.TrimSuffix(string(raw), "\n"), "\n")
	lines[len(lines)-1] += "\n"
	require.Len(t, lines, 5)
	forged, _, err := (&entry{Seq: 3, Source: "iam.example.com/eu", Event: Event{
		Class: Deletes, Outcome: Allowed,
		Identity: "user/mia",
	}}).line()
	require.NoError(t, err)
	join := func(parts ...[]string) (out string) {
		for _, p := range parts {
			out += strings.Join(p, "")
		}
		return out
	}
	for what, c := range map[string]struct {
		text string
		want error
	}{
		"another name":        {strings.Replace(string(raw), "user/eve", "user/eva", 1), errChanged},
		"a line is gone":      {join(lines[:2], lines[3:]), errGap},
		"the first is gone":   {join(lines[1:]), nil}, // the file of before has it
		"two are exchanged":   {join(lines[:2], lines[3:4], lines[2:3], lines[4:]), errGap},
		"one is twice":        {join(lines[:2], lines[1:]), errGap},
		"a forged one":        {join(lines[:2], []string{string(forged)}, lines[3:]), errGap},
		"a hash is gone":      {strings.Replace(string(raw), hashField, `,"hush":"`, 1), errForm},
		"text behind a line":  {strings.Replace(string(raw), "\n", " \n", 1), errForm},
		"another log follows": {string(raw) + lines[0], nil}, // its beginning is reported
		"the end is cut":      {join(lines[:3]), nil},
	} {
		var chain Chain
		require.ErrorIs(t, chain.Verify(strings.NewReader(c.text)), c.want, what)
	}
}

// broken is a sink that fails while it is told to.
type broken struct {
	mu    sync.Mutex
	err   error
	lines [][]byte
}

func (b *broken) Last() (Chain, error) { return Chain{}, nil }
func (b *broken) Close() error         { return nil }

func (b *broken) Write(lines [][]byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	b.lines = append(b.lines, lines...)
	return len(lines), nil
}

func (b *broken) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// While the sink fails, a required event is an error, and another one waits for it; nothing that was numbered
// is left out afterwards.
func TestASinkThatFails(t *testing.T) {
	t.Parallel()
	for _, required := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			sink := &broken{}
			l, err := Open(Config{Source: "s", Sink: sink, Classes: Classes, Required: required, Logger: zap.NewNop()})
			require.NoError(t, err)
			sink.fail(errors.New("no space"))
			for range 3 {
				err := l.Record(t.Context(), Event{Class: Deletes, Outcome: Allowed})
				require.Equal(t, required, errors.Is(err, peer.ErrAuditLog))
			}
			if !required {
				for range maxPending + 10 {
					require.NoError(t, l.Record(t.Context(), Event{Class: Deletes, Outcome: Allowed}))
				}
			}
			synctest.Wait()
			require.True(t, l.Failing())
			sink.fail(nil)
			if required {
				require.NoError(t, l.Record(t.Context(), Event{Class: Writes, Outcome: Allowed}))
			} else {
				synctest.Wait()
				require.NoError(t, l.Record(t.Context(), Event{Class: Writes, Outcome: Allowed}))
			}
			time.Sleep(10 * time.Second) // its pauses are shorter
			synctest.Wait()
			require.False(t, l.Failing())
			require.NoError(t, l.Close())
			var c Chain
			require.NoError(t, c.Verify(bytes.NewReader(bytes.Join(sink.lines, nil))))
			require.Positive(t, c.Lines)
		})
	}
}

func TestANilLogRecordsNothing(t *testing.T) {
	t.Parallel()
	var l *Log
	require.False(t, l.Has(Deletes))
	require.False(t, l.Failing())
	require.NoError(t, l.Record(context.Background(), Event{Class: Deletes}))
	require.NoError(t, l.Close())
}

func TestALogGoesToSyslog(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	l := open(t, "syslog:udp://"+server.LocalAddr().String(), true)
	packet := make([]byte, 4096)
	n, _, err := server.ReadFrom(packet)
	require.NoError(t, err)
	require.Contains(t, string(packet[:n]), `"outcome":"began"`)
	require.NoError(t, l.Close())
	for _, wrong := range []string{"syslog:", "syslog:udp://", "syslog:http://h:1"} {
		_, err := OpenSink(wrong)
		require.ErrorContains(t, err, "want syslog", wrong)
	}
}

// A disk that was full in the middle of a write, and a rename after that, leave each line once.
func TestARotationAfterAPartOfAWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, open(t, path, true).Close())
	sink, err := openFile(path)
	require.NoError(t, err)
	last, err := sink.Last()
	require.NoError(t, err)
	first, hash, err := (&entry{Seq: last.Seq + 1, Event: Event{Outcome: Allowed}, Previous: last.Hash}).line()
	require.NoError(t, err)
	second, _, err := (&entry{Seq: last.Seq + 2, Event: Event{Outcome: Allowed}, Previous: hash}).line()
	require.NoError(t, err)
	_, err = sink.open.WriteAt(append(bytes.Clone(first), second[:20]...), sink.size) // as a write that fails leaves it
	require.NoError(t, err)
	require.NoError(t, os.Rename(path, path+".1"))
	n, err := sink.Write([][]byte{first, second})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, sink.Close())
	c, err := verified(t, path+".1", path)
	require.NoError(t, err)
	require.EqualValues(t, 3, c.Lines)
}

// A file that was renamed while no process ran begins a log, which is reported.
func TestARotationBeforeAStartIsReported(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, open(t, path, true).Close())
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, open(t, path, true).Close())
	c, err := verified(t, path+".1", path)
	require.NoError(t, err)
	require.Equal(t, 1, c.Begun)
}

// No event makes a line that a sink cannot take, or that keeps a file from being opened again; the parts that
// are left out are counted.
func TestALineHasABound(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	path := filepath.Join(t.TempDir(), "audit.log")
	for _, to := range []string{path, "syslog:udp://" + server.LocalAddr().String()} {
		l := open(t, to, true)
		l.cfg.Classes = Classes
		require.NoError(t,
			l.Record(t.Context(), Event{
				Class: Registry, Outcome: Changed, Reason: strings.Repeat("r", 1<<20),
				Changes: []string{"a", strings.Repeat("x", 3<<20), "b"}, Names: []string{strings.Repeat("n", 1<<20)},
			}))
		require.NoError(t, l.Record(t.Context(), Event{Class: Deletes, Outcome: Allowed}))
		require.NoError(t, l.Close())
	}
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"count":4`)
	require.Less(t, len(raw), 8<<10)
	require.NoError(t, open(t, path, true).Close())
	_, err = verified(t, path)
	require.NoError(t, err)
}

// parts is a sink that takes one line at a time and then fails once.
type parts struct {
	broken
	got int
}

func (p *parts) Write(lines [][]byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, lines[0])
	if p.got++; p.got%2 == 0 {
		return 1, errors.New("once")
	}
	return 1, nil
}

// A sink does not get a line twice that it has taken.
func TestALineIsSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &parts{}
		l, err := Open(Config{Source: "s", Sink: sink, Classes: Classes, Logger: zap.NewNop()})
		require.NoError(t, err)
		for range 9 {
			require.NoError(t, l.Record(t.Context(), Event{Class: Deletes, Outcome: Allowed}))
		}
		time.Sleep(time.Minute)
		require.NoError(t, l.Close())
		var c Chain
		require.NoError(t, c.Verify(bytes.NewReader(bytes.Join(sink.lines, nil))))
		require.EqualValues(t, 10, c.Lines)
	})
}

// stuck is a sink that does not answer.
type stuck struct {
	broken
	until chan struct{}
}

func (s *stuck) Write([][]byte) (int, error) { <-s.until; return 0, errors.New("closed") }

func TestASinkThatDoesNotAnswerKeepsNoProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &stuck{until: make(chan struct{})}
		l, err := Open(Config{Source: "s", Sink: sink, Classes: Classes, Logger: zap.NewNop()})
		require.NoError(t, err)
		synctest.Wait()
		require.ErrorContains(t, l.Close(), "did not take its last lines in time")
		close(sink.until)
		<-l.done
	})
}
