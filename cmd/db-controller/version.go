package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and commit are set by `make build`, from `git describe` and `git rev-parse`.
var (
	version = "development"
	commit  = ""
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the version of Go",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			revision := cmp.Or(commit, builtFrom())
			if revision != "" {
				revision = " " + revision
			}
			cmd.Printf("db-controller %s%s (%s, %s/%s)\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// builtFrom is the commit that Go has recorded, which it does only in some checkouts.
func builtFrom() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
