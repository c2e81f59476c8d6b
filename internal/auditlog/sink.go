package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// Sink takes the lines of a log, in order.
type Sink interface {
	// Last returns the end of the lines that it has; the zero value for a sink that keeps none.
	Last() (Chain, error)
	// Write returns how many of the lines it has taken, all of them without an error. It is given the others
	// again.
	Write(lines [][]byte) (taken int, err error)
	Close() error
}

// OpenSink opens a sink by its name: a file, syslog, syslog:udp://HOST:PORT or syslog:tcp://HOST:PORT.
func OpenSink(name string) (Sink, error) {
	address, ok := strings.CutPrefix(name, "syslog")
	switch {
	case !ok || address != "" && !strings.HasPrefix(address, ":"):
		return openFile(name)
	case address == "":
		return newSyslog("", "")
	}
	at, err := url.Parse(address[1:])
	if err != nil || at.Host == "" || at.Scheme != "udp" && at.Scheme != "tcp" {
		return nil, fmt.Errorf("%q: want syslog, syslog:udp://HOST:PORT or syslog:tcp://HOST:PORT", name)
	}
	return newSyslog(at.Scheme, at.Host)
}

// file appends to a file, which one process has. A file that is renamed or removed, as logrotate does, is
// begun again: its first line follows the last one of the file before.
type file struct {
	path string
	open *os.File
	last Chain
	size int64 // of the lines that were taken
}

func openFile(path string) (*file, error) {
	f := &file{path: path}
	return f, f.begin()
}

// begin opens the file and reads where its lines end. A line that was begun and not ended, when the machine
// stopped, was never taken: it is cut off.
func (f *file) begin() error {
	open, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	if err := syscall.Flock(int(open.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { //nolint:gosec // a descriptor is small
		_ = open.Close()
		return fmt.Errorf("%s: another process writes this audit log: name a file for each process: %w", f.path, err)
	}
	last, size, err := lastLine(open)
	if err == nil {
		err = open.Truncate(size)
	}
	if err != nil {
		_ = open.Close()
		return fmt.Errorf("%s: %w", f.path, err)
	}
	if last.Hash != "" {
		f.last = last
	}
	f.open, f.size = open, size
	return nil
}

// lastLine returns the last whole line of a file, and the size of all whole lines.
func lastLine(f *os.File) (last Chain, size int64, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return last, 0, err
	}
	tail := make([]byte, min(end, 2*maxLine))
	if _, err := f.ReadAt(tail, end-int64(len(tail))); err != nil {
		return last, 0, err
	}
	whole := tail[:bytes.LastIndexByte(tail, '\n')+1]
	size = end - int64(len(tail)-len(whole))
	if len(whole) == 0 {
		if size > 0 {
			return last, 0, errForm
		}
		return last, 0, nil
	}
	line := whole[bytes.LastIndexByte(whole[:len(whole)-1], '\n')+1 : len(whole)-1]
	if err := last.next(line); err != nil && !errors.Is(err, errGap) {
		return last, 0, fmt.Errorf("its last line: %w", err)
	}
	return last, size, nil
}

func (f *file) Last() (Chain, error) { return f.last, nil }

func (f *file) Write(lines [][]byte) (int, error) {
	if f.open == nil || f.moved() {
		f.close()
		if err := f.begin(); err != nil {
			return 0, err
		}
	}
	text := bytes.Join(lines, nil)
	_, err := f.open.WriteAt(text, f.size) // over lines that were written in part before
	if err == nil {
		err = f.open.Sync()
	}
	if err != nil {
		return 0, err
	}
	f.size += int64(len(text))
	return len(lines), nil
}

// moved reports whether the path does not name the open file now, or the file was emptied.
func (f *file) moved() bool {
	at, err := os.Stat(f.path)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	is, err := f.open.Stat()
	return err != nil || !os.SameFile(at, is) || is.Size() < f.size
}

func (f *file) close() {
	if f.open != nil {
		if is, err := f.open.Stat(); err == nil && is.Size() > f.size {
			_ = f.open.Truncate(f.size) // lines written in part are written again, maybe elsewhere
		}
		_ = f.open.Close()
		f.open = nil
	}
}

func (f *file) Close() error {
	f.close()
	return nil
}

// toSyslog sends lines to a syslog server, which keeps them.
type toSyslog struct{ w *syslog.Writer }

func newSyslog(network, address string) (*toSyslog, error) {
	w, err := syslog.Dial(network, address, syslog.LOG_AUTHPRIV|syslog.LOG_INFO, "db-controller")
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	return &toSyslog{w}, nil
}

func (s *toSyslog) Last() (Chain, error) { return Chain{}, nil }

func (s *toSyslog) Write(lines [][]byte) (int, error) {
	for i, line := range lines {
		if _, err := s.w.Write(line); err != nil {
			return i, err
		}
	}
	return len(lines), nil
}

func (s *toSyslog) Close() error { return s.w.Close() }
