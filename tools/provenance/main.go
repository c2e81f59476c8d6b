// Command provenance writes the provenance of the release in a folder of goreleaser to standard output: a
// statement of in-toto with a predicate of SLSA 1. Its subjects are the files of checksums.txt, its
// dependencies the commit, and the modules in the bills of materials.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const repository = "https://github.com/db-controller/db-controller"

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: provenance FOLDER")
	}
	s, err := statement(args[0], time.Now())
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(s)
}

func statement(dir string, finished time.Time) (map[string]any, error) {
	var build struct {
		Tag, Version, Commit string
		Date                 time.Time
	}
	if err := read(filepath.Join(dir, "metadata.json"), &build); err != nil {
		return nil, err
	}
	subjects, err := checksums(filepath.Join(dir, "checksums.txt"))
	if err != nil {
		return nil, err
	}
	modules, err := dependencies(dir)
	if err != nil {
		return nil, err
	}
	guide := repository + "/blob/" + build.Commit + "/docs/releases.md"
	source := resource{
		URI:    "git+" + repository + "@" + build.Commit,
		Digest: map[string]string{"gitCommit": build.Commit},
	}
	return map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType": guide + "#what-is-built",
				"externalParameters": map[string]any{
					"source": source.URI, "tag": build.Tag,
					"version": build.Version,
				},
				"resolvedDependencies": append([]resource{source}, modules...),
			},
			"runDetails": map[string]any{
				"builder": map[string]any{"id": guide + "#making-a-release"},
				"metadata": map[string]any{
					"startedOn":  build.Date.UTC().Format(time.RFC3339),
					"finishedOn": finished.UTC().Format(time.RFC3339),
				},
			},
		},
	}, nil
}

// checksums reads lines of a digest and a name.
func checksums(path string) (files []resource, err error) {
	raw, err := os.ReadFile(path) //nolint:gosec // the caller names it
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, fmt.Errorf("%s: %q is not a digest and a name", path, line)
		}
		files = append(files, resource{Name: words[1], Digest: map[string]string{"sha256": words[0]}})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s names no file", path)
	}
	return files, nil
}

// dependencies returns the toolchain and the modules of all bills of materials, each once.
func dependencies(dir string) ([]resource, error) {
	bills, err := filepath.Glob(filepath.Join(dir, "*.sbom.json"))
	if err != nil {
		return nil, err
	}
	found := map[string]resource{}
	for _, path := range bills {
		var bill struct {
			Components []struct {
				PURL   string
				Hashes []struct{ Content string }
			}
		}
		if err := read(path, &bill); err != nil {
			return nil, err
		}
		for _, c := range bill.Components {
			r := resource{URI: c.PURL}
			for _, h := range c.Hashes {
				r.Digest = map[string]string{"dirHash": h.Content}
			}
			found[c.PURL] = r
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no bill of materials with modules", dir)
	}
	delete(found, "")
	var all []resource
	for _, uri := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[uri])
	}
	return all, nil
}

func read(path string, into any) error {
	raw, err := os.ReadFile(path) //nolint:gosec // the caller names the folder
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
