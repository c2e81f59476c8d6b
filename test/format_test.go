package test

import (
	"bytes"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The part of `make verify` that costs two seconds and needs no program: every Go file is as gofmt writes it.
func TestEveryFileIsFormatted(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || name == "testdata" || len(name) > 2 &&
			strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		formatted, err := format.Source(text)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, formatted) {
			t.Errorf("%s: run gofmt -w", path)
		}
		return nil
	})
	require.NoError(t, err)
}
