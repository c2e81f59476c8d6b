package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
)

var packageFiles = flag.String("files", "", "keep the files of packages in this folder")

// filesOfPackages writes the files of packages beside the program: units, completions and manual pages.
func filesOfPackages(t *testing.T) (folder string) {
	t.Helper()
	if folder = *packageFiles; folder == "" {
		folder = t.TempDir()
	}
	require.NoError(t, os.RemoveAll(folder))
	inside := func(name string) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		return path
	}
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	require.NoError(t, err)
	for _, unit := range units {
		text, err := os.ReadFile(unit) //nolint:gosec // a file of the repository
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(inside("systemd/"+filepath.Base(unit)),
			[]byte(strings.ReplaceAll(string(text), "/usr/local/bin/", "/usr/bin/")), 0o600))
	}
	root := newRoot()
	home, err := os.UserHomeDir() // of the test: defaults lie in it
	require.NoError(t, err)
	require.NoError(t, root.GenBashCompletionFileV2(inside("completions/db-controller.bash"), true))
	require.NoError(t, root.GenZshCompletionFile(inside("completions/_db-controller")))
	require.NoError(t, root.GenFishCompletionFile(inside("completions/db-controller.fish"), true))
	pages := filepath.Dir(inside("man/x"))
	root.DisableAutoGenTag = true
	epoch := time.Unix(0, 0).UTC() // the same source gives the same bytes
	require.NoError(t, doc.GenManTree(root, &doc.GenManHeader{
		Section: "1", Source: "db-controller " + cli.Version,
		Manual: "db-controller", Date: &epoch,
	}, pages))
	names, err := filepath.Glob(pages + "/*.1")
	require.NoError(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // written above
		require.NoError(t, err)
		packed, err := os.Create(name + ".gz")
		require.NoError(t, err)
		zip := gzip.NewWriter(packed)
		_, err = zip.Write(bytes.ReplaceAll(text, []byte(home), []byte("~")))
		require.NoError(t, err)
		require.NoError(t, zip.Close())
		require.NoError(t, packed.Close())
		require.NoError(t, os.Remove(name))
	}
	return folder
}

// packaging is a configuration of nfpm, or a part of a configuration of goreleaser.
type packaging struct {
	Description, Homepage, License, Maintainer, Section string
	Contents                                            []map[string]any
	Scripts                                             map[string]string
	Overrides                                           map[string]map[string][]string
}

// The packages of goreleaser and of make packages have the same files, with a manual page for each command.
func TestTheFilesOfPackagesExist(t *testing.T) { //nolint:paralleltest // it writes to the folder of a flag
	folder := filesOfPackages(t)
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	var pages func(*cobra.Command)
	pages = func(c *cobra.Command) {
		packed, err := os.Open(filepath.Join(folder, "man", strings.ReplaceAll(c.CommandPath(), " ", "-")+".1.gz"))
		require.NoError(t, err)
		defer packed.Close() //nolint:errcheck // it is read
		zip, err := gzip.NewReader(packed)
		require.NoError(t, err)
		page, err := io.ReadAll(zip)
		require.NoError(t, err)
		require.NotContains(t, string(page), home, "a path of this test")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
				pages(sub)
			}
		}
	}
	pages(newRoot())

	var local packaging
	var release struct{ Nfpms []packaging }
	for file, to := range map[string]any{
		"../../deploy/packages/nfpm.yaml": &local,
		"../../.goreleaser.yaml":          &release,
	} {
		raw, err := os.ReadFile(file) //nolint:gosec // of the repository
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(raw, to))
	}
	require.Len(t, release.Nfpms, 1)
	require.Equal(t, "/usr/bin/db-controller", local.Contents[0]["dst"], "goreleaser adds the program itself")
	local.Contents = local.Contents[1:]
	for _, of := range local.Overrides {
		of["dependencies"] = of["depends"] // the word of goreleaser
		delete(of, "depends")
	}
	require.Equal(t, local, release.Nfpms[0])
	for _, c := range local.Contents {
		src, ok := c["src"].(string)
		if !ok {
			require.Equal(t, "dir", c["type"])
			continue
		}
		if name, made := strings.CutPrefix(src, "bin/packages/files/"); made {
			src = filepath.Join(folder, name)
		} else {
			src = filepath.Join("../..", src)
		}
		found, err := filepath.Glob(src)
		require.NoError(t, err)
		require.NotEmpty(t, found, src)
	}
	for _, script := range local.Scripts {
		require.FileExists(t, filepath.Join("../..", script))
	}
}
