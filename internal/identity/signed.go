package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// ErrNoKey is the error of Sign without a certificate.
var ErrNoKey = errors.New("a certificate is needed to sign: a token proves a call, and signs nothing")

// Sign returns a text with its type, signed by the key of the certificate: a JSON Web Signature (RFC 7515)
// whose header has the certificate with the intermediate ones after it.
func (c *Credentials) Sign(kind string, text []byte) (string, error) {
	cert := c.current.Load().cert
	if cert.PrivateKey == nil {
		return "", ErrNoKey
	}
	algorithm, err := algorithmOf(cert.PrivateKey)
	if err != nil {
		return "", err
	}
	chain := make([]string, len(cert.Certificate))
	for i, der := range cert.Certificate {
		chain[i] = base64.StdEncoding.EncodeToString(der)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: cert.PrivateKey},
		(&jose.SignerOptions{}).WithType(jose.ContentType(kind)).WithHeader("x5c", chain))
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	return signed.CompactSerialize()
}

// signatures are the algorithms of signatures that are accepted: one for each kind of key.
var signatures = []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.EdDSA}

func algorithmOf(key crypto.PrivateKey) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case ed25519.PrivateKey:
		return jose.EdDSA, nil
	case *rsa.PrivateKey:
		return jose.PS256, nil
	case *ecdsa.PrivateKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf(
		"no signature is made by a key of the type %T: use a certificate with a key of ECDSA, Ed25519 or RSA", key)
}

// Signed returns the text of what Sign has made, and the identity that signed it. The certificate must be
// accepted now: it is of this trust domain and its authorities, has not expired, and is not revoked.
func (c *Credentials) Signed(kind, signed string) (text []byte, by Identity, err error) {
	parsed, err := jose.ParseSignedCompact(signed, signatures)
	if err != nil {
		return nil, by, fmt.Errorf("it is no signature: %w", err)
	}
	header := parsed.Signatures[0].Protected
	if is, _ := header.ExtraHeaders[jose.HeaderType].(string); is != kind {
		return nil, by, fmt.Errorf("it is signed as %.40q, not as %s", is, kind)
	}
	m := c.current.Load()
	chains, err := header.Certificates(x509.VerifyOptions{
		Roots:     m.roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, by, fmt.Errorf("the certificate of the signature: %w", err)
	}
	if m.revoked.has(chains[0]) {
		return nil, by, errors.New("the certificate of the signature was revoked")
	}
	leaf := chains[0][0]
	if text, err = parsed.Verify(leaf.PublicKey); err != nil {
		return nil, by, fmt.Errorf("the signature is wrong: %w", err)
	}
	by, err = ofCertificate(leaf, c.trustDomain)
	return text, by, err
}
