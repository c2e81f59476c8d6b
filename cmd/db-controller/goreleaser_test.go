package main

import (
	"debug/buildinfo"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The configuration of goreleaser stamps variables that exist.
func TestReleasesAreStamped(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../.goreleaser.yaml")
	require.NoError(t, err)
	stamped := 0
	source, err := os.ReadFile("cli/version.go")
	require.NoError(t, err)
	program, err := buildinfo.ReadFile(os.Args[0])
	require.NoError(t, err)
	for _, word := range strings.Fields(string(text)) {
		variable, ok := strings.CutPrefix(word, program.Main.Path+"/cmd/db-controller/cli.")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		require.Regexp(t, `(?m)^\t`+name+` +=`, string(source))
		stamped++
	}
	require.Equal(t, 2, stamped)
}
