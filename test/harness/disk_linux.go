package harness

import (
	"fmt"
	"syscall"
)

func mountSmallDisk(dir string, bytes int64) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", bytes))
}

func unmountSmallDisk(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
