// Package token verifies the tokens of people and programs: signed tokens of OpenID Connect issuers, and
// shared keys, of which a file has the hashes. The file, and key sets in files, are read again while the
// process runs.
package token

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/strictyaml"
	"github.com/db-controller/db-controller/schema"
)

// Config is the content of the file of --tokens.
type Config struct {
	Issuers []Issuer `yaml:"issuers"`
	Keys    []Key    `yaml:"keys"`
	Denied  Denied   `yaml:"denied"`
	// RequireForwarded: a person that another deployment speaks for is believed only with the person's own
	// signed token.
	RequireForwarded bool `yaml:"require_forwarded"`
}

// Denied are the users and the tokens that are refused before they expire.
type Denied struct {
	Identities []string `yaml:"identities"` // user/NAME, by any token or key
	Tokens     []string `yaml:"tokens"`     // the claims jti of tokens
}

// Issuer is an OpenID Connect issuer whose tokens are accepted.
type Issuer struct {
	// Issuer and Audience are the values of the claims iss and aud.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
	// JWKS is the file, or the https URL, of its public keys.
	JWKS string `yaml:"jwks"`
	// IdentityClaim has the user's name, sub by default; Prefix comes before it, so that two issuers have
	// different users. A second issuer has to declare it.
	IdentityClaim string  `yaml:"identity_claim"`
	Prefix        *string `yaml:"prefix"`
	// GroupsClaim has a list of groups, groups by default; GroupsPrefix, Prefix by default, comes before
	// each.
	GroupsClaim  string  `yaml:"groups_claim"`
	GroupsPrefix *string `yaml:"groups_prefix"`
	// AuthorizedParties are the clients (claim azp) whose tokens are accepted; empty: all.
	AuthorizedParties []string `yaml:"authorized_parties"`
	// MaxLifetime of a token, from its issue (claim iat) to its end, 24 h by default.
	MaxLifetime time.Duration `yaml:"max_lifetime"`
	// ClockSkew is how long after its end a token is still accepted, one minute by default.
	ClockSkew time.Duration `yaml:"clock_skew"`
	// Algorithms of signatures, RS256 and ES256 by default. All are asymmetric.
	Algorithms []string `yaml:"algorithms"`
}

// Key is the hash of a shared key of a program.
type Key struct {
	// SHA256 is the SHA-256 hash of the key, in hexadecimal digits. The key has at least 128 random bits.
	SHA256   string    `yaml:"sha256"`
	Salt     string    `yaml:"salt"`     // before the key in the hashed text: equal keys have different hashes
	Identity string    `yaml:"identity"` // user/NAME
	Groups   []string  `yaml:"groups"`
	Expires  time.Time `yaml:"expires"` // zero: never
}

// asymmetric are the algorithms that can be allowed: a public key cannot sign.
var asymmetric = []string{
	string(jose.RS256), string(jose.RS384), string(jose.RS512), string(jose.PS256), string(jose.PS384),
	string(jose.PS512),
	string(jose.ES256), string(jose.ES384), string(jose.ES512), string(jose.EdDSA),
}

const (
	maxClockSkew = 5 * time.Minute
	// A token that was stolen is of use for a working day at most.
	defaultLifetime = 24 * time.Hour
	maxIssuerBytes  = 200
	maxSaltBytes    = 64
)

func readConfig(path string) (*Config, []byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("load tokens: %w", err)
	}
	c := &Config{}
	if err := strictyaml.Decode(raw, c); err != nil {
		return nil, nil, fmt.Errorf("load tokens %s: %w", path, err)
	}
	if err := c.complete(); err != nil {
		return nil, nil, fmt.Errorf("load tokens %s: %w", path, err)
	}
	return c, raw, nil
}

// complete checks the configuration and sets its defaults.
func (c *Config) complete() error {
	if len(c.Issuers) == 0 && len(c.Keys) == 0 {
		return errors.New("it has neither issuers nor keys: add one")
	}
	for i := range c.Issuers {
		if err := c.Issuers[i].complete(); err != nil {
			return fmt.Errorf("issuers[%d]: %w", i, err)
		}
		if slices.ContainsFunc(c.Issuers[:i], func(o Issuer) bool { return o.Issuer == c.Issuers[i].Issuer }) {
			return fmt.Errorf("issuers[%d]: %s is listed twice", i, c.Issuers[i].Issuer)
		}
		if i > 0 && c.Issuers[i].Prefix == nil {
			return fmt.Errorf(
				"issuers[%d]: its users would be those of the first issuer: declare prefix, also one that is empty", i)
		}
	}
	for i, who := range c.Denied.Identities {
		if id, err := identity.ParsePath("/" + who); err != nil || id.Role != identity.RoleUser {
			return fmt.Errorf("denied.identities[%d]: %q is not of the form user/NAME", i, who)
		}
	}
	for i, k := range c.Keys {
		if err := k.check(); err != nil {
			return fmt.Errorf("keys[%d]: %w", i, err)
		}
	}
	return nil
}

func (i *Issuer) complete() error {
	for _, field := range []struct{ name, value string }{
		{"issuer", i.Issuer},
		{"audience", i.Audience},
		{"jwks", i.JWKS},
	} {
		if field.value == "" {
			return fmt.Errorf("%s is missing", field.name)
		}
	}
	if len(i.Issuer) > maxIssuerBytes { // the record of removals has it
		return fmt.Errorf("issuer: %d bytes, at most %d are allowed", len(i.Issuer), maxIssuerBytes)
	}
	if i.IdentityClaim == "" {
		i.IdentityClaim = "sub"
	}
	if i.GroupsClaim == "" {
		i.GroupsClaim = "groups"
	}
	if i.MaxLifetime == 0 {
		i.MaxLifetime = defaultLifetime
	}
	if i.MaxLifetime < 0 {
		return fmt.Errorf("max_lifetime %s: want a positive time", i.MaxLifetime)
	}
	if i.ClockSkew == 0 {
		i.ClockSkew = time.Minute
	}
	if i.ClockSkew < 0 || i.ClockSkew > maxClockSkew {
		return fmt.Errorf("clock_skew %s: want at most %s", i.ClockSkew, maxClockSkew)
	}
	if len(i.Algorithms) == 0 {
		i.Algorithms = []string{string(jose.RS256), string(jose.ES256)}
	}
	for _, a := range i.Algorithms {
		if !slices.Contains(asymmetric, a) {
			return fmt.Errorf("algorithm %q: want some of %v", a, asymmetric)
		}
	}
	if _, err := i.user("a"); err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return i.checkURL()
}

// checkURL refuses key sets over the network without TLS.
func (i *Issuer) checkURL() error {
	u, err := url.Parse(i.JWKS)
	if err != nil || u.Scheme != "http" {
		return nil //nolint:nilerr // a file
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("jwks %s: want https, since everybody on the way could replace the keys", i.JWKS)
	}
	return nil
}

// user returns the identity of a user of the issuer.
func (i *Issuer) user(name string) (identity.Identity, error) {
	return identity.ParsePath("/" + string(identity.RoleUser) + "/" + i.prefix() + name)
}

func (i *Issuer) prefix() string {
	if i.Prefix == nil {
		return ""
	}
	return *i.Prefix
}

func (i *Issuer) groupsPrefix() string {
	if i.GroupsPrefix == nil {
		return i.prefix()
	}
	return *i.GroupsPrefix
}

// groups returns the groups of a user of the issuer. The groups of another issuer have another prefix, so
// that a grant to a group holds for one issuer.
func (i *Issuer) groups(names []string) []string {
	prefix := i.groupsPrefix()
	out := make([]string, len(names))
	for j, name := range names {
		out[j] = prefix + name
	}
	return identity.Groups(out)
}

func (k Key) check() error {
	if sum, err := hex.DecodeString(k.SHA256); err != nil || len(sum) != 32 {
		return errors.New("sha256: want the 64 hexadecimal digits of a SHA-256 hash")
	}
	if len(k.Salt) > maxSaltBytes {
		return fmt.Errorf("salt: %d bytes, at most %d are allowed", len(k.Salt), maxSaltBytes)
	}
	who, err := identity.ParsePath("/" + k.Identity)
	if err != nil {
		return err
	}
	if who.Role != identity.RoleUser {
		return fmt.Errorf(
			"identity %s: a key can only be of a user, user/NAME: others prove themselves by a certificate", k.Identity)
	}
	for _, g := range k.Groups {
		if err := schema.CheckGroup(g); err != nil {
			return err
		}
	}
	return nil
}
