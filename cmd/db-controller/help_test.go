package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The help of serve fits a screen; --help-all has every flag, also beside wrong settings.
func TestTheHelpOfServeFitsAScreen(t *testing.T) {
	t.Parallel()
	short := command(t, "serve", "--help")
	require.Zero(t, short.code)
	require.Less(t, strings.Count(short.out, "\n"), 40)
	require.Contains(t, short.out, "--deployment")
	require.NotContains(t, short.out, "--tentative-ttl")
	require.Contains(t, short.out, "32 flags are not shown: db-controller serve --help-all")
	for _, args := range [][]string{{"serve", "--help-all"}, {"serve", "--nodes", "0", "--help-all"}} {
		all := command(t, args...)
		require.Zero(t, all.code)
		require.Contains(t, all.out, "--tentative-ttl")
		require.Contains(t, all.out, "--deployment")
		require.NotContains(t, all.out, "not shown")
	}
}
