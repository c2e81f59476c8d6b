package playground

import "syscall"

// childAttributes let a child end with us, whatever happens to us, and keep the terminal's Ctrl-C from it: we end it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
