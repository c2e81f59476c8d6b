package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
)

// The tests that the documents name exist.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	there := map[string]bool{}
	var documents []string
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch {
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, found := range testFunc.FindAllStringSubmatch(string(text), -1) {
				there[found[1]] = true
			}
		case strings.HasSuffix(path, ".md"):
			documents = append(documents, path)
		}
		return nil
	}))
	require.NotEmpty(t, documents)
	for _, path := range documents {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range testName.FindAllString(string(text), -1) {
			require.True(t, there[name], "%s names %s, which does not exist", path, name)
		}
	}
}

// fileName is a file of the repository in a document: with its folder, or the name alone.
var fileName = regexp.MustCompile("`([a-z][\\w./-]*\\.(?:go|sql|sh))`")

// A newcomer finds the files that the documents name.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	exists := map[string]bool{}
	var documents []string
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		exists[filepath.ToSlash(strings.TrimPrefix(path, "../"))], exists[d.Name()] = true, true
		if strings.HasSuffix(path, ".md") {
			documents = append(documents, path)
		}
		return nil
	}))
	require.NotEmpty(t, documents)
	for _, path := range documents {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, found := range fileName.FindAllStringSubmatch(string(text), -1) {
			require.True(t, exists[found[1]], "%s names the file %s, which does not exist", path, found[1])
		}
	}
}

// The protocol has the database's grammar of names; TestGoAndPostgreSQLAcceptTheSameNames compares it with
// Go's.
func TestTheProtocolWritesTheGrammarOfNames(t *testing.T) {
	sql, err := os.ReadFile("../migrations/deployment/00001_baseline.sql")
	require.NoError(t, err)
	inSQL := regexp.MustCompile(`name ~ '(\^.*\$)'`).FindSubmatch(sql)
	require.NotNil(t, inSQL)
	protocol, err := os.ReadFile("../docs/protocol.md")
	require.NoError(t, err)
	require.Contains(t, string(protocol), "    "+strings.ReplaceAll(string(inSQL[1]), "''", "'")+"\n")
}

// Each page under docs is in the navigation of the documentation site, once, and each entry of the navigation
// exists.
func TestTheNavigationHasEveryPage(t *testing.T) {
	text, err := os.ReadFile("../mkdocs.yml")
	require.NoError(t, err)
	var site struct {
		Nav any `yaml:"nav"`
	}
	require.NoError(t, yaml.Unmarshal(text, &site))
	entries := map[string]int{}
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case string:
			entries[node]++
		case []any:
			for _, n := range node {
				walk(n)
			}
		case map[string]any:
			for _, n := range node {
				walk(n)
			}
		}
	}
	walk(site.Nav)
	require.NoError(t, filepath.WalkDir("../docs", func(path string, d fs.DirEntry, err error) error {
		if page := filepath.ToSlash(strings.TrimPrefix(path, "../")); err == nil && strings.HasSuffix(page, ".md") {
			require.NotZero(t, entries[page], "the navigation in mkdocs.yml lacks %s", page)
		}
		return err
	}))
	for page, times := range entries {
		require.FileExists(t, "../"+page, "an entry of the navigation in mkdocs.yml")
		require.Equal(t, 1, times, "%s stands in the navigation several times", page)
	}
}
