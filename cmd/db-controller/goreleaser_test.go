package main

import (
	"debug/buildinfo"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
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
		require.Regexp(t, `(?m)^var `+name+` =`, string(source))
		stamped++
	}
	require.Equal(t, 1, stamped)
}

// The version stands in one place; the documents and the chart have the same.
func TestTheVersionIsOne(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^0\.[0-9]+\.[0-9]+$`, cli.Version)
	for _, c := range [][2]string{
		{"../../CHANGELOG.md", `^## ` + cli.Version},
		{"../../deploy/helm/db-controller/Chart.yaml", `^version: ` + cli.Version + `$`},
		{"../../deploy/helm/db-controller/Chart.yaml", `^appVersion: "` + cli.Version + `"$`},
	} {
		text, err := os.ReadFile(c[0])
		require.NoError(t, err)
		require.Regexp(t, `(?m)`+c[1], string(text), c[0])
	}
}
