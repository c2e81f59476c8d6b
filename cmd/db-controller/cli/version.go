package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Version is the version of this release, or of the next one; CHANGELOG.md and the Helm chart have the same.
const Version = "0.1.0"

// commit is set by `make build`, from `git rev-parse`.
var commit = ""

// Build describes the running binary.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild describes the running binary.
func ThisBuild() Build {
	return Build{Version, cmp.Or(commit, builtFrom()), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
}

func (b Build) String() string {
	return fmt.Sprintf("db-controller %s (%s, %s)", strings.TrimSpace(b.Version+" "+b.Commit), b.Go, b.Platform)
}

// NewVersionCommand returns the command version.
func NewVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the version of Go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := PrinterOf(cmd)
			out.Line("%s", ThisBuild())
			return out.Document(ThisBuild())
		},
	}
	OutputFlag(cmd)
	return cmd
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
