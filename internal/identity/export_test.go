package identity

import (
	"crypto/tls"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/proto"
)

// LoadUnchecked is Load for tests that show an invalid certificate.
func LoadUnchecked(f Files) (*Credentials, error) {
	m, err := read(f)
	if err != nil {
		return nil, err
	}
	c := &Credentials{source: f, trustDomain: spiffeid.RequireTrustDomainFromString("playground.db-controller.dev")}
	c.current.Store(m)
	return c, nil
}

// Anonymous returns credentials without a certificate that trust the same authorities as others.
func Anonymous(like *Credentials) *Credentials {
	c := &Credentials{trustDomain: like.trustDomain}
	c.current.Store(&material{cert: tls.Certificate{}, roots: like.current.Load().roots})
	return c
}

// CountEncodings counts the messages that are encoded until the end of the test.
func CountEncodings(t interface{ Cleanup(f func()) }) *atomic.Int64 {
	n, was := &atomic.Int64{}, encode
	encode = func(m proto.Message) ([]byte, error) {
		n.Add(1)
		return was(m)
	}
	t.Cleanup(func() { encode = was })
	return n
}
