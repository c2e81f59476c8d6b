package launcher

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// The files of a server's folder.
const (
	dataName     = "data"
	passwordName = "password"
	logName      = "postgres.log"
)

const (
	// fastLimit is how long a fast shutdown may take, quitLimit the immediate one
	// that follows.
	fastLimit = 10 * time.Second
	quitLimit = 5 * time.Second
	// tailSize is how much of the log an error shows, in bytes.
	tailSize = 2000
)

var errPortTaken = errors.New("the port is taken")

// serverFolder has a server's data, its log and its password. Only the user that the server runs as can enter
// it.
type serverFolder struct {
	path      string
	temporary bool
	password  string
}

// openFolder makes dir ready for a server that runs as the account (nil: as
// ourselves), or a temporary folder when dir is empty.
func openFolder(dir string, inMemory bool, owner *serverAccount) (*serverFolder, error) {
	if dir == "" {
		return openTemporary(temporaryParent(inMemory, owner), owner)
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the folder %s: %w", dir, err)
	}
	f := &serverFolder{path: path}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("create the folder: %w", err)
	}
	if err := checkReachable(path, owner); err != nil {
		return nil, err
	}
	return f, f.open(owner)
}

// temporaryParent is where the temporary folder goes.
func temporaryParent(inMemory bool, owner *serverAccount) string {
	if memory := MemoryFolder(); inMemory && memory != "" {
		return memory
	}
	parent := os.TempDir()
	if checkReachable(filepath.Join(parent, "x"), owner) != nil {
		return "/tmp" // TMPDIR may be root's alone
	}
	return parent
}

func openTemporary(parent string, owner *serverAccount) (*serverFolder, error) {
	path, err := os.MkdirTemp(parent, "db-controller-postgres-")
	if err != nil {
		return nil, fmt.Errorf("create a temporary folder: %w", err)
	}
	f := &serverFolder{path: path, temporary: true}
	if err := errors.Join(checkReachable(path, owner), f.open(owner)); err != nil {
		return nil, errors.Join(err, f.removeTemporary())
	}
	return f, nil
}

// open takes the password of an earlier server, or makes the empty folder ours.
// The password file is thus the mark of our folders: no other one is touched.
func (f *serverFolder) open(owner *serverAccount) error {
	password, err := os.ReadFile(f.join(passwordName))
	if err == nil {
		f.password = strings.TrimSpace(string(password))
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the password: %w", err)
	}
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("look into the folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("the folder %s holds other files: choose an empty one or one of an earlier server", f.path)
	}
	f.password = rand.Text()
	if err := os.WriteFile(f.join(passwordName), []byte(f.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password: %w", err)
	}
	return f.handOver(owner)
}

// handOver makes the new folder and the password the owner's alone.
func (f *serverFolder) handOver(owner *serverAccount) error {
	if err := os.Chmod(f.path, 0o700); err != nil {
		return fmt.Errorf("close the folder to others: %w", err)
	}
	if owner == nil {
		return nil
	}
	for _, path := range []string{f.path, f.join(passwordName)} {
		if err := os.Chown(path, int(owner.uid), int(owner.gid)); err != nil {
			return fmt.Errorf("hand %s over to user %s: %w", path, owner.name, err)
		}
	}
	return nil
}

func (f *serverFolder) join(name string) string { return filepath.Join(f.path, name) }

func (f *serverFolder) removeTemporary() error {
	if !f.temporary {
		return nil
	}
	if err := os.RemoveAll(f.path); err != nil {
		return fmt.Errorf("remove the temporary folder: %w", err)
	}
	return nil
}

// checkReachable returns an error that names the parent of path which the account cannot pass through.
func checkReachable(path string, who *serverAccount) error {
	if who == nil {
		return nil
	}
	for parent := filepath.Dir(path); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("look at %s: %w", parent, err)
		}
		if !mayEnter(info, who) {
			return fmt.Errorf(
				"user %s, which the server runs as because it refuses root, cannot enter %s: choose another folder or run chmod o+x %s",
				who.name, parent, parent)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

func mayEnter(info fs.FileInfo, who *serverAccount) bool {
	needed := fs.FileMode(0o001)
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		switch {
		case stat.Uid == who.uid:
			needed = 0o100
		case stat.Gid == who.gid:
			needed = 0o010
		}
	}
	return info.Mode()&needed != 0
}

// inOwnSession starts a process as an account (nil: ourselves), in a session that neither Ctrl-C nor a closed
// terminal reaches: these reach us alone, and we stop the server in order.
func inOwnSession(who *serverAccount) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if who != nil {
		attributes.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid}
	}
	return attributes
}

// serverProcess is a running server process.
type serverProcess struct {
	command *exec.Cmd
	janitor *janitor
	logger  *zap.Logger
	log     string // the log's path
	logFrom int64  // where this run's part of the log begins

	stopping chan struct{} // closed when the end is wanted
	done     chan struct{} // closed when the process has ended and err is set
	err      error
}

// startProcess starts the command as a server of the folder.
func startProcess(command *exec.Cmd, f *serverFolder, logger *zap.Logger) (*serverProcess, error) {
	c := &serverProcess{
		command: command, logger: logger, log: f.join(logName),
		stopping: make(chan struct{}), done: make(chan struct{}),
	}
	log, err := os.OpenFile(c.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if c.logFrom, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, fmt.Errorf("find the end of the log: %w", err)
	}
	command.Stdout, command.Stderr = log, log

	// Every process of the server inherits the write end: reading the other end ends with the last of these
	// processes.
	alive, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = alive.Close() }()
	command.ExtraFiles = []*os.File{hold}
	err = c.launch()
	_ = hold.Close()
	if err != nil {
		return nil, err
	}
	if c.janitor, err = startJanitor(c.pid(), f, alive); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// launch starts the process from a thread that lives as long as the process.
// That is because Linux sends the parent death signal (see boundToUs) when the
// thread ends that started the process, and Go ends threads as it likes.
func (c *serverProcess) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.command.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = c.command.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the server process: %w", err)
	}
	return nil
}

// watch reports an unexpected end of a server that was ready; before that the start fails with the reason.
func (c *serverProcess) watch() {
	<-c.done
	c.janitor.serverEnded()
	select {
	case <-c.stopping:
	default:
		c.logger.Error("postgresql ended unexpectedly", zap.Error(c.err), zap.String("log", c.logTail()))
	}
}

func (c *serverProcess) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *serverProcess) pid() int { return c.command.Process.Pid }

// stop ends the server: fast, then immediately, then by force.
func (c *serverProcess) stop() error {
	close(c.stopping)
	defer c.janitor.dismiss()
	for _, step := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGINT, fastLimit}, {syscall.SIGQUIT, quitLimit}, {syscall.SIGKILL, quitLimit}} {
		// An error means that the process has ended, which done shows as well.
		_ = c.command.Process.Signal(step.signal)
		select {
		case <-c.done:
			return nil
		case <-time.After(step.limit):
		}
	}
	return fmt.Errorf("process %d does not end", c.pid())
}

// explainExit is the error for a server that ended instead of getting ready.
func (c *serverProcess) explainExit() error {
	tail := c.logTail()
	// PostgreSQL, and in a container the engine.
	if strings.Contains(tail, "ddress already in use") || strings.Contains(tail, "port is already allocated") {
		return fmt.Errorf("%w: %s", errPortTaken, tail)
	}
	return fmt.Errorf("the server ended (%w), it logged: %s", c.err, tail)
}

// logTail returns the last lines that this run logged.
func (c *serverProcess) logTail() string {
	log, err := os.Open(c.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = log.Close() }()
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	tail, err := io.ReadAll(io.NewSectionReader(log, max(c.logFrom, size-tailSize), tailSize))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(tail))
}

// janitor is a shell that outlives us when we end without Stop, even by force.
// It then ends the server, which on Linux happens anyway but not on other
// systems, and removes the temporary folder.
type janitor struct {
	command *exec.Cmd
	line    *os.File // ends when we do
}

// The script reads our line from standard input and the server's from file 3. A first line means that the
// server has ended while we go on, so that its process number may belong to another process.
const janitorScript = `
read -r ended || kill -INT "$1" 2>/dev/null
cat >/dev/null
cat <&3 >/dev/null
[ -z "$2" ] || rm -rf -- "$2"
`

func startJanitor(pid int, f *serverFolder, serverAlive *os.File) (*janitor, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = theirs.Close() }()
	remove := ""
	if f.temporary {
		remove = f.path
	}
	command := exec.Command("/bin/sh", "-c", janitorScript, "janitor", strconv.Itoa(pid), remove)
	command.Dir = "/"
	command.Stdin = theirs
	command.ExtraFiles = []*os.File{serverAlive}
	command.SysProcAttr = inOwnSession(nil)
	if err := command.Start(); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("start the shell that cleans up: %w", err)
	}
	return &janitor{command: command, line: ours}, nil
}

// serverEnded notifies the janitor that the server has ended.
func (j *janitor) serverEnded() {
	if j != nil {
		_, _ = j.line.WriteString("ended\n") // fails only when it was dismissed
	}
}

// dismiss ends the janitor, because we clean up ourselves.
func (j *janitor) dismiss() {
	if j == nil {
		return
	}
	_ = j.command.Process.Kill()
	_ = j.command.Wait()
	_ = j.line.Close()
}
