// Package atomicfile writes files that other processes read meanwhile.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces the content of a file, which gets the permissions 0600: a reader, and a crash, find the
// former content or the new one. It writes a file beside it and renames that.
func Write(path string, content []byte) (err error) {
	beside, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(beside.Name())
		}
	}()
	if _, err := beside.Write(content); err != nil {
		return errors.Join(err, beside.Close())
	}
	if err := errors.Join(beside.Sync(), beside.Close()); err != nil {
		return err
	}
	return os.Rename(beside.Name(), path)
}
