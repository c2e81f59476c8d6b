package playground

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a child process that can be killed and started again, with its output in a file.
type Process struct {
	Name string
	log  string
	url  string // of /readyz

	mu   sync.Mutex
	args []string      // guarded by mu
	env  []string      // guarded by mu; in addition to the environment of this process
	cmd  *exec.Cmd     // guarded by mu; nil when it does not run
	done chan struct{} // guarded by mu; closed when cmd has ended
	tell func(string)  // why it is not ready; or nil
}

// Log returns the path of its output.
func (p *Process) Log() string { return p.log }

// NewProcess describes a process of this program. url is its readiness endpoint.
func NewProcess(name, binary string, args []string, log, url string) *Process {
	return &Process{Name: name, args: append([]string{binary}, args...), log: log, url: url}
}

// Add adds an argument for the next start.
func (p *Process) Add(arg string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.args = append(p.args, arg)
}

// Run sets the program for the next start.
func (p *Process) Run(binary string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.args[0] = binary
}

// Environment replaces the additional NAME=VALUE settings of the environment for the next start.
func (p *Process) Environment(env ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
}

// Ended reports whether it was started and has ended by itself.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return p.cmd != nil
	default:
		return false
	}
}

// Start starts it, and does not wait until it is ready.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("%s runs already", p.Name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = childAttributes()
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The child ends with the thread that started it (see childAttributes), so the thread stays.
		runtime.LockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.done = cmd, done
	return nil
}

// lookEvery is the pause between two looks at a process that starts.
const lookEvery = 50 * time.Millisecond

// tellEvery is how often a process that waits is told of.
const tellEvery = 10 * time.Second

// WaitReady waits until the readiness endpoint responds with 200. It tells every ten seconds why it does not.
// Its error has these reasons and the end of the log.
func (p *Process) WaitReady(ctx context.Context) error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	last := errors.New("it did not answer")
	for next := time.Now().Add(tellEvery); ; {
		if err := ready(ctx, p.url); err == nil {
			return nil
		} else if ctx.Err() == nil {
			last = err
		}
		if time.Now().After(next) && p.tell != nil {
			p.tell(fmt.Sprintf("%s is not ready yet: %v", p.Name, last))
			next = time.Now().Add(tellEvery)
		}
		select {
		case <-done:
			return fmt.Errorf("%s ended while it started:\n%s", p.Name, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.Name, last, p.Tail())
		case <-time.After(lookEvery):
		}
	}
}

func ready(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var reasons []string
	lines := bufio.NewScanner(io.LimitReader(res.Body, 1<<16))
	for lines.Scan() {
		if reason, failed := strings.CutPrefix(lines.Text(), "[-]"); failed {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		return errors.New(res.Status)
	}
	return errors.New(strings.Join(reasons, "; "))
}

// Tail returns the last lines of the log.
func (p *Process) Tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// Signal sends a signal to it, such as SIGSTOP.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s does not run", p.Name)
	}
	return p.cmd.Process.Signal(s)
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

// Stop sends SIGTERM, after five seconds SIGKILL, and waits until the process has ended.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

func (p *Process) end(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(s) // it may have ended by itself
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	p.cmd = nil
	return nil
}
