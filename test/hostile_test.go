package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// others runs a function while other callers write, and returns the time of their slowest write.
func (f *fixture) others(during func()) (worst time.Duration) {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	var mu sync.Mutex
	var took []time.Duration
	var g sync.WaitGroup
	resources := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2"))
	for i := range 2 {
		g.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				err := patiently(f.t.Context(), func() error {
					_, err := resources.PutResource(f.t.Context(),
						&resourcev1.PutResourceRequest{
							Resource: &resourcev1.Resource{
								Name: fmt.Sprintf("targets/others%d-%d", i, n%10),
								Body: body(f.t, nil),
							},
						})
					return err
				})
				if err != nil {
					f.t.Errorf("others are refused: %v", err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	during()
	stop()
	g.Wait()
	slices.Sort(took)
	require.NotEmpty(f.t, took, "others got nothing done")
	f.t.Logf("others: %d writes, p50 %s, worst %s", len(took), took[len(took)/2], took[len(took)-1])
	return took[len(took)-1]
}

// memory returns the memory of a deployment's process.
func (f *fixture) memory(deployment string) float64 {
	f.t.Helper()
	return f.metric("//"+deployment+"/x/y", "process_resident_memory_bytes")
}

// dialTLS returns a connection whose frames the test writes itself.
func (f *fixture) dialTLS(certs, deployment string) net.Conn {
	f.t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	require.NoError(f.t, err)
	conn, err := tls.Dial("tcp", f.Deployments[f.id("//"+deployment+"/x/y")].Address, &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // who attacks does not ask
	})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func headersOf(method string) []byte {
	var block strings.Builder
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":path", method},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return []byte(block.String())
}

// 100,000 calls that never send a message, on connections that ignore flow control: other users go on, and
// memory is bounded.
func TestAHostileUserOpensStreams_I20(t *testing.T) {
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t)
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	before := f.memory(deployment)
	block := headersOf(resourcev1.ResourceService_WatchResources_FullMethodName)
	worst := f.others(func() {
		opened := 0
		for range 10 {
			conn := f.dialTLS(certs, deployment)
			_, err := io.WriteString(conn, http2.ClientPreface)
			require.NoError(t, err)
			framer := http2.NewFramer(conn, conn)
			require.NoError(t, framer.WriteSettings())
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			for id := uint32(1); id < 20_000; id += 2 {
				if framer.WriteHeaders(http2.HeadersFrameParam{
					StreamID: id, BlockFragment: block,
					EndHeaders: true,
				}) != nil {
					break // it was cut
				}
				opened++
			}
		}
		t.Logf("%d streams opened", opened)
	})
	require.Less(t, worst, 10*time.Second)
	grown := f.memory(deployment) - before
	t.Logf("memory grew by %.0f MB", grown/1e6)
	require.Less(t, grown, 300e6)
	require.Positive(t, f.metric(aWest+"x/y", `dbcontroller_refused_total{role="user",what="calls"}`))
}

// Connections that never finish their handshake, and calls that arrive byte by byte.
func TestAHostileClientIsSlow_I20(t *testing.T) {
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t)
	certs, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	require.NoError(t, err)
	address := f.Deployments[f.id("//"+deployment+"/x/y")].Address
	worst := f.others(func() {
		var silent []net.Conn
		for range 500 {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			silent = append(silent, conn)
		}
		// A request that arrives slowly, byte by byte: it takes one of this caller's concurrent calls, and
		// none of another caller.
		conn := f.dialTLS(certs, deployment)
		_, err := io.WriteString(conn, http2.ClientPreface)
		require.NoError(t, err)
		framer := http2.NewFramer(conn, conn)
		require.NoError(t, framer.WriteSettings())
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		require.NoError(t,
			framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID:      1,
				BlockFragment: headersOf(resourcev1.ResourceService_PutResource_FullMethodName), EndHeaders: true,
			}))
		// A message of 1 MB is promised.
		require.NoError(t, framer.WriteData(1, false, []byte{0, 0, 16, 0, 0}))
		for range 5 {
			require.NoError(t, framer.WriteData(1, false, []byte{10}))
			<-time.After(200 * time.Millisecond)
		}
		// A connection without a handshake is closed.
		began := time.Now()
		for _, conn := range silent {
			require.NoError(t, conn.SetReadDeadline(began.Add(30*time.Second)))
			_, err := conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
	})
	require.Less(t, worst, 10*time.Second)
}

// A deployment that lies: messages in the name of other deployments have no effect, and its own are bounded.
func TestAHostileDeploymentLies_I2_I7_I16(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	target := f.mustPut(aWest+"targets/t", nil)
	victim := f.mustPut(bWest+"holders/victim", fields{"block": aWest + "targets/t"})
	owned := f.mustPut(aWest+"targets/owned", nil, ownedBy("Holder", bWest+"holders/victim"))
	f.settled()
	shadows, err := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(bWest+"x/y")].Certs,
		"b.example.com/us-west2")).
		ListResourceShadows(t.Context(), &schemav1.ListResourceShadowsRequest{})
	require.NoError(t, err)
	var attempt []byte
	for _, s := range shadows.GetShadows() {
		for _, r := range s.GetReferences() {
			attempt = r.GetAttempt()
		}
	}
	require.Len(t, attempt, 16, "the hostile one knows everything")
	hostile := schemav1.NewSchemaServiceClient(f.as(f.Deployments[f.id(bEast+"x/y")].Certs, "a.example.com/us-west2"))
	ctx := t.Context()
	victimUID, targetUID := uuid.MustParse(victim.GetUid()), uuid.MustParse(target.GetUid())
	key := &schemav1.BlockadeKey{Attempt: attempt, HolderUid: victimUID[:], Path: "block", TargetUid: targetUID[:]}
	epoch := uuid.Must(uuid.NewV7())
	for name, lie := range map[string]func() error{
		"release of one": func() error {
			_, err := hostile.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
				Epoch: epoch[:],
				Keys:  []*schemav1.BlockadeKey{key},
			})
			return err
		},
		"release of attempt": func() error {
			_, err := hostile.ReleaseBlockades(ctx, &schemav1.ReleaseBlockadesRequest{
				Epoch:    epoch[:],
				Attempts: [][]byte{attempt},
			})
			return err
		},
		"a new epoch": func() error {
			_, err := hostile.AnnounceEpoch(ctx, &schemav1.AnnounceEpochRequest{Epoch: epoch[:]})
			return err
		},
		"owners gone": func() error {
			_, err := hostile.DropOwners(ctx, &schemav1.DropOwnersRequest{
				Epoch:       epoch[:],
				DeletedUids: [][]byte{victimUID[:]},
			})
			return err
		},
		"shadows of others": func() error {
			_, err := hostile.ListResourceShadows(ctx, &schemav1.ListResourceShadowsRequest{})
			require.Equal(t, codes.PermissionDenied, status.Code(err))
			return err
		},
		"work of others": func() error {
			stream, err := hostile.WatchResourceShadows(ctx, &schemav1.WatchResourceShadowsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, codes.PermissionDenied, status.Code(err))
			return err
		},
	} {
		t.Logf("%s: %v", name, lie())
	}
	// 10,000 references at once are more than one resource has, 10,001 more than one call may.
	many := &schemav1.EstablishReferencesRequest_Attempt{Attempt: raw(uuid.Must(uuid.NewV7()))}
	for range 10_001 {
		many.References = append(many.References, &schemav1.EstablishReferencesRequest_Reference{
			Holder: &schemav1.ResourceRef{Kind: "Holder", Name: "holders/h", Uid: raw(uuid.New())}, Path: "block",
			Target:    &schemav1.ResourceRef{Kind: "Target", Name: "targets/t"},
			Behaviour: schemav1.Behaviour_BEHAVIOUR_BLOCK,
		})
	}
	err = establishOne(ctx, hostile, many)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "10001 in one call, at most 10000 are allowed")
	f.settled()
	err = f.delete(aWest + "targets/t")
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "the victim's reference still blocks: %v", err)
	got := f.get(aWest + "targets/owned")
	require.Equal(t, owned.GetUid(), got.GetUid())
	require.Len(t, got.GetOwnerReferences(), 1)
}

// Names with a meaning for a shell, SQL, a path, a terminal or a log are refused.
func TestNamesFullOfTricks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	resources := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/us-west2"))
	for _, name := range []string{
		"", "targets", "targets/", "/targets/t", "targets//t", "targets/../t", "targets/.", "targets/..", "targets/t/",
		"targets/t'; DROP TABLE shadow; --",
		`targets/"`, "targets/%s%n", "targets/a b", "targets/a\nb", "targets/a\x00b", "targets/\x1b[31m", "targets/ä",
		"targets/\u202eevil", "targets/😀",
		"targets/a?", "targets/a\\b", "Targets/a", "targets/" + strings.Repeat("a", 505),
		"targets/" + strings.Repeat("a/targets/", 60) + "a",
		"//a.example.com/us-west2/targets/../x", "//evil/../targets/t", "targets/a%2fb", "targets/%2E%2E",
		"targets/a|b", "targets/<script>", "projects/x/" + strings.Repeat("y/z/", 1000),
	} {
		for what, err := range map[string]error{
			"put": second(resources.PutResource(t.Context(),
				&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body(t, nil)}})),
			"get":    second(resources.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: name})),
			"delete": second(resources.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: name})),
			"plan":   second(resources.PlanDeletion(t.Context(), &resourcev1.PlanDeletionRequest{Name: name})),
		} {
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.NotFound}, status.Code(err), "%s of %q: %v",
				what, name, err)
			for _, r := range status.Convert(err).Message() {
				require.False(t, r < ' ' || r == 0x7f || r == 0x202e,
					"%s of %q is answered with a control character: %q", what, name, err)
			}
			require.Less(t, len(status.Convert(err).Message()), 600)
		}
	}
	// Characters that RFC 3986 allows in a segment are allowed in names.
	for _, name := range []string{
		"targets/$(reboot)", "targets/a*", "targets/-", "targets/a%2Fb",
		"targets/..%2F..%2Fetc", "targets/%00", "targets/;--'", "targets/" + strings.Repeat("a", 504),
	} {
		req := &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body(t, nil)}}
		put, err := resources.PutResource(t.Context(), req)
		require.NoError(t, err, name)
		found, err := resources.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: name})
		require.NoError(t, err, name)
		require.Equal(t, name, found.GetName())
		require.Equal(t, put.GetUid(), found.GetUid())
		_, err = resources.DeleteResource(t.Context(), &resourcev1.DeleteResourceRequest{Name: name})
		require.NoError(t, err, name)
	}
}

func second[T any](_ T, err error) error { return err }

// watched watches targets of another region, and returns the error with which the watch ends.
func watched(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := resourcev1.NewResourceServiceClient(conn).
		WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: "Target", Region: "eastus2"})
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// A reader cannot cut two regions off: forwarded requests of users have a connection of their own, of which
// each user gets a share.
func TestAUserDoesNotCutRegionsOff_I20(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustPut(aEast+"targets/t", nil)
	f.mustPut(aWest+"targets/before", fields{"next": aEast + "targets/t"})
	refused := make(chan error, 270)
	for range 3 {
		conn := f.asUser("a.example.com/us-west2")
		for range 90 {
			go func() {
				for {
					err := watched(t.Context(), conn)
					// a busy machine answers late: it watches again, as a user would
					if status.Code(err) == codes.Unavailable {
						continue
					}
					refused <- err
					return
				}
			}()
		}
	}
	for range 170 { // the other hundred go on
		select {
		case err := <-refused:
			require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		case <-time.After(wait.Limit):
			t.Fatal("too many are forwarded")
		}
	}
	f.mustPut(aWest+"targets/after", fields{"next": aEast + "targets/t"})
	f.mustDelete(aWest + "targets/before")
	f.settled()
	// Others are forwarded as before.
	_, err := resourcev1.NewResourceServiceClient(f.as(f.ClientCerts(), "a.example.com/us-west2")).
		ListResources(t.Context(), &resourcev1.ListResourcesRequest{Kind: "Target", Region: "eastus2"})
	require.NoError(t, err)
}

// make hostile takes the names of its tests from a document: the document has the tests of the attacks.
func TestTheAttacksOfTheDocumentArePlayed(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	of := regexp.MustCompile(`(?m)^hostile: .*\n.* (docs/\w+\.md) \| tr`).FindSubmatch(makefile)
	require.NotNil(t, of)
	page, err := os.ReadFile("../" + string(of[1]))
	require.NoError(t, err)
	require.Greater(t, len(regexp.MustCompile("`(Test|Fuzz)[A-Za-z0-9_]+`").FindAll(page, -1)), 150)
}
