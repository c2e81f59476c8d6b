package strictyaml_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/strictyaml"
)

type key struct {
	Name    string `yaml:"name"`
	Expires string `yaml:"expires,omitempty"`
}

type file struct {
	Registry string `yaml:"registry"`
	Keys     []key  `yaml:"keys"`
	internal string //nolint:unused // no key
}

// A misspelt key is named with its line and the keys that are known there, without the names of Go's types.
func TestUnknownKeysAreNamedWithTheKnownOnes(t *testing.T) {
	var f file
	require.NoError(t, strictyaml.Decode([]byte("registry: a\nkeys: [{name: n, expires: never}]\n"), &f))
	require.Equal(t, file{Registry: "a", Keys: []key{{"n", "never"}}}, f)
	require.EqualError(t, strictyaml.Decode([]byte("registry: a\nregistri: b\n"), &f),
		`line 2: unknown key "registri": known are registry, keys`)
	require.EqualError(t, strictyaml.Decode([]byte("keys:\n- nam: n\n- expire: e\n"), &f),
		`line 2: unknown key "nam": known are name, expires; line 3: unknown key "expire": known are name, expires`)
	require.ErrorContains(t, strictyaml.Decode([]byte("registry: [a]\n"), &f), "line 1: cannot unmarshal")
	require.ErrorContains(t, strictyaml.Decode([]byte("registry: [\n"), &f), "line 1: did not find")
}
