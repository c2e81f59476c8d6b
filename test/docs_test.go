package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
)

// Tests that the documents name are there.
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
			require.True(t, there[name], "%s names %s, which is not there", path, name)
		}
	}
}

// The grammar of names is written as the database has it; TestGoAndPostgreSQLAcceptTheSameNames compares that with Go.
func TestTheProtocolWritesTheGrammarOfNames(t *testing.T) {
	sql, err := os.ReadFile("../migrations/deployment/00011_names.sql")
	require.NoError(t, err)
	inSQL := regexp.MustCompile(`name ~ '(\^.*\$)'`).FindSubmatch(sql)
	require.NotNil(t, inSQL)
	protocol, err := os.ReadFile("../docs/protocol.md")
	require.NoError(t, err)
	require.Contains(t, string(protocol), "    "+strings.ReplaceAll(string(inSQL[1]), "''", "'")+"\n")
}
