package launcher

import "syscall"

const (
	sharedMemory = "/dev/shm"
	tmpfsMagic   = 0x01021994
	// memoryRoom is the required free memory, in bytes. Containers often have no more than 64 MB there.
	memoryRoom = 2 << 30
)

// MemoryFolder is a folder in memory with enough room for a server, and empty
// when there is none.
func MemoryFolder() string {
	var stat syscall.Statfs_t
	//nolint:unconvert // the type of stat.Type differs from one processor to the other
	if err := syscall.Statfs(sharedMemory, &stat); err != nil || int64(stat.Type) != tmpfsMagic {
		return ""
	}
	if stat.Bavail*uint64(stat.Bsize) < memoryRoom || syscall.Access(sharedMemory, 2) != nil {
		return ""
	}
	return sharedMemory
}

// boundToUs starts a process like inOwnSession does. The kernel shuts it down
// fast when we end without having stopped it. It goes by the thread that starts
// the process, see launch.
func boundToUs(who *serverAccount) *syscall.SysProcAttr {
	attributes := inOwnSession(who)
	attributes.Pdeathsig = syscall.SIGINT
	return attributes
}
