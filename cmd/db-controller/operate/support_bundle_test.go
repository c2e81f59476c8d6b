package operate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// unpack returns the files of a bundle.
func unpack(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(raw))
	require.NoError(t, err)
	files := map[string]string{}
	for in := tar.NewReader(zipped); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		files[header.Name] = string(text)
	}
}

func TestABundleHasNoNamesOfResourcesAndPeople(t *testing.T) {
	t.Parallel()
	hide, err := newRedactor(false)
	require.NoError(t, err)
	parts := []bundlePart{{"stuck.json", map[string]any{
		"name": "//a.example.com/us-west2/projects/secret/keys/hidden",
		"reasons": []string{
			"BLOCKED by //b.example.com/eastus2/holders/secret and 2 more",
			"said by operator/eve: ticket 4711",
		},
		"sample": "olds/private",
		"same":   "see //a.example.com/us-west2/projects/secret.",
	}}}
	var out bytes.Buffer
	require.NoError(t, packBundle(&out, parts, hide))
	text := unpack(t, out.Bytes())["stuck.json"]
	for _, secret := range []string{"secret", "hidden", "private", "eve"} {
		require.NotContains(t, text, secret)
	}
	require.Contains(t, text, "//b.example.com/eastus2/holders/x")
	require.Contains(t, text, "ticket 4711", "what an operator wrote stays")
	require.Contains(t, text, `"sample": "olds/x`)
	project := "//a.example.com/us-west2/projects/" + hide.hash("projects/secret")
	require.Contains(t, text, project+"/keys/x")
	require.Contains(t, text, project+".", "the same name has the same hash")

	out.Reset()
	require.NoError(t, packBundle(&out, parts, &redactor{keep: true}))
	require.Contains(t, unpack(t, out.Bytes())["stuck.json"], "projects/secret/keys/hidden")
}

// Names of letters outside ASCII, and with signs that JSON escapes, are hidden to their ends.
func TestABundleHidesWholeNames(t *testing.T) {
	t.Parallel()
	hide, err := newRedactor(false)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, packBundle(&out, []bundlePart{{"stuck.json", map[string]any{
		"reason": "WAITING for //a.example.com/r/projects/r&d-hidden, //a.example.com/r/projects/größe-hidden and user/jörg&hidden",
		"name":   "projects/a&hidden",
	}}}, hide))
	text := unpack(t, out.Bytes())["stuck.json"]
	require.NotContains(t, text, "hidden")
	require.Contains(t, text, "WAITING for //a.example.com/r/projects/x")
}

// Reasons of operators and errors of others can contain anything; with --names as well.
func TestABundleHasNoPasswordsAndTokens(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, packBundle(&out, []bundlePart{{"status.json", map[string]any{
		"url":   "ticket 1: postgres://eve:hid/den@db.example.org/x?a=b&password=hidden&c=d fails",
		"words": "host=db user=eve password='hid den' dbname=x, sslpassword=hidden\tport=5432",
		"call":  "authorization: Bearer hidden-hidden==",
		"token": "the token eyJhbGciOiJFUzI1NiJ9.hidden.hidden was refused",
		"none":  "see https://example.org:8443/x, by operator@example.org; password is wrong",
	}}}, &redactor{keep: true}))
	text := unpack(t, out.Bytes())["status.json"]
	for _, secret := range []string{"hid", "den"} {
		require.NotContains(t, text, secret)
	}
	for _, stays := range []string{
		"postgres://eve:REDACTED@db.example.org/x?a=b", "c=d fails",
		"host=db user=eve password=REDACTED dbname=x, sslpassword=REDACTED\\tport=5432", "Bearer REDACTED",
		"the token REDACTED was refused",
		"see https://example.org:8443/x, by operator@example.org; password is wrong",
	} {
		require.Contains(t, text, stays)
	}
}
