package token_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/token"
)

const issuer = "https://idp.example.org"

type signer struct {
	key any
	id  string
	alg jose.SignatureAlgorithm
}

func rsaSigner(t *testing.T, id string) signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return signer{key, id, jose.RS256}
}

func (s signer) public() jose.JSONWebKey {
	k := jose.JSONWebKey{Key: s.key, KeyID: s.id, Algorithm: string(s.alg), Use: "sig"}
	return k.Public()
}

func (s signer) sign(t *testing.T, claims map[string]any) string {
	all := map[string]any{
		"iss": issuer, "aud": "db-controller", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix(),
		"groups": []string{"sre", "bad group", "dev"},
	}
	for k, v := range claims {
		all[k] = v
	}
	raw, err := json.Marshal(all)
	require.NoError(t, err)
	with, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	require.NoError(t, err)
	signed, err := with.Sign(raw)
	require.NoError(t, err)
	text, err := signed.CompactSerialize()
	require.NoError(t, err)
	return text
}

func keySet(t *testing.T, keys ...signer) []byte {
	set := jose.JSONWebKeySet{}
	for _, k := range keys {
		set.Keys = append(set.Keys, k.public())
	}
	raw, err := json.Marshal(set)
	require.NoError(t, err)
	return raw
}

func load(t *testing.T, text string) (*token.Verifier, string) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	v, err := token.Load(path)
	require.NoError(t, err)
	return v, path
}

func config(jwks string) string {
	return "issuers:\n  - { issuer: '" + issuer + "', audience: db-controller, jwks: '" + jwks + "' }\n"
}

func TestSignedTokens(t *testing.T) {
	t.Parallel()
	good, stranger := rsaSigner(t, "1"), rsaSigner(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, good), 0o600))
	v, _ := load(t, config(file))

	ann, err := v.Verify(t.Context(), good.sign(t, nil))
	require.NoError(t, err)
	require.Equal(t, "user/ann", ann.Identity.String())
	require.Equal(t, []string{"sre", "dev"}, ann.Groups)
	require.Equal(t, "token of "+issuer, ann.Proof)
	_, err = v.Verify(t.Context(), good.sign(t, map[string]any{"exp": time.Now().Add(-30 * time.Second).Unix()}))
	require.NoError(t, err, "within the skew of clocks")

	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + strings.Split(good.sign(t, nil),
		".")[1] + "."
	public, err := x509.MarshalPKIXPublicKey(&good.key.(*rsa.PrivateKey).PublicKey)
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	for name, c := range map[string]struct{ token, want string }{
		"expired": {
			good.sign(t, map[string]any{"exp": time.Now().Add(-2 * time.Minute).Unix()}),
			"it expired at ",
		},
		"without an end": {good.sign(t, map[string]any{"exp": 0}), "not accepted"},
		"of another audience": {
			good.sign(t, map[string]any{"aud": "another"}),
			`expected audience "db-controller"`,
		},
		"of another issuer": {
			good.sign(t, map[string]any{"iss": "https://evil.example.org"}),
			"issuer is not accepted here",
		},
		"not valid yet": {
			good.sign(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
			"not accepted",
		},
		"of another key":                      {stranger.sign(t, nil), "none of its issuer's keys has signed it"},
		"without a signature":                 {none, "not accepted"},
		"HS256 with the public key as secret": {signer{public, "1", jose.HS256}.sign(t, nil), "not accepted"},
		"an algorithm that is not listed":     {signer{ec, "1", jose.ES384}.sign(t, nil), "not accepted"},
		"a name that is a path": {
			good.sign(t, map[string]any{"sub": "../operator/eve"}),
			"cannot be the name of a user",
		},
		"without a name": {good.sign(t, map[string]any{"sub": ""}), "no claim sub"},
		"cut":            {good.sign(t, nil)[:400], "not "},
		"too long":       {strings.Repeat("a", 7000), "at most 6144 are allowed"},
	} {
		_, err := v.Verify(t.Context(), c.token)
		require.ErrorContains(t, err, c.want, name)
	}
}

// A token does not bring its own key, nor a place where its key is; unknown extensions, numbers that are no
// times, and names that look like others are refused. Of a claim that is there twice one counts for
// everything.
func TestTokensWithTricks(t *testing.T) {
	t.Parallel()
	good, evil := rsaSigner(t, "1"), rsaSigner(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, good), 0o600))
	v, _ := load(t, config(file))
	payload := func(claims string) string {
		return fmt.Sprintf(`{"iss":%q,"aud":"db-controller","sub":"ann","exp":%d%s}`, issuer,
			time.Now().Add(time.Hour).Unix(), claims)
	}
	with := func(by signer, raw string, options *jose.SignerOptions) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: by.alg, Key: jose.JSONWebKey{
			Key:   by.key,
			KeyID: by.id,
		}}, options)
		require.NoError(t, err)
		signed, err := signer.Sign([]byte(raw))
		require.NoError(t, err)
		text, err := signed.CompactSerialize()
		require.NoError(t, err)
		return text
	}
	header := func(name jose.HeaderKey, value any) *jose.SignerOptions {
		return (&jose.SignerOptions{}).WithHeader(name, value)
	}
	for name, tok := range map[string]string{
		"its own key":                      with(evil, payload(""), &jose.SignerOptions{EmbedJWK: true}),
		"the address of its key set":       with(evil, payload(""), header("jku", "file://"+file)),
		"a certificate of its own":         with(evil, payload(""), header("x5u", "https://evil.example.org")),
		"an extension that is critical":    with(good, payload(""), header("crit", []string{"x"})),
		"an end that is no time":           with(good, payload(`,"exp":1e300`), nil),
		"a text as its end":                with(good, payload(`,"exp":"never"`), nil),
		"a negative end":                   with(good, payload(`,"exp":-1`), nil),
		"a name with a space":              with(good, payload(`,"sub":"ann "`), nil),
		"a name with a new line":           with(good, payload(`,"sub":"ann\noperator/eve"`), nil),
		"a name with NUL":                  with(good, payload(`,"sub":"ann\u0000"`), nil),
		"a name with a mark of directions": with(good, payload(`,"sub":"\u202eann"`), nil),
		"a name that looks like another":   with(good, payload(`,"sub":"\u0430nn"`), nil),
		"an operator's identity":           with(good, payload(`,"sub":"operator/eve"`), nil),
		"a list of names":                  with(good, payload(`,"sub":["ann","eve"]`), nil),
		"a name of 10,000 bytes":           with(good, payload(`,"sub":"`+strings.Repeat("a", 3000)+`"`), nil),
		"an audience that begins alike":    with(good, payload(`,"aud":["db-controller-2"]`), nil),
		"several tokens":                   good.sign(t, nil) + "," + good.sign(t, nil),
		"the form of JSON":                 `{"payload":"e30","signatures":[]}`,
	} {
		_, err := v.Verify(t.Context(), tok)
		require.Error(t, err, name)
		require.Less(t, len(err.Error()), 1000, name)
	}
	twice, err := v.Verify(t.Context(), with(good, payload(`,"sub":"eve"`), nil))
	require.NoError(t, err)
	require.Equal(t, "user/eve", twice.Identity.String())
	many, err := v.Verify(t.Context(), with(good, payload(`,"groups":["`+strings.Repeat(`g","`, 900)+`sre"]`), nil))
	require.NoError(t, err)
	require.LessOrEqual(t, len(many.Groups), 100)
	_, err = v.Verify(t.Context(), with(good, payload(`,"groups":{"sre":true}`), nil))
	if err == nil {
		t.Log("groups of another form are none")
	}
}

func TestKeysOfIssuersAreReplaced(t *testing.T) {
	t.Parallel()
	first, second := rsaSigner(t, "1"), rsaSigner(t, "2")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, first), 0o600))
	v, _ := load(t, config(file))
	_, err := v.Verify(t.Context(), second.sign(t, nil))
	require.Error(t, err)
	require.NoError(t, os.WriteFile(file, keySet(t, second), 0o600))
	_, err = v.Reload()
	require.NoError(t, err)
	_, err = v.Verify(t.Context(), second.sign(t, nil))
	require.NoError(t, err)
	_, err = v.Verify(t.Context(), first.sign(t, nil))
	require.Error(t, err, "a key that was withdrawn")
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	_, err = v.Reload()
	require.ErrorContains(t, err, "no public key")
	_, err = v.Verify(t.Context(), second.sign(t, nil))
	require.NoError(t, err, "the former keys stay")
}

// The keys at a URL are read when a token needs them, and invented key ids cause no further requests.
func TestKeySetsAtURLs(t *testing.T) {
	t.Parallel()
	key := rsaSigner(t, "1")
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/", http.StatusFound)
			return
		}
		requests.Add(1)
		_, _ = w.Write(keySet(t, key))
	}))
	t.Cleanup(server.Close)
	moved, _ := load(t, config(server.URL+"/moved"))
	_, err := moved.Verify(t.Context(), key.sign(t, nil))
	require.Error(t, err, "a redirect to a place without TLS")
	v, _ := load(t, config(server.URL))
	require.Zero(t, requests.Load())
	_, err = v.Verify(t.Context(), key.sign(t, nil))
	require.NoError(t, err)
	for range 5 {
		_, err = v.Verify(t.Context(), signer{key.key, "invented", key.alg}.sign(t, nil))
		require.Error(t, err)
	}
	server.Close()
	_, err = v.Verify(t.Context(), key.sign(t, nil))
	require.NoError(t, err, "the keys are kept while the issuer is away")
	require.EqualValues(t, 1, requests.Load())
}

func TestSharedKeys(t *testing.T) {
	t.Parallel()
	line := func(key, more string) string {
		sum := sha256.Sum256([]byte(key))
		return "  - { sha256: " + hex.EncodeToString(sum[:]) + ", identity: user/ci, groups: [robots]" + more + " }\n"
	}
	v, path := load(t, "keys:\n"+line("secret", "")+line("old", ", expires: 2020-01-01T00:00:00Z"))
	ci, err := v.Verify(t.Context(), "secret")
	require.NoError(t, err)
	require.Equal(t, "user/ci (shared key)", ci.Audited())
	require.Equal(t, []string{"robots"}, ci.Groups)
	require.Empty(t, ci.Token, "a shared key is never passed on")
	_, err = v.Verify(t.Context(), "old")
	require.ErrorContains(t, err, "has expired: use a new one")
	_, err = v.Verify(t.Context(), "guess")
	require.ErrorContains(t, err, "not known here")
	salted := "  - { sha256: " + hex.EncodeToString(func() []byte {
		s := sha256.Sum256([]byte("pepper" + "secret"))
		return s[:]
	}()) + ", salt: pepper, identity: user/other }\n"
	require.NoError(t, os.WriteFile(path, []byte("keys:\n"+salted), 0o600))
	_, err = v.Reload()
	require.NoError(t, err)
	other, err := v.Verify(t.Context(), "secret")
	require.NoError(t, err)
	require.Equal(t, "user/other", other.Identity.String())
	_, err = v.Verify(t.Context(), "peppersecret")
	require.Error(t, err, "the salt is no part of the key")
	require.NoError(t, os.WriteFile(path, []byte("keys:\n"+line("new", "")), 0o600))
	changed, err := v.Reload()
	require.NoError(t, err)
	require.True(t, changed)
	_, err = v.Verify(t.Context(), "secret")
	require.Error(t, err)
}

func TestTheFileOfTokensIsChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":                                    "neither issuers nor keys",
		"issuer: []":                            "unknown key \"issuer\": known are issuers, keys",
		"issuers: [{ issuer: a, audience: b }]": "jwks is missing",
		"issuers: [{ issuer: a, audience: b, jwks: 'http://idp.example.org/keys' }]": "want https",
		"issuers: [{ issuer: a, audience: b, jwks: f, algorithms: [HS256] }]":        `algorithm "HS256": want some of`,
		"issuers: [{ issuer: a, audience: b, jwks: f, algorithms: [none] }]":         `algorithm "none"`,
		"issuers: [{ issuer: a, audience: b, jwks: f, clock_skew: 1h }]":             "at most 5m0s",
		"keys: [{ sha256: '" + strings.Repeat("0", 64) + "', identity: user/a, salt: " + strings.Repeat("s", 65) +
			" }]": "salt: 65 bytes, at most 64",
		"keys: [{ sha256: secret, identity: user/a }]": "want the 64 hexadecimal digits",
		"keys: [{ sha256: '" + strings.Repeat("0", 64) +
			"', identity: operator/a }]": "a key can only be of a user",
		"keys: [{ sha256: '" + strings.Repeat("0", 64) +
			"', identity: deployment/a/b }]": "service",
	} {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := token.Load(path)
		require.ErrorContains(t, err, want, text)
	}
}

// A token is of one issuer, one client and one kind, and short-lived: each of these tokens is signed with the
// right key.
func TestClaimsOfSignedTokensAreChecked(t *testing.T) {
	t.Parallel()
	good := rsaSigner(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, good), 0o600))
	v, _ := load(t, "issuers:\n  - { issuer: '"+issuer+"', audience: db-controller, jwks: '"+file+
		"', authorized_parties: [shop, desk] }\n")
	now := time.Now()
	typed := func(kind string) string {
		with, err := jose.NewSigner(jose.SigningKey{Algorithm: good.alg, Key: jose.JSONWebKey{
			Key:   good.key,
			KeyID: good.id,
		}}, (&jose.SignerOptions{}).WithType(jose.ContentType(kind)))
		require.NoError(t, err)
		signed, err := with.Sign(
			[]byte(fmt.Sprintf(`{"iss":%q,"aud":"db-controller","sub":"ann","azp":"shop","exp":%d}`, issuer,
				now.Add(time.Hour).Unix())))
		require.NoError(t, err)
		text, err := signed.CompactSerialize()
		require.NoError(t, err)
		return text
	}
	sign := func(claims map[string]any) string {
		all := map[string]any{"azp": "shop"}
		for k, v := range claims {
			all[k] = v
		}
		return good.sign(t, all)
	}
	for name, token := range map[string]string{
		"an ID token": typed("JWT"), "an access token": typed("at+jwt"),
		"issued just now, by another clock": sign(map[string]any{"iat": now.Add(30 * time.Second).Unix()}),
		"several audiences":                 sign(map[string]any{"aud": []string{"db-controller", "mail"}}),
		"a day": sign(map[string]any{
			"iat": now.Unix(),
			"exp": now.Add(24 * time.Hour).Unix(),
		}),
	} {
		_, err := v.Verify(t.Context(), token)
		require.NoError(t, err, name)
	}
	for name, c := range map[string]struct{ token, want string }{
		"of a year": {
			sign(map[string]any{"iat": now.Unix(), "exp": now.Add(365 * 24 * time.Hour).Unix()}),
			"it is valid for 8760h0m0s, at most 24h0m0s are allowed (max_lifetime)",
		},
		"of a year, issued long ago": {sign(map[string]any{
			"iat": now.Add(-364 * 24 * time.Hour).Unix(),
			"exp": now.Add(24 * time.Hour).Unix(),
		}), "max_lifetime"},
		"of a year, without issue": {
			sign(map[string]any{"exp": now.Add(365 * 24 * time.Hour).Unix()}),
			"max_lifetime",
		},
		"issued tomorrow": {sign(map[string]any{
			"iat": now.Add(24 * time.Hour).Unix(),
			"exp": now.Add(25 * time.Hour).Unix(),
		}), "which is later than now"},
		"valid in three minutes": {
			sign(map[string]any{"nbf": now.Add(3 * time.Minute).Unix()}),
			"it is valid from ",
		},
		"issued at a text": {sign(map[string]any{"iat": "yesterday"}), "not accepted"},
		"issued at a quoted number": {
			sign(map[string]any{"iat": fmt.Sprint(now.Unix())}),
			"its claim iat is not a number of seconds",
		},
		"an end that is quoted": {
			sign(map[string]any{"exp": fmt.Sprint(now.Add(time.Hour).Unix())}),
			"its claim exp is not a number of seconds",
		},
		"an end beyond all numbers": {sign(map[string]any{"exp": 1e300}), "not accepted"},
		"a number as its name":      {sign(map[string]any{"jti": 1}), "its claim jti is no text"},
		"for another client":        {sign(map[string]any{"azp": "mail"}), `its claim azp is "mail"`},
		"for no client":             {good.sign(t, nil), `its claim azp is ""`},
		"a logout token":            {typed("logout+jwt"), `its type is "logout+jwt"`},
		"an event":                  {typed("secevent+jwt"), `its type is "secevent+jwt"`},
	} {
		_, err := v.Verify(t.Context(), c.token)
		require.ErrorContains(t, err, c.want, name)
	}

	everybody, _ := load(t, config(file))
	_, err := everybody.Verify(t.Context(), good.sign(t, map[string]any{"aud": []string{"db-controller", "mail"}}))
	require.ErrorContains(t, err, "it is for several audiences, and has no claim azp")
}

// A group of one issuer is none of another one's, also when both have the same name.
func TestGroupsOfIssuersDiffer(t *testing.T) {
	t.Parallel()
	good := rsaSigner(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, good), 0o600))
	second := func(more string) string {
		return config(file) + "  - { issuer: 'https://partner.example.org', audience: db-controller, jwks: '" + file +
			"'" + more + " }\n"
	}
	partner := good.sign(t, map[string]any{"iss": "https://partner.example.org", "groups": []string{"sre"}})
	for more, want := range map[string][]string{
		", prefix: partner.":                        {"user/partner.ann", "partner.sre"},
		", prefix: partner., groups_prefix: guest-": {"user/partner.ann", "guest-sre"},
		`, prefix: ""`:                              {"user/ann", "sre"},
	} {
		v, _ := load(t, second(more))
		who, err := v.Verify(t.Context(), partner)
		require.NoError(t, err)
		require.Equal(t, want, append([]string{who.Identity.String()}, who.Groups...), more)
		first, err := v.Verify(t.Context(), good.sign(t, nil))
		require.NoError(t, err)
		require.Equal(t, []string{"sre", "dev"}, first.Groups)
	}
	// A name, or a group, of the first issuer that begins with the prefix of the second one would be the
	// second one's.
	v, _ := load(t, second(", prefix: b-, groups_prefix: guest-"))
	_, err := v.Verify(t.Context(), good.sign(t, map[string]any{"sub": "b-ann"}))
	require.ErrorContains(t, err, "the name b-ann begins with the prefix of another issuer's users")
	who, err := v.Verify(t.Context(), good.sign(t, map[string]any{"groups": []string{"guest-sre", "b-dev", "sre"}}))
	require.NoError(t, err)
	require.Equal(t, []string{"b-dev", "sre"}, who.Groups)
	who, err = v.Verify(t.Context(), good.sign(t, map[string]any{"iss": "https://partner.example.org", "sub": "b-ann"}))
	require.NoError(t, err)
	require.Equal(t, "user/b-b-ann", who.Identity.String())

	path := filepath.Join(t.TempDir(), "tokens.yaml")
	require.NoError(t, os.WriteFile(path, []byte(second("")), 0o600))
	_, err = token.Load(path)
	require.ErrorContains(t, err, "issuers[1]: its users would be those of the first issuer: declare prefix")
}

// A token, or a user, is denied before the token expires; a call that waits for that is told.
func TestTokensAreWithdrawn(t *testing.T) {
	t.Parallel()
	good := rsaSigner(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	require.NoError(t, os.WriteFile(file, keySet(t, good), 0o600))
	v, path := load(t, config(file))
	first, second := good.sign(t, map[string]any{"jti": "1"}), good.sign(t, map[string]any{"jti": "2"})
	who, err := v.Verify(t.Context(), first)
	require.NoError(t, err)
	other, err := v.Verify(t.Context(), second)
	require.NoError(t, err)
	told, toldOther := make(chan error, 1), make(chan error, 1)
	go func() { told <- who.Withdrawn(t.Context()) }()
	go func() { toldOther <- other.Withdrawn(t.Context()) }()

	deny := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(config(file)+text), 0o600))
		changed, err := v.Reload()
		require.NoError(t, err)
		require.True(t, changed)
	}
	deny("denied: {tokens: ['1']}\n")
	require.EqualError(t, <-told, "the token is not accepted: it was withdrawn: get a new one")
	_, err = v.Verify(t.Context(), first)
	require.ErrorContains(t, err, "it was withdrawn")
	_, err = v.Verify(t.Context(), second)
	require.NoError(t, err)
	require.Empty(t, toldOther)
	deny("denied: {identities: [user/ann]}\n")
	require.EqualError(t, <-toldOther, "user/ann is denied here: ask an operator")
	_, err = v.Verify(t.Context(), good.sign(t, nil))
	require.ErrorContains(t, err, "user/ann is denied here")

	require.NoError(t, os.WriteFile(path, []byte(config(file)+"denied: {identities: [ann]}\n"), 0o600))
	_, err = v.Reload()
	require.ErrorContains(t, err, `denied.identities[0]: "ann" is not of the form user/NAME`)
}
