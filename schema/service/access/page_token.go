package access

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/schema/peer"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// pageTokens encrypts the page tokens of answers to people. A token has the place of the last row that a page
// read, also where that row is of a resource that the caller may not read.
type pageTokens struct {
	// keys returns the keys of the database; the first one encrypts. Nil: tokens are left as they are.
	keys func(ctx context.Context) ([][]byte, error)

	mu   sync.Mutex
	read time.Time     // guarded by mu; when the keys were read
	of   []cipher.AEAD // guarded by mu; of the keys, in their order
}

// keysAge is the time after which the keys are read again: a process that still used the key from before the
// last but one rotation would make tokens that other processes refuse.
const keysAge = time.Minute

// keysTimeout bounds the time for which a call waits for newer keys, when the primary is silent and its
// answer is of a standby.
const keysTimeout = time.Second

var errPageToken = &peer.InvalidError{
	Resource: "page_token",
	Err:      errors.New("want the next_page_token of an earlier answer to the same request"),
}

// ciphers returns the ciphers of the keys, which are read again when they are old, or anew.
func (p *pageTokens) ciphers(ctx context.Context, anew bool) ([]cipher.AEAD, error) {
	p.mu.Lock()
	of, old := p.of, time.Since(p.read) >= keysAge
	p.mu.Unlock()
	if !anew && !old {
		return of, nil
	}
	if of != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, keysTimeout)
		defer cancel()
	}
	keys, err := p.keys(ctx)
	switch {
	case err != nil && of != nil:
		return of, nil
	case err != nil:
		return nil, err
	}
	of = nil
	for _, key := range keys {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte("page token"))
		block, err := aes.NewCipher(h.Sum(nil))
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		of = append(of, aead)
	}
	p.mu.Lock()
	p.read, p.of = time.Now(), of
	p.mu.Unlock()
	return of, nil
}

// seal replaces the page token in an answer of a method.
func (p *pageTokens) seal(ctx context.Context, method string, out any) error {
	m, f := pageTokenOf(out, "next_page_token")
	if p.keys == nil || m == nil || m.Get(f).String() == "" {
		return nil
	}
	ciphers, err := p.ciphers(ctx, false)
	if err != nil {
		return err
	}
	sealed := ciphers[0].Seal(nil, nil, []byte(m.Get(f).String()), []byte(method))
	m.Set(f, protoreflect.ValueOfString(base64.RawURLEncoding.EncodeToString(sealed)))
	return nil
}

// open returns a request of a method with the page token as it was before seal. It fails with
// *peer.InvalidError.
func (p *pageTokens) open(ctx context.Context, method string, req any) (any, error) {
	if _, is := req.(*resourcev1.MutateAndValidateResourceRequest); is {
		return req, nil // the token is in a refusal, and of the references that the caller writes
	}
	m, f := pageTokenOf(req, "page_token")
	if p.keys == nil || m == nil || m.Get(f).String() == "" {
		return req, nil
	}
	sealed, err := base64.RawURLEncoding.DecodeString(m.Get(f).String())
	if err != nil {
		return nil, errPageToken
	}
	for _, anew := range []bool{false, true} {
		ciphers, err := p.ciphers(ctx, anew)
		if err != nil {
			return nil, err
		}
		for _, aead := range ciphers {
			if token, err := aead.Open(nil, nil, sealed, []byte(method)); err == nil {
				opened := proto.Clone(req.(proto.Message))
				opened.ProtoReflect().Set(f, protoreflect.ValueOfString(string(token)))
				return opened, nil
			}
		}
	}
	return nil, errPageToken
}

// pageTokenOf returns a message and its field with a name; nil if it has none.
func pageTokenOf(of any, name protoreflect.Name) (protoreflect.Message, protoreflect.FieldDescriptor) {
	in, is := of.(proto.Message)
	if !is {
		return nil, nil
	}
	m := in.ProtoReflect()
	f := m.Descriptor().Fields().ByName(name)
	if f == nil || !m.IsValid() {
		return nil, nil
	}
	return m, f
}
