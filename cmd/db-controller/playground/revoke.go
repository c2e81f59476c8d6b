package playground

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Revoke adds the serial numbers of certificates to the authority's revocation list, ca.crl in dir, and
// copies the list to each folder.
func (a *Authority) Revoke(dir string, certFiles, folders []string) error {
	path := filepath.Join(dir, "ca.crl")
	list, err := a.revocations(path)
	if err != nil {
		return err
	}
	for _, file := range certFiles {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("revoke: %w", err)
		}
		cert, err := x509.ParseCertificate(blockOf(raw))
		if err != nil {
			return fmt.Errorf("revoke %s: %w", file, err)
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		return fmt.Errorf(
			"sign the revocation list (an authority made by an old version cannot sign one: make a new authority): %w",
			err)
	}
	for _, folder := range append([]string{dir}, folders...) {
		if err := writePEM(filepath.Join(folder, "ca.crl"), "X509 CRL", der); err != nil {
			return err
		}
	}
	return nil
}

// Share copies the revocation list in the authority's folder, if there is one, to another folder.
func (a *Authority) Share(dir, folder string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(folder, "ca.crl"), "X509 CRL", blockOf(raw))
}

// revocations returns the next list: the entries of the current one, and a greater number.
func (a *Authority) revocations(path string) (*x509.RevocationList, error) {
	next := &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now(),
		NextUpdate: time.Now().Add(authorityValidity),
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return next, nil
	}
	if err != nil {
		return nil, err
	}
	last, err := x509.ParseRevocationList(blockOf(raw))
	if err != nil {
		return nil, fmt.Errorf("read the revocation list %s: %w", path, err)
	}
	next.Number.Add(last.Number, next.Number)
	next.RevokedCertificateEntries = last.RevokedCertificateEntries
	return next, nil
}
