package playground

import "syscall"

// childAttributes end a child together with this process, and keep the terminal's Ctrl-C from it: this
// process ends it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
