package playground

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/db-controller/db-controller/schema/identity"
)

// trustDomain of a playground's certificates.
const trustDomain = "playground.db-controller.dev"

// Authority makes certificates for one playground. Its key is never written down.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// validity of certificates; a playground does not live longer.
const validity = 30 * 24 * time.Hour

// NewAuthority makes an authority of its own.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template, err := template("db-controller playground")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	template.URIs = []*url.URL{{Scheme: "spiffe", Host: trustDomain}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity)}, nil
}

// Issue writes tls.crt, tls.key and ca.crt for an identity into a folder.
func (a *Authority) Issue(dir string, id identity.Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	t, err := template(id.String())
	if err != nil {
		return err
	}
	t.URIs = []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: id.Path()}}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("issue a certificate for %s: %w", id, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("issue a certificate for %s: %w", id, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{{"tls.crt", "CERTIFICATE", der}, {"tls.key", "PRIVATE KEY", keyDER}, {"ca.crt", "CERTIFICATE", a.cert.Raw}} {
		block := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(dir, f.name), block, 0o600); err != nil {
			return fmt.Errorf("issue a certificate for %s: %w", id, err)
		}
	}
	return nil
}
