package identity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema"
)

var here = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

// anyIdentity draws a valid identity of each role.
func anyIdentity() *rapid.Generator[Identity] {
	name := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._@+-]{0,20}`)
	return rapid.Custom(func(t *rapid.T) Identity {
		role := rapid.SampledFrom([]Role{RoleDeployment, RoleUser, RoleOperator, RoleRegistry, RoleApplication}).
			Draw(t, "role")
		switch role {
		case RoleDeployment:
			return Deployment(here)
		case RoleRegistry:
			return Identity{Role: role}
		case RoleApplication:
			return Identity{Role: role, Name: "iam.example.com/" + name.Draw(t, "name")}
		default:
			return Identity{Role: role, Name: name.Draw(t, "name")}
		}
	})
}

// Paths are in certificates, headers, grants and records: each names one identity.
func TestAPathNamesOneIdentity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := anyIdentity().Draw(t, "id")
		back, err := ParsePath(id.Path())
		require.NoError(t, err)
		require.Equal(t, id, back)
		require.Equal(t, "/"+id.String(), id.Path())
		if id.Role == RoleApplication {
			require.Equal(t, "iam.example.com", id.ServiceOf())
		}
	})
	for _, path := range []string{
		"", "/", "/user", "/user/", "/user/a/b", "/user/a b", "/user/-a", "/user/a\n", "/root/a", "/registry/x",
		"/deployment/iam.example.com",
		"/deployment/IAM/us", "/application/iam.example.com", "/application/x y/booking",
		"/user/" + strings.Repeat("a", 128),
	} {
		_, err := ParsePath(path)
		require.Error(t, err, "%q", path)
	}
}

// Only valid and different names of groups count, and a bounded number of them: a token may list thousands.
func TestGroupsAreValidDifferentAndBounded(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"team-a", "ops"},
		Groups([]string{"team-a", "", "a b", "ops", "team-a", "-x", strings.Repeat("g", 200)}))
	var many []string
	for range 3 * maxGroups {
		many = append(many, "g"+strings.Repeat("x", len(many)%100)+"-"+string(rune('a'+len(many)/100)))
	}
	require.Len(t, Groups(many), maxGroups)
	require.Nil(t, Groups(nil))
}

func TestTheRecordShowsHowAnIdentityWasProved(t *testing.T) {
	t.Parallel()
	ann := Caller{Identity: Identity{Role: RoleUser, Name: "ann"}}
	require.Equal(t, "user/ann", ann.Audited())
	ann.Proof = ByCertificate
	require.Equal(t, "user/ann", ann.Audited())
	ann.Proof = "token of https://idp.example.org"
	require.Equal(t, "user/ann (token of https://idp.example.org)", ann.Audited())
}

// within returns the context of a call over a connection.
func within(info Info) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info})
}

// anonymous is the context of a call over a connection without a certificate.
func anonymous() context.Context { return within(Info{Identity: Identity{Role: roleAnonymous}}) }

// A call without a proof has no caller, and the error names the missing proof.
func TestACallerHasAProof(t *testing.T) {
	t.Parallel()
	ann := Identity{Role: RoleUser, Name: "ann"}
	for says, ctx := range map[string]context.Context{
		"the call has no peer":                       context.Background(),
		"the connection has no verified certificate": peer.NewContext(context.Background(), &peer.Peer{}),
		"no certificate and the call no token":       anonymous(),
		"the certificate of user/ann has expired": within(Info{
			Identity: ann,
			NotAfter: time.Now().Add(-time.Second),
		}),
	} {
		_, err := FromContext(ctx)
		require.ErrorContains(t, err, says)
	}
	c, err := CallerFromContext(within(Info{
		Identity: ann, groups: []string{"ops"},
		NotAfter: time.Now().Add(time.Hour),
	}))
	require.NoError(t, err)
	require.Equal(t, Caller{Identity: ann, Groups: []string{"ops"}, Proof: ByCertificate}, c)
	id, err := FromContext(NewContext(anonymous(), ann))
	require.NoError(t, err)
	require.Equal(t, ann, id)
}

// verifier proves one token.
type verifier struct{ asked []string }

func (v *verifier) Verify(_ context.Context, token string) (Caller, error) {
	v.asked = append(v.asked, token)
	if token != "good" {
		return Caller{}, errors.New("the token is not of a known issuer")
	}
	return Caller{Identity: Identity{Role: RoleUser, Name: "ann"}, Proof: "token", Token: token}, nil
}

// A token replaces the identity of a person's connection, never a deployment's identity. A call with a wrong
// token is refused, and not anonymous.
func TestTokensAreVerified(t *testing.T) {
	t.Parallel()
	user := within(Info{Identity: Identity{Role: RoleUser, Name: "bob"}, NotAfter: time.Now().Add(time.Hour)})
	deployment := within(Info{Identity: Deployment(here), NotAfter: time.Now().Add(time.Hour)})
	for _, c := range []struct {
		ctx    context.Context
		header []string
		says   string // the error; empty: it is ann
	}{
		{anonymous(), []string{"Bearer good"}, ""},
		{anonymous(), []string{"bearer good"}, ""},
		{user, []string{"BEARER good"}, ""},
		{user, []string{"Bearer bad"}, "the token is not of a known issuer"},
		{user, []string{"Basic good"}, "not of the form Bearer TOKEN"},
		{user, []string{"Bearer "}, "not of the form Bearer TOKEN"},
		{user, []string{"Bearer good", "Bearer good"}, "not of the form Bearer TOKEN"},
		{deployment, []string{"Bearer good"}, "proves itself by its certificate alone"},
	} {
		ctx, err := Authenticate(c.ctx, metadata.MD{Bearer: c.header}, &verifier{})
		if c.says != "" {
			require.Equal(t, codes.Unauthenticated, status.Code(err))
			require.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		got, err := CallerFromContext(ctx)
		require.NoError(t, err)
		require.Equal(t, "user/ann", got.String())
	}
	ctx, err := Authenticate(user, nil, nil)
	require.NoError(t, err)
	require.Equal(t, user, ctx, "without a token the connection decides")
	_, err = Authenticate(user, metadata.MD{Bearer: {"Bearer good"}}, nil)
	require.ErrorContains(t, err, "this server accepts no tokens")
}

// Programs that renew a token replace the file; a file without one token is an error before anything is sent.
func TestATokenIsReadForEachCall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	f := TokenFile(path)
	require.True(t, f.RequireTransportSecurity())
	_, err := f.GetRequestMetadata(context.Background())
	require.ErrorContains(t, err, "read the token: ")
	for _, text := range []string{"", " \n", "a b", "a\nb"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := f.GetRequestMetadata(context.Background())
		require.ErrorContains(t, err, "does not contain one token", "%q", text)
	}
	for _, token := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
		header, err := f.GetRequestMetadata(context.Background())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"authorization": "Bearer " + token}, header)
	}
}

// watching is a stream of a caller.
type watching struct {
	grpc.ServerStream
	ctx context.Context
}

func (w watching) Context() context.Context { return w.ctx }

func TestAPolicyDecidesAboutCallsAndStreams(t *testing.T) {
	t.Parallel()
	p := Policy{"/s/Get": Anybody, "/s/Decide": {RoleOperator}}
	for _, c := range []struct {
		id     Identity
		method string
		want   codes.Code
	}{
		{Identity{Role: RoleUser, Name: "a"}, "/s/Get", codes.OK},
		{Identity{Role: RoleUser, Name: "a"}, "/s/Decide", codes.PermissionDenied},
		{Identity{Role: RoleOperator, Name: "a"}, "/s/Decide", codes.OK},
		{Identity{Role: RoleApplication, Name: "s/a"}, "/s/Get", codes.PermissionDenied},
		{Identity{Role: RoleOperator, Name: "a"}, "/s/New", codes.PermissionDenied},
	} {
		ctx := NewContext(context.Background(), c.id)
		handled := 0
		_, err := p.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method},
			func(context.Context, any) (any, error) {
				handled++
				return nil, nil
			})
		require.Equal(t, c.want, status.Code(err), "%+v", c)
		err = p.Stream(nil, watching{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: c.method},
			func(any, grpc.ServerStream) error {
				handled++
				return nil
			})
		require.Equal(t, c.want, status.Code(err), "%+v", c)
		require.Equal(t, map[bool]int{true: 2}[c.want == codes.OK], handled)
	}
	_, err := p.Unary(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/Get"}, nil)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

// tapped begins a call of an identity, and returns the function that ends it.
func tapped(l *Limiter, who Identity, onBehalfOf ...string) (end func(), err error) {
	ctx, cancel := context.WithCancel(NewContext(context.Background(), who))
	header := metadata.MD{}
	if len(onBehalfOf) > 0 {
		header.Set(OnBehalfOf, onBehalfOf...)
	}
	_, err = l.Tap(ctx, &tap.Info{Header: header})
	return cancel, err
}

// A person whose calls a deployment forwards has a share of the forwarded calls, and neither counts as the
// deployment's own calls.
func TestForwardedCallsAreCountedForThePersonAndTheForwarder_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var refused []string
		l := NewLimiter(Limits{Connections: 1, Calls: 2, Forwarded: 2, Forwarding: 3}, func(what string, who Identity) {
			refused = append(refused, what+" "+string(who.Role)+" "+who.Name)
		})
		west := Deployment(here)
		var ends []func()
		accepted := func(who Identity, onBehalfOf ...string) {
			t.Helper()
			end, err := tapped(l, who, onBehalfOf...)
			require.NoError(t, err)
			ends = append(ends, end)
		}
		accepted(west, "/user/ann")
		accepted(west, "/user/ann")
		_, err := tapped(l, west, "/user/ann")
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.ErrorContains(t, err, "has the maximum number of calls in progress")
		accepted(west, "/user/bob")
		_, err = tapped(l, west, "/user/carl")
		require.ErrorContains(t, err, "iam.example.com/us-west2 forwards the maximum number of calls")
		_, err = tapped(l, west, "nonsense")
		require.Error(t, err, "a header that names nobody counts for the forwarder")
		accepted(west)
		accepted(west)
		accepted(Identity{Role: RoleUser, Name: "ann"}, "/user/bob")
		require.Equal(t, []string{"calls user ann", "calls forwarder ", "calls forwarder "}, refused)
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		require.Empty(t, l.in, "nothing is counted after the calls, refused ones included")
		_, err = l.Tap(context.Background(), &tap.Info{})
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	})
}

// Random calls of few identities: no identity is above its limit, or refused below it, and all counts return
// to zero.
func TestCallsAreLimitedForEachIdentity_I20(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(1, 4).Draw(rt, "most")
		l := NewLimiter(Limits{Calls: most}, nil)
		open := map[Identity]int{}
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			who := Identity{Role: RoleUser, Name: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "who")}
			if rapid.Bool().Draw(rt, "begins") {
				require.Equal(rt, open[who] < most, l.change(who, 0, 1))
				open[who] = min(open[who]+1, most)
			} else if open[who] > 0 {
				require.True(rt, l.change(who, 0, -1))
				open[who]--
			}
		}
		for who, n := range open {
			for range n {
				require.True(rt, l.change(who, 0, -1))
			}
		}
		require.Empty(rt, l.in)
	})
}

// The memory of a decoded message is known before it is decoded: each value counts, in every kind of
// container.
func TestTheMemoryOfAMessageIsEstimated_I20(t *testing.T) {
	t.Parallel()
	estimate := func(m proto.Message) int64 {
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		bytes, err := DecodedBytes(m.ProtoReflect().Descriptor(), raw)
		require.NoError(t, err)
		return bytes
	}
	list := func(n int) *structpb.ListValue {
		l := &structpb.ListValue{}
		for range n {
			l.Values = append(l.Values, structpb.NewNullValue())
		}
		return l
	}
	fields := func(n int) *structpb.Struct {
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := range n {
			s.Fields[strings.Repeat("k", i+1)] = structpb.NewNullValue()
		}
		return s
	}
	require.Equal(t, int64(messageBytes), estimate(&structpb.Struct{}))
	each := estimate(list(1001)) - estimate(list(1000))
	require.GreaterOrEqual(t, each, int64(messageBytes+fieldBytes), "an element has four bytes on the wire")
	require.GreaterOrEqual(t, estimate(fields(1))-estimate(fields(0)), int64(mapBytes))
	require.Equal(t, int64(entryBytes+1), estimate(fields(9))-2*estimate(fields(8))+estimate(fields(7)),
		"a map grows, and each key is longer by one")
	require.Equal(t, int64(1000), estimate(structpb.NewStringValue(strings.Repeat("x", 2000)))-estimate(
		structpb.NewStringValue(strings.Repeat("x", 1000))))
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "raw")
		bytes, err := DecodedBytes((&structpb.Struct{}).ProtoReflect().Descriptor(), raw)
		if proto.Unmarshal(raw, &structpb.Struct{}) == nil {
			require.NoError(t, err, "what can be decoded can be estimated")
			require.GreaterOrEqual(t, bytes, int64(messageBytes))
		}
	})
}

func TestALevelTooDeepIsNotRead(t *testing.T) {
	t.Parallel()
	var raw []byte
	for range 3 {
		raw = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), raw) // a value of a list
		raw = protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), raw) // a list of a value
	}
	of := (&structpb.Value{}).ProtoReflect().Descriptor()
	_, err := decodedLevel(of, raw, 7)
	require.NoError(t, err)
	_, err = decodedLevel(of, raw, 6)
	require.ErrorContains(t, err, "levels")
	_, err = DecodedBytes(of, raw[:len(raw)-1])
	require.Error(t, err, "a message that ends in the middle")
}
