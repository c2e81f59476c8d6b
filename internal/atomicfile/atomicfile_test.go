package atomicfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/atomicfile"
)

// Readers find one of the contents, never a part of it or nothing.
func TestReadersFindAWholeFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	contents := [][]byte{bytes.Repeat([]byte("a"), 1<<16), bytes.Repeat([]byte("b"), 1<<10)}
	require.NoError(t, atomicfile.Write(path, contents[0]))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if found, err := os.ReadFile(path); err != nil || !bytes.Equal(found, contents[0]) &&
					!bytes.Equal(found, contents[1]) {
					t.Errorf("%d bytes: %v", len(found), err)
					return
				}
			}
		})
	}
	for i := range 200 {
		require.NoError(t, atomicfile.Write(path, contents[i%2]))
	}
	close(done)
	readers.Wait()
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// A file that cannot be replaced stays, and nothing is left beside it.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "file"), 0o700)) // a folder cannot be replaced by a file
	require.Error(t, atomicfile.Write(filepath.Join(dir, "file"), []byte("x")))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Error(t, atomicfile.Write(filepath.Join(dir, "none", "file"), nil))
}
