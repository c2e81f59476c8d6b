// Package workload takes certificates from a SPIFFE Workload API, such as the socket of a SPIRE agent,
// instead of files. Keys are in memory alone. The agent sends renewed certificates before the old ones end.
package workload

import (
	"context"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"

	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/db-controller/db-controller/internal/identity"
)

// IsAddress reports whether a text is the address of a Workload API, such as
// unix:///run/spire/agent/public/api.sock, and no folder.
func IsAddress(text string) bool {
	return strings.HasPrefix(text, "unix:") || strings.HasPrefix(text, "tcp:")
}

// Source has the certificates that the Workload API has sent last for one identity.
type Source struct {
	address string
	who     identity.Identity
	end     context.CancelFunc
	ended   chan struct{} // closed when the watch has ended
	first   chan struct{} // closed with the first certificate

	mu  sync.Mutex
	pem [4]string // guarded by mu
	err error     // guarded by mu; the last one
}

// Open connects with a Workload API, and waits until it sends a certificate of an identity, or ctx ends. The
// source lives until Close.
func Open(ctx context.Context, address string, who identity.Identity) (*Source, error) {
	if err := workloadapi.ValidateAddress(address); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	watch, end := context.WithCancel(context.WithoutCancel(ctx))
	client, err := workloadapi.New(watch, workloadapi.WithAddr(address))
	if err != nil {
		end()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	s := &Source{address: address, who: who, end: end, ended: make(chan struct{}), first: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = client.WatchX509Context(watch, s) // its errors arrive at OnX509ContextWatchError
		_ = client.Close()
	}()
	select {
	case <-s.first:
		return s, nil
	case <-ctx.Done():
		err := fmt.Errorf("%s: no certificate of %s: %w", address, who, s.problem(ctx.Err()))
		s.Close()
		return nil, err
	}
}

// Close ends the watch, and waits for its end.
func (s *Source) Close() {
	s.end()
	<-s.ended
}

func (s *Source) problem(otherwise error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	return otherwise
}

// String names the certificate.
func (s *Source) String() string { return "of " + s.address }

// PEM returns the certificates that were sent last. While the Workload API is away they stay in use.
func (s *Source) PEM() ([4]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pem, nil
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (s *Source) OnX509ContextUpdate(sent *workloadapi.X509Context) {
	text, err := s.encode(sent)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.err = err
		return
	}
	if s.pem == ([4]string{}) {
		close(s.first)
	}
	s.pem, s.err = text, nil
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher. The watch is opened again by itself.
func (s *Source) OnX509ContextWatchError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// encode returns the certificate of the identity, its key and the authorities of its trust domain.
// Authorities of other trust domains are not taken: their certificates prove no identity here.
func (s *Source) encode(sent *workloadapi.X509Context) (text [4]string, err error) {
	var others []string
	for _, svid := range sent.SVIDs {
		if id, err := identity.ParsePath(svid.ID.Path()); err != nil || id != s.who {
			others = append(others, svid.ID.String())
			continue
		}
		certificate, key, err := svid.Marshal()
		if err != nil {
			return text, err
		}
		bundle, err := sent.Bundles.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
		if err != nil {
			return text, err
		}
		var authorities strings.Builder
		for _, a := range bundle.X509Authorities() {
			_ = pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: a.Raw}) // a builder takes everything
		}
		return [4]string{string(certificate), string(key), authorities.String(), ""}, nil
	}
	return text,
		fmt.Errorf("the Workload API has certificates of %s, and none of %s: register an entry for this process",
			strings.Join(others, ", "), s.who)
}
