package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// No text revokes a certificate, unless the authority has signed that: a list is the one that was signed, or
// is refused.
func FuzzRevocationLists(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign, NotAfter: time.Now().Add(time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	require.NoError(f, err)
	ca, err = x509.ParseCertificate(raw)
	require.NoError(f, err)
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{
			SerialNumber:   big.NewInt(7),
			RevocationTime: time.Now(),
		}},
	}, ca, key)
	require.NoError(f, err)
	authorities := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	good := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})
	f.Add(good, []byte{})
	f.Add(append(append([]byte("a comment\n"), good...), good...), authorities)
	f.Add([]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), []byte("x"))
	f.Add([]byte{}, authorities)
	f.Fuzz(func(t *testing.T, lists, others []byte) {
		_, _ = readRevoked(lists, others) // of authorities that are none
		found, err := readRevoked(lists, authorities)
		if err != nil {
			return
		}
		delete(found, revokedKey(ca.RawSubject, "7"))
		if len(found) > 0 {
			t.Fatalf("%q revokes %d more", lists, len(found))
		}
	})
}
