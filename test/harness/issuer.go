package harness

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/identity"
)

// Issuer is an OpenID Connect issuer, https://idp.example.org: it signs tokens, and serves its keys.
type Issuer struct {
	// URL of the key set.
	URL string
	t   testing.TB

	mu   sync.Mutex
	keys []jose.JSONWebKey // guarded by mu; the last one signs
}

// NewIssuer returns an issuer with one key.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	i.Rotate()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		set := jose.JSONWebKeySet{}
		for _, k := range i.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		_ = json.NewEncoder(w).Encode(set)
	}))
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

// Rotate signs with a new key from now on. The former key stays in the set.
func (i *Issuer) Rotate() {
	i.t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(i.t, err)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{
		Key: private, KeyID: fmt.Sprint("k", len(i.keys)),
		Algorithm: string(jose.RS256), Use: "sig",
	})
}

// File writes a token of a user into a file.
func (i *Issuer) File(name, audience string, life time.Duration, groups ...string) identity.TokenFile {
	i.t.Helper()
	claims, err := json.Marshal(map[string]any{
		"iss": "https://idp.example.org", "aud": audience, "sub": name,
		"exp": time.Now().Add(life).Unix(), "groups": groups,
	})
	require.NoError(i.t, err)
	i.mu.Lock()
	key := i.keys[len(i.keys)-1]
	i.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil)
	require.NoError(i.t, err)
	signed, err := signer.Sign(claims)
	require.NoError(i.t, err)
	text, err := signed.CompactSerialize()
	require.NoError(i.t, err)
	path := filepath.Join(i.t.TempDir(), "token")
	require.NoError(i.t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	return identity.TokenFile(path)
}

// Tokens writes the file for --tokens that accepts the issuer's tokens for an audience.
func (i *Issuer) Tokens(audience string) string {
	i.t.Helper()
	path := filepath.Join(i.t.TempDir(), "tokens.yaml")
	text := fmt.Sprintf(
		"issuers: [{ issuer: 'https://idp.example.org', audience: %s, jwks: '%s', groups_claim: groups }]\n",
		audience, i.URL)
	require.NoError(i.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
