package service

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
)

// issued knows one token: ann's, who is in a group.
type issued struct{ required bool }

func (issued) Verify(_ context.Context, token string) (identity.Caller, error) {
	if token != "of ann" {
		return identity.Caller{}, errors.New("a wrong token")
	}
	return identity.Caller{Identity: ann, Groups: []string{"proved"}, Token: token}, nil
}

func (i issued) RequireForwarded() bool { return i.required }

func (issued) Denied(identity.Identity) error { return nil }

// The token of a person travels with the request, and proves the person and the groups; without it they are
// the word of the other region.
func TestTheTokenOfAPersonTravelsWithTheRequest(t *testing.T) {
	t.Parallel()
	sent, _ := metadata.FromOutgoingContext(onBehalf(t.Context(),
		identity.Caller{Identity: ann, Groups: []string{"proved"}, Token: "of ann"}))
	require.Equal(t, []string{"of ann"}, sent.Get(tokenOfCaller))
	require.Empty(t, sent.Get(groupsOfCaller), "the token has them")
	for name, c := range map[string]struct {
		required bool
		headers  []string
		code     codes.Code
		groups   []string
	}{
		"by a token": {
			false,
			[]string{onBehalfOf, ann.Path(), tokenOfCaller, "of ann"},
			codes.OK,
			[]string{"proved"},
		},
		"with groups beside the token": {false, []string{
			onBehalfOf, ann.Path(), tokenOfCaller, "of ann",
			groupsOfCaller, "made-up",
		}, codes.OK, []string{"proved"}},
		"by the token of another one": {
			false,
			[]string{onBehalfOf, "/user/bob", tokenOfCaller, "of ann"},
			codes.Unauthenticated, nil,
		},
		"by a forged token": {
			false,
			[]string{onBehalfOf, ann.Path(), tokenOfCaller, "forged"},
			codes.Unauthenticated, nil,
		},
		"by the region's word": {
			false,
			[]string{onBehalfOf, ann.Path(), groupsOfCaller, "told"},
			codes.OK,
			[]string{"told"},
		},
		"by a word that is not enough": {
			true,
			[]string{onBehalfOf, ann.Path(), groupsOfCaller, "told"},
			codes.Unauthenticated, nil,
		},
		"by a token that is required": {
			true,
			[]string{onBehalfOf, ann.Path(), tokenOfCaller, "of ann"},
			codes.OK,
			[]string{"proved"},
		},
	} {
		f := newTestForwarder(t, sibling)
		f.tokens = issued{c.required}
		ctx, _ := received(as(t, identity.Deployment(sibling)), c.headers...)
		acting, err := f.actFor(ctx, getMethod)
		require.Equal(t, c.code, status.Code(err), "%s: %v", name, err)
		if err == nil {
			who, err := identity.CallerFromContext(acting)
			require.NoError(t, err)
			require.Equal(t, ann, who.Identity, name)
			require.Equal(t, c.groups, who.Groups, name)
		}
	}
}
