package identity

import (
	"crypto/tls"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// LoadUnchecked is Load for who shows what nobody should believe.
func LoadUnchecked(f Files) (*Credentials, error) {
	m, err := read(f)
	if err != nil {
		return nil, err
	}
	c := &Credentials{files: f, trustDomain: spiffeid.RequireTrustDomainFromString("playground.db-controller.dev")}
	c.current.Store(m)
	return c, nil
}

// Anonymous shows no certificate, and believes whom another one believes.
func Anonymous(like *Credentials) *Credentials {
	c := &Credentials{trustDomain: like.trustDomain}
	c.current.Store(&material{cert: tls.Certificate{}, roots: like.current.Load().roots})
	return c
}
