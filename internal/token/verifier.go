package token

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/identity"
)

// maxTokenBytes bounds a token: it fits twice into the headers of a call.
const maxTokenBytes = 6 << 10

// Verifier verifies tokens. It implements identity.TokenVerifier.
type Verifier struct {
	path    string
	current atomic.Pointer[content]
}

// content is the content of the file at one time.
type content struct {
	raw              []byte
	issuers          map[string]*issuer
	keys             map[saltedHash]Key
	salts            []string // of the keys, each once
	denied           Denied
	requireForwarded bool
	replaced         chan struct{} // closed when a later content takes its place
}

type issuer struct {
	Issuer
	keys     *keySet
	verifier *oidc.IDTokenVerifier
}

// Load reads the file of tokens and the key sets in files. Key sets at URLs are read when they are first
// needed.
func Load(path string) (*Verifier, error) {
	v := &Verifier{path: path}
	_, err := v.Reload()
	return v, err
}

// Reload reads the files again, and reports whether the file of tokens has changed. After an error the former
// content stays.
func (v *Verifier) Reload() (changed bool, err error) {
	cfg, raw, err := readConfig(v.path)
	if err != nil {
		return false, err
	}
	if was := v.current.Load(); was != nil && bytes.Equal(was.raw, raw) {
		return false, was.reloadKeys()
	}
	c := &content{
		raw: raw, issuers: map[string]*issuer{}, keys: map[saltedHash]Key{}, denied: cfg.Denied,
		requireForwarded: cfg.RequireForwarded, replaced: make(chan struct{}),
	}
	for _, i := range cfg.Issuers {
		c.issuers[i.Issuer] = newIssuer(i)
	}
	for _, k := range cfg.Keys {
		c.keys[saltedHash{k.Salt, strings.ToLower(k.SHA256)}] = k
		if !slices.Contains(c.salts, k.Salt) {
			c.salts = append(c.salts, k.Salt)
		}
	}
	if err := c.reloadKeys(); err != nil {
		return false, err
	}
	if was := v.current.Swap(c); was != nil {
		close(was.replaced)
	}
	return true, nil
}

func newIssuer(i Issuer) *issuer {
	keys := &keySet{from: i.JWKS}
	return &issuer{Issuer: i, keys: keys, verifier: oidc.NewVerifier(i.Issuer, keys, &oidc.Config{
		ClientID: i.Audience, SupportedSigningAlgs: i.Algorithms, Now: func() time.Time {
			return time.Now().Add(-i.ClockSkew)
		},
	})}
}

// reloadKeys reads the key sets in files.
func (c *content) reloadKeys() error {
	var all []error
	for _, i := range c.issuers {
		if !i.keys.remote() {
			all = append(all, i.keys.load(context.Background()))
		}
	}
	return errors.Join(all...)
}

// Follow reloads the files at an interval until ctx ends. It returns nil.
func (v *Verifier) Follow(ctx context.Context, interval time.Duration, log *zap.Logger) error {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		changed, err := v.Reload()
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			log.Warn("the tokens could not be loaded again, the former ones stay in use", zap.Error(err))
		case err == nil:
			if said = ""; changed {
				log.Info("tokens loaded again")
			}
		}
	}
}

// RequireForwarded reports whether a person that another deployment speaks for needs a token of their own.
func (v *Verifier) RequireForwarded() bool { return v.current.Load().requireForwarded }

// Denied returns the error of a user who is denied; nil for others.
func (v *Verifier) Denied(who identity.Identity) error { return v.current.Load().denied.user(who) }

// Verify implements identity.TokenVerifier: a token with two dots is a signed one, any other a shared key.
func (v *Verifier) Verify(ctx context.Context, token string) (who identity.Caller, err error) {
	c := v.current.Load()
	switch {
	case len(token) > maxTokenBytes:
		err = fmt.Errorf("the token has %d bytes, at most %d are allowed: ask its issuer to put fewer groups into it",
			len(token), maxTokenBytes)
	case strings.Count(token, ".") == 2:
		who, err = c.signed(ctx, token)
	default:
		who, err = c.shared(token)
	}
	if err == nil {
		err = c.denied.user(who.Identity)
	}
	if err != nil {
		return identity.Caller{}, err
	}
	who.Withdrawn = func(ctx context.Context) error { return v.withdrawn(ctx, c, token) }
	return who, nil
}

// withdrawn waits until a token is not accepted any more, and returns the reason; nil when ctx ends. It was
// accepted by a content.
func (v *Verifier) withdrawn(ctx context.Context, by *content, token string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-by.replaced:
		}
		by = v.current.Load()
		if _, err := v.Verify(ctx, token); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// saltedHash is the hash of a shared key behind its salt.
type saltedHash struct{ salt, sum string }

func (c *content) shared(token string) (identity.Caller, error) {
	var k Key
	ok := false
	for i := 0; i < len(c.salts) && !ok; i++ {
		sum := sha256.Sum256([]byte(c.salts[i] + token))
		k, ok = c.keys[saltedHash{c.salts[i], hex.EncodeToString(sum[:])}]
	}
	switch {
	case !ok:
		return identity.Caller{},
			errors.New(
				"the token is not known here: send a token of an accepted issuer, or a key that is in the file of --tokens")
	case !k.Expires.IsZero() && time.Now().After(k.Expires):
		return identity.Caller{}, fmt.Errorf("the key of %s has expired: use a new one", k.Identity)
	}
	who, err := identity.ParsePath("/" + k.Identity)
	return identity.Caller{Identity: who, Groups: identity.Groups(k.Groups), Proof: "shared key", Expires: k.Expires},
		err
}

func (c *content) signed(ctx context.Context, token string) (identity.Caller, error) {
	i, ok := c.issuers[issuerOf(token)]
	if !ok {
		return identity.Caller{},
			errors.New("the token's issuer is not accepted here: get a token of one that is in the file of --tokens")
	}
	verified, err := i.verifier.Verify(ctx, token)
	if err != nil {
		return identity.Caller{}, fmt.Errorf("the token is not accepted: %s: get a new one from %s for the audience %s",
			reason(err), i.Issuer.Issuer, i.Audience)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return identity.Caller{}, fmt.Errorf("the token's claims: %w", err)
	}
	if err := cmp.Or(checkType(token), i.checkDates(claims), i.checkParty(claims, len(verified.Audience)),
		c.denied.check(claims)); err != nil {
		return identity.Caller{}, fmt.Errorf("the token is not accepted: %w", err)
	}
	who, err := i.identity(claims)
	if err != nil {
		return identity.Caller{}, err
	}
	if c.ofAnotherIssuer((*Issuer).prefix, i.prefix(), who.Name) {
		return identity.Caller{},
			fmt.Errorf(
				"the token is not accepted: the name %s begins with the prefix of another issuer's users: ask for another name", who.Name)
	}
	groups := slices.DeleteFunc(i.groups(texts(claims[i.GroupsClaim])), func(group string) bool {
		return c.ofAnotherIssuer((*Issuer).groupsPrefix, i.groupsPrefix(), group)
	})
	return identity.Caller{
		Identity: who, Groups: groups, Proof: "token of " + i.Issuer.Issuer, Token: token,
		Expires: verified.Expiry.Add(i.ClockSkew),
	}, nil
}

// ofAnotherIssuer reports whether a text of an issuer with a prefix begins with the longer prefix of another
// issuer, whose text it could be.
func (c *content) ofAnotherIssuer(prefixOf func(*Issuer) string, prefix, text string) bool {
	for _, other := range c.issuers {
		if p := prefixOf(&other.Issuer); len(p) > len(prefix) && strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}

// check refuses a token that is denied by its claim jti, which is a text (RFC 7519).
func (d Denied) check(claims map[string]any) error {
	id, is := claims["jti"].(string)
	switch {
	case claims["jti"] != nil && !is:
		return errors.New("its claim jti is no text")
	case id != "" && slices.Contains(d.Tokens, id):
		return errors.New("it was withdrawn: get a new one")
	}
	return nil
}

// user returns the error of a user who is denied.
func (d Denied) user(who identity.Identity) error {
	if slices.Contains(d.Identities, who.String()) {
		return fmt.Errorf("%s is denied here: ask an operator", who)
	}
	return nil
}

// issuerOf returns the claim iss of a token that is not verified yet.
func issuerOf(token string) string {
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// reason returns the text for the caller: no addresses of key sets.
func reason(err error) string {
	var expired *oidc.TokenExpiredError
	if errors.As(err, &expired) {
		return "it expired at " + expired.Expiry.UTC().Format(time.RFC3339)
	}
	return strings.TrimPrefix(err.Error(), "oidc: ")
}

func (i *issuer) identity(claims map[string]any) (identity.Identity, error) {
	name, _ := claims[i.IdentityClaim].(string)
	if name == "" {
		return identity.Identity{}, fmt.Errorf("the token has no claim %s, which identifies its user here",
			i.IdentityClaim)
	}
	if verified, ok := claims["email_verified"].(bool); i.IdentityClaim == "email" && (!ok || !verified) {
		return identity.Identity{}, errors.New("the token's claim email is not verified by its issuer")
	}
	who, err := i.user(name)
	if err != nil {
		return who, fmt.Errorf(
			"the token's claim %s cannot be the name of a user here, who needs letters, digits and . _ @ + -: set identity_claim to another claim", i.IdentityClaim)
	}
	return who, nil
}

// texts returns the texts of a claim: a list, or one text.
func texts(claim any) (out []string) {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		for _, e := range claim {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
