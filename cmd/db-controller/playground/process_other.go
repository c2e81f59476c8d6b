//go:build !linux

package playground

import "syscall"

// childAttributes keep the terminal's Ctrl-C from a child: this process ends it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
