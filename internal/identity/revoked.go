package identity

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
)

// revoked is the set of revoked certificates, by issuer and serial number (RFC 5280, section 5).
type revoked map[string]bool

func revokedKey(issuer []byte, serial string) string { return string(issuer) + "\x00" + serial }

// has reports whether a certificate of the chain is revoked.
func (r revoked) has(chain []*x509.Certificate) bool {
	return slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
		return r[revokedKey(c.RawIssuer, c.SerialNumber.String())]
	})
}

// readRevoked parses revocation lists in PEM. Each must be signed by one of the authorities, in PEM as well.
// A list is valid after its next update was due, too: its certificates stay revoked.
func readRevoked(lists, authorities []byte) (revoked, error) {
	var issuers []*x509.Certificate
	for block := range blocks(authorities, "CERTIFICATE") {
		if cert, err := x509.ParseCertificate(block); err == nil {
			issuers = append(issuers, cert)
		}
	}
	out, found := revoked{}, false
	for block := range blocks(lists, "X509 CRL") {
		list, err := x509.ParseRevocationList(block)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(issuers, func(by *x509.Certificate) bool {
			return list.CheckSignatureFrom(by) == nil
		}) {
			return nil, errors.New("a list is not signed by any of the authorities")
		}
		found = true
		for _, entry := range list.RevokedCertificateEntries {
			out[revokedKey(list.RawIssuer, entry.SerialNumber.String())] = true
		}
	}
	if len(lists) > 0 && !found {
		return nil, errors.New("it contains no list in PEM")
	}
	return out, nil
}

// blocks returns the contents of the PEM blocks of a type.
func blocks(raw []byte, kind string) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == kind && !yield(block.Bytes) {
				return
			}
		}
	}
}
