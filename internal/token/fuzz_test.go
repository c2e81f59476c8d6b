package token_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/token"
)

// Any file of tokens is read or refused, and no text but the key itself is accepted as it.
func FuzzBearers(f *testing.F) {
	const key = "a-key-with-enough-bits-0123456789"
	sum := sha256.Sum256([]byte("salt" + key))
	good := "keys:\n- { sha256: " + hex.EncodeToString(sum[:]) + ", salt: salt, identity: user/ann }\n"
	path := filepath.Join(f.TempDir(), "tokens.yaml")
	require.NoError(f, os.WriteFile(path, []byte(good), 0o600))
	v, err := token.Load(path)
	require.NoError(f, err)
	who, err := v.Verify(f.Context(), key)
	require.NoError(f, err)
	require.Equal(f, "user/ann", who.Identity.String())
	for _, bearer := range []string{
		key, "", ".", "..", "a.b.c", "eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.",
		"eyJhbGciOiJIUzI1NiJ9.e30.AAAA", "salt" + key, strings.ToUpper(key),
	} {
		f.Add(bearer, good)
	}
	f.Add(key, config("https://idp.example.org/keys"))
	f.Add(key, "denied: { identities: [user/ann], tokens: [x] }\n"+good)
	f.Add(key, "keys: [{ expires: 0000-00-00 }]\n")
	f.Fuzz(func(t *testing.T, bearer, file string) {
		if _, err := v.Verify(t.Context(), bearer); (err == nil) != (bearer == key) {
			t.Fatalf("%q: %v", bearer, err)
		}
		if strings.Contains(file, "jwks") {
			return // it names other files and hosts
		}
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		other, err := token.Load(path)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		if _, err := other.Verify(t.Context(), bearer); err == nil && len(bearer) < 16 {
			t.Fatalf("%q is accepted by %q", bearer, file)
		}
	})
}
