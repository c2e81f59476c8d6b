package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/serve"
)

// Any configuration file sets flags, or is refused with a message.
func FuzzConfiguration(f *testing.F) {
	for _, seed := range []string{
		"", "lease: 5s\nnodes: 3\n", "lease: [1]\n", "nodes: {a: b}\n", "no-such-flag: 1\n",
		"a: &a [*a]\n", "lease: 1e999\n", "- x\n", "\x00", "nodes: 99999999999999999999\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := serve.NewServe()
		cmd.Flags().String("config", "", "")
		if err := cmd.Flags().Set("config", path); err != nil {
			t.Fatal(err)
		}
		if err := cli.Configure(cmd); err != nil && err.Error() == "" {
			t.Fatalf("%q is refused without a word", raw)
		}
	})
}
