package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
)

// Caller is an identity with its groups, and how both were proved.
type Caller struct {
	Identity
	Groups []string
	// Proof is how the identity was proved, such as "certificate" or "token of https://idp.example.org".
	Proof string
	// WordOf is the deployment whose word is all the proof; zero for other proofs.
	WordOf Identity
	// Token is the signed token that proved it, for other deployments; empty for a certificate and for a
	// shared key.
	Token string
	// Expires is the end of the token's validity; zero for other proofs.
	Expires time.Time
	// Withdrawn waits until the token is not accepted any more, and returns the reason; nil when the context
	// ends. It is nil for other proofs: the connection of a certificate that is revoked is closed.
	Withdrawn func(context.Context) error
}

// Audited returns the caller for the record of removals and for logs: how the identity was proved is added,
// unless by a certificate.
func (c Caller) Audited() string {
	if c.Proof == "" || c.Proof == ByCertificate {
		return c.Identity.String()
	}
	return c.Identity.String() + " (" + c.Proof + ")"
}

// ByCertificate is the proof of a verified certificate.
const ByCertificate = "certificate"

// maxGroups bounds the groups of one caller.
const maxGroups = 100

// Groups returns the valid and different ones of the names of groups, at most 100: grants cannot name any
// other.
func Groups(names []string) (groups []string) {
	for _, name := range names {
		if len(groups) < maxGroups && schema.CheckGroup(name) == nil && !slices.Contains(groups, name) {
			groups = append(groups, name)
		}
	}
	return groups
}

// TokenVerifier verifies the tokens of people and programs.
type TokenVerifier interface {
	// Verify returns the caller that a token proves. Its error is for the caller: a reason and a remedy.
	Verify(ctx context.Context, token string) (Caller, error)
}

// Bearer is the header with a caller's token.
const Bearer = "authorization"

type contextKey struct{}

// NewContext returns a context with the identity of an in-process call.
func NewContext(ctx context.Context, id Identity) context.Context {
	return NewCallerContext(ctx, Caller{Identity: id})
}

// NewCallerContext returns a context with a caller whose identity is proved.
func NewCallerContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the identity of the caller: from an in-process call, a token, or the connection's
// certificate.
func FromContext(ctx context.Context) (Identity, error) {
	c, err := CallerFromContext(ctx)
	return c.Identity, err
}

// CallerFromContext returns the caller with groups and proof.
func CallerFromContext(ctx context.Context) (Caller, error) {
	if c, ok := ctx.Value(contextKey{}).(Caller); ok {
		return c, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, errors.New("the call has no peer")
	}
	info, ok := p.AuthInfo.(Info)
	if !ok {
		return Caller{}, errors.New("the connection has no verified certificate")
	}
	if info.anonymous() {
		return Caller{},
			errors.New(
				"the connection has no certificate and the call no token: connect with a certificate, or send a token in the header authorization")
	}
	// The certificate may have expired since the handshake.
	if info.expired() {
		return Caller{}, fmt.Errorf("the certificate of %s has expired: connect again with a new one", info.Identity)
	}
	return Caller{Identity: info.Identity, Groups: info.groups, Proof: ByCertificate}, nil
}

// groupsOf returns the groups in a certificate: its organizational units.
func groupsOf(cert *x509.Certificate) []string { return Groups(cert.Subject.OrganizationalUnit) }

// Authenticate returns a context with the caller that the token in the headers proves; without a token, ctx
// as it is. The verifier is nil where no tokens are accepted.
func Authenticate(ctx context.Context, headers metadata.MD, verifier TokenVerifier) (context.Context, error) {
	values := headers.Get(Bearer)
	if len(values) == 0 {
		return ctx, nil
	}
	c, err := authenticated(ctx, values, verifier)
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	return NewCallerContext(ctx, c), nil
}

func authenticated(ctx context.Context, values []string, verifier TokenVerifier) (Caller, error) {
	if verifier == nil {
		return Caller{}, errors.New("this server accepts no tokens: connect with a certificate")
	}
	if by, err := FromContext(ctx); err == nil && by.Role != RoleUser && by.Role != RoleOperator {
		return Caller{}, fmt.Errorf("%s proves itself by its certificate alone: send no token", by)
	}
	token, ok := bearer(values[0])
	if !ok || len(values) > 1 {
		return Caller{}, errors.New("the header authorization is not of the form Bearer TOKEN")
	}
	return verifier.Verify(ctx, token)
}

func bearer(value string) (token string, ok bool) {
	const scheme = "bearer "
	if len(value) <= len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	return value[len(scheme):], true
}
