package dbctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/spf13/cobra"
)

// process runs a command of the program in a goroutine.
type process struct {
	command func() *cobra.Command
	args    []string

	mu     sync.Mutex
	cancel context.CancelFunc // guarded by mu; nil while it does not run
	ended  chan struct{}      // guarded by mu; closed when it has returned
	err    error              // guarded by mu; of its last run
	log    bytes.Buffer       // guarded by mu
}

func newProcess(command func() *cobra.Command, args ...string) *process {
	return &process{command: command, args: args}
}

// Write implements io.Writer for the log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) flag(name string) string {
	return p.args[slices.Index(p.args, name)+1]
}

func (p *process) start() {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := p.command()
	cmd.Flags().String("log-level", "info", "")
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(p.args)
	cmd.SetOut(p)
	cmd.SetErr(p)
	ended := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel, p.ended, p.err = cancel, ended, nil
	go func() {
		defer close(ended)
		err := cmd.ExecuteContext(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.err = err
	}()
}

// end ends the process, and returns when it has ended.
func (p *process) end() {
	p.mu.Lock()
	cancel, ended := p.cancel, p.ended
	p.cancel = nil
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-ended
	}
}

// output is the log of the process.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// errEnded: a process has ended by itself. No repetition helps.
var errEnded = errors.New("it has ended")

// problem is the error with which the process has ended by itself: it has errEnded.
func (p *process) problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil || p.cancel == nil {
		return nil
	}
	return fmt.Errorf("%w: %w\n%s", errEnded, p.err, p.log.String())
}
