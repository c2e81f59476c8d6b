package identity

import (
	"crypto/tls"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// LoadUnchecked is Load for tests that show an invalid certificate.
func LoadUnchecked(f Files) (*Credentials, error) {
	m, err := read(f)
	if err != nil {
		return nil, err
	}
	c := &Credentials{files: f, trustDomain: spiffeid.RequireTrustDomainFromString("playground.db-controller.dev")}
	c.current.Store(m)
	return c, nil
}

// Anonymous returns credentials without a certificate that trust the same authorities as others.
func Anonymous(like *Credentials) *Credentials {
	c := &Credentials{trustDomain: like.trustDomain}
	c.current.Store(&material{cert: tls.Certificate{}, roots: like.current.Load().roots})
	return c
}
