//go:build !linux

package launcher

import "syscall"

// MemoryFolder is empty: there is no such folder that every user may use.
func MemoryFolder() string { return "" }

// boundToUs starts a process like inOwnSession does. The janitor ends it when we
// end without having stopped it: no kernel but Linux does that.
func boundToUs(who *serverAccount) *syscall.SysProcAttr {
	return inOwnSession(who)
}
