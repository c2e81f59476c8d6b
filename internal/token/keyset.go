package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// maxKeySetBytes bounds a key set.
	maxKeySetBytes = 1 << 20
	// fetchTimeout bounds a request for a key set: the connection of the caller whose token needs it waits.
	fetchTimeout = 3 * time.Second
	// fetchPause is the least time between two requests, so that tokens with invented key ids cause no more.
	fetchPause   = 10 * time.Second
	maxRedirects = 3
	// keysAge is the age at which keys are read again, so that a withdrawn key is not accepted for longer.
	keysAge = 5 * time.Minute
)

// keysClient follows redirects to https only: without TLS any machine on the way could replace the keys.
var keysClient = &http.Client{CheckRedirect: func(to *http.Request, via []*http.Request) error {
	if to.URL.Scheme != "https" || len(via) > maxRedirects {
		return errors.New("want a redirect to https, and not many")
	}
	return nil
}}

// keySet are the public keys of an issuer, from a file or a URL. It implements oidc.KeySet.
type keySet struct {
	from string

	fetching sync.Mutex // held during a request: others wait for its result

	mu      sync.Mutex
	keys    []jose.JSONWebKey // guarded by mu
	read    time.Time         // guarded by mu; of the keys
	tried   time.Time         // guarded by mu; of the last try
	problem error             // guarded by mu; of the last try
}

func (k *keySet) remote() bool {
	return strings.HasPrefix(k.from, "https://") || strings.HasPrefix(k.from, "http://")
}

// allowedAlgorithms has the algorithms of all issuers: an issuer's verifier compares the token's algorithm
// with its own before.
var allowedAlgorithms = func() (out []jose.SignatureAlgorithm) {
	for _, a := range asymmetric {
		out = append(out, jose.SignatureAlgorithm(a))
	}
	return out
}()

// VerifySignature returns the content of a token that one of the keys has signed. The token's key id is
// looked for again, now and then, when no key has it: the issuer may have a new key.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, allowedAlgorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, errors.New("it is not a signed token of an accepted form")
	}
	id := signed.Signatures[0].Header.KeyID
	keys, err := k.withID(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if content, err := signed.Verify(key.Key); err == nil {
			return content, nil
		}
	}
	return nil, errors.New("none of its issuer's keys has signed it")
}

// withID returns the keys that may have signed a token: those with its key id, or all when it has none.
func (k *keySet) withID(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	found, fresh := k.find(id)
	if len(found) > 0 && fresh || !k.remote() {
		return found, nil
	}
	if err := k.refresh(ctx); err != nil && len(found) == 0 {
		return nil, fmt.Errorf("its issuer's keys cannot be read: %w", err)
	}
	// Keys of before are used while the issuer does not answer.
	found, _ = k.find(id)
	return found, nil
}

func (k *keySet) find(id string) (found []jose.JSONWebKey, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		if id == "" || key.KeyID == id {
			found = append(found, key)
		}
	}
	return found, time.Since(k.read) < keysAge
}

// refresh reads a remote key set, unless that was tried just now.
func (k *keySet) refresh(ctx context.Context) error {
	k.fetching.Lock()
	defer k.fetching.Unlock()
	k.mu.Lock()
	if time.Since(k.tried) < fetchPause {
		defer k.mu.Unlock()
		return k.problem
	}
	k.tried = time.Now()
	k.mu.Unlock()
	err := k.load(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problem = err
	return err
}

// load reads the key set. After an error the former keys stay.
func (k *keySet) load(ctx context.Context) error {
	raw, err := k.content(ctx)
	if err != nil {
		return err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(raw, &set); err != nil {
		return fmt.Errorf("key set %s: %w", k.from, err)
	}
	var keys []jose.JSONWebKey
	for _, key := range set.Keys {
		if key.Valid() && key.IsPublic() && key.Use != "enc" { // not the secret of a symmetric algorithm
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return fmt.Errorf("key set %s: it has no public key for signatures", k.from)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.read = keys, time.Now()
	return nil
}

func (k *keySet) content(ctx context.Context) ([]byte, error) {
	if !k.remote() {
		return os.ReadFile(k.from)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout) // other callers wait for it as well
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.from, nil)
	if err != nil {
		return nil, err
	}
	answer, err := keysClient.Do(req)
	if err != nil {
		return nil, errors.New("no answer")
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, maxKeySetBytes))
}
