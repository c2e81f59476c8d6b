package envregistry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

var self = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

// registry sends the messages of a test; a nil message cuts the stream, and a refusal ends the next watch.
type registry struct {
	registryv1.UnimplementedRegistryServiceServer
	say chan *registryv1.WatchEnvironmentResponse

	mu     sync.Mutex
	refuse error    // guarded by mu
	tokens []string // guarded by mu; of all watches
}

func (r *registry) RegisterDeployment(context.Context,
	*registryv1.RegisterDeploymentRequest,
) (*registryv1.Deployment, error) {
	return &registryv1.Deployment{}, nil
}

func (r *registry) WatchEnvironment(req *registryv1.WatchEnvironmentRequest,
	stream grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	r.mu.Lock()
	refuse := r.refuse
	r.tokens, r.refuse = append(r.tokens, req.GetResumeToken()), nil
	r.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case msg := <-r.say:
			if msg == nil {
				return status.Error(codes.Unavailable, "cut")
			}
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
	}
}

// away is a registry without its database, whose texts have the ids of requests.
type away struct {
	registryv1.UnimplementedRegistryServiceServer
	calls atomic.Int64
}

func (a *away) refusal() error {
	return status.Errorf(codes.Unavailable, "the registry's database is unavailable: try again (request %d)",
		a.calls.Add(1))
}

func (a *away) RegisterDeployment(context.Context,
	*registryv1.RegisterDeploymentRequest,
) (*registryv1.Deployment, error) {
	return nil, a.refusal()
}

func (a *away) WatchEnvironment(*registryv1.WatchEnvironmentRequest,
	grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	return a.refusal()
}

// A registry that is away for a minute is a line in the log for the watch and one for the registration,
// however often they are tried again.
func TestARegistryThatIsAwayIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		registry, channel := &away{}, &inprocess.Channel{}
		before := kept{&schema.Environment{Deployments: []schema.Deployment{{
			DeploymentID: self, Version: "v1",
			Address: "there:1",
		}}}}
		registryv1.RegisterRegistryServiceServer(channel, registry)
		client, err := envregistry.New(envregistry.Config{
			Deployment: self, Address: "here:1", Registry: channel,
			Keeper: before, Logger: zap.New(core),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- client.Run(ctx) }()
		client.Lead(true)
		time.Sleep(time.Minute)
		require.Greater(t, registry.calls.Load(), int64(10))
		require.Len(t, logs.FilterMessageSnippet("cannot be followed").All(), 1)
		require.Len(t, logs.FilterMessageSnippet("could not be registered").All(), 1)
		cancel()
		require.NoError(t, <-done)
	})
}

func (r *registry) watched() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.tokens...)
}

func deployment(region string) *registryv1.WatchEnvironmentResponse_Change {
	return &registryv1.WatchEnvironmentResponse_Change{Item: &registryv1.WatchEnvironmentResponse_Change_Deployment{
		Deployment: &registryv1.Deployment{
			Service: self.Service, Region: region, Version: "v1",
			Address: region + ":1",
		},
	}}
}

func upsert(region string) *registryv1.WatchEnvironmentResponse {
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Upsert{
		Upsert: deployment(region),
	}}
}

func gone(region string) *registryv1.WatchEnvironmentResponse {
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Delete{
		Delete: deployment(region),
	}}
}

func end(token string) *registryv1.WatchEnvironmentResponse {
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_EndOfSnapshot_{
		EndOfSnapshot: &registryv1.WatchEnvironmentResponse_EndOfSnapshot{ResumeToken: token},
	}}
}

func bookmark(token string) *registryv1.WatchEnvironmentResponse {
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Bookmark_{
		Bookmark: &registryv1.WatchEnvironmentResponse_Bookmark{ResumeToken: token},
	}}
}

// keeper stores the environment for the next start, as the deployment's database does.
type keeper struct {
	mu   sync.Mutex
	kept []*schema.Environment // guarded by mu
	away bool                  // guarded by mu
}

func (k *keeper) LoadEnvironment(context.Context) (*schema.Environment, error) { return nil, nil }

func (k *keeper) KeepEnvironment(_ context.Context, env *schema.Environment) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		return errors.New("the database is away")
	}
	k.kept = append(k.kept, env)
	return nil
}

// sizes are the numbers of deployments in the environments that were kept.
func (k *keeper) sizes() (sizes []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, env := range k.kept {
		sizes = append(sizes, len(env.Deployments))
	}
	return sizes
}

// inClient runs a client in a bubble of synctest, which fails when a goroutine is left.
func inClient(t *testing.T, test func(t *testing.T, r *registry, k *keeper, environments <-chan *schema.Environment)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, k := &registry{say: make(chan *registryv1.WatchEnvironmentResponse)}, &keeper{}
		channel := &inprocess.Channel{}
		registryv1.RegisterRegistryServiceServer(channel, r)
		client, err := envregistry.New(envregistry.Config{
			Deployment: self, Address: "here:1", Registry: channel,
			Keeper: k, Logger: zap.NewNop(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- client.Run(ctx) }()
		test(t, r, k, client.Environments())
		cancel()
		require.NoError(t, <-done)
	})
}

// rewind cuts the watch of a registry, which begins again with a snapshot in the order of the test, and
// returns the sizes of the environments that were kept in the middle of it.
func rewind(t *testing.T, order func(half, rest []*registryv1.WatchEnvironmentResponse,
	end *registryv1.WatchEnvironmentResponse) (before, after []*registryv1.WatchEnvironmentResponse),
) (sizes []int) {
	inClient(t, func(_ *testing.T, r *registry, k *keeper, _ <-chan *schema.Environment) {
		for _, msg := range []*registryv1.WatchEnvironmentResponse{upsert("a"), upsert("b"), upsert("c"), end("1")} {
			r.say <- msg
		}
		r.mu.Lock()
		r.refuse = status.Error(codes.OutOfRange, "reset")
		r.mu.Unlock()
		r.say <- nil
		before, after := order([]*registryv1.WatchEnvironmentResponse{upsert("a"), bookmark("half")},
			[]*registryv1.WatchEnvironmentResponse{upsert("b"), upsert("c")}, end("2"))
		for _, msg := range before {
			r.say <- msg
		}
		time.Sleep(10 * time.Second) // the rest is late
		for _, msg := range after {
			r.say <- msg
		}
		synctest.Wait()
		sizes = k.sizes()
	})
	return sizes
}

// A half-filled environment is neither published nor kept while a new snapshot comes in. The test finds it
// when the end of the snapshot comes first, as for a client that does not wait for it.
func TestAHalfFilledEnvironmentRewindsNothing(t *testing.T) {
	require.Equal(t, []int{3, 3},
		rewind(t, func(half, rest []*registryv1.WatchEnvironmentResponse,
			end *registryv1.WatchEnvironmentResponse,
		) (before, after []*registryv1.WatchEnvironmentResponse) {
			return half, append(rest, end)
		}))
	require.Contains(t,
		rewind(t, func(half, rest []*registryv1.WatchEnvironmentResponse,
			end *registryv1.WatchEnvironmentResponse,
		) (before, after []*registryv1.WatchEnvironmentResponse) {
			return append([]*registryv1.WatchEnvironmentResponse{end}, half...), append(rest, bookmark("3"))
		}), 1, "without priming")
}

func TestTheClientResumesItsWatchAndPublishesOnlyChanges(t *testing.T) {
	inClient(t, func(t *testing.T, r *registry, k *keeper, environments <-chan *schema.Environment) {
		for _, msg := range []*registryv1.WatchEnvironmentResponse{
			upsert("a"), upsert("b"), end("1"), bookmark("2"),
			nil, bookmark("3"),
		} {
			r.say <- msg
		}
		synctest.Wait()
		require.Len(t, (<-environments).Deployments, 2)
		require.Equal(t, []string{"", "2"}, r.watched())
		require.Equal(t, []int{2}, k.sizes(), "nothing has changed")
		// cut before its bookmark
		for _, msg := range []*registryv1.WatchEnvironmentResponse{upsert("c"), gone("a"), nil} {
			r.say <- msg
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []int{2}, k.sizes(), "half of a change is not told")
		// once more, and all of it
		for _, msg := range []*registryv1.WatchEnvironmentResponse{upsert("c"), gone("a"), gone("b"), bookmark("4")} {
			r.say <- msg
		}
		synctest.Wait()
		require.Equal(t, []string{"", "2", "3"}, r.watched())
		require.Equal(t, "c", (<-environments).Deployments[0].Region)
		require.Equal(t, []int{2, 1}, k.sizes())
	})
}

func TestAnEnvironmentThatCouldNotBeKeptIsKeptLater(t *testing.T) {
	inClient(t, func(t *testing.T, r *registry, k *keeper, environments <-chan *schema.Environment) {
		database := func(away bool) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.away = away
		}
		database(true)
		for _, msg := range []*registryv1.WatchEnvironmentResponse{upsert("a"), end("1"), bookmark("1")} {
			r.say <- msg
		}
		synctest.Wait()
		require.Len(t, (<-environments).Deployments, 1, "it counts all the same")
		database(false)
		r.say <- nil
		r.say <- bookmark("1")
		r.say <- bookmark("1")
		synctest.Wait()
		require.Equal(t, []int{1}, k.sizes())
		require.Empty(t, environments, "and is not told again")
	})
}

// An environment without the deployment does not replace one with it, neither for the process that runs nor
// for the next start: a registry that has lost its database would stop every deployment.
func TestAnEnvironmentWithoutTheDeploymentIsNotTaken_I27(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, k := &registry{say: make(chan *registryv1.WatchEnvironmentResponse)}, &keeper{}
		channel := &inprocess.Channel{}
		registryv1.RegisterRegistryServiceServer(channel, r)
		client, err := envregistry.New(envregistry.Config{
			Deployment: self, Address: "here:1", Registry: channel,
			Keeper: k, Logger: zap.NewNop(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- client.Run(ctx) }()
		say := func(messages ...*registryv1.WatchEnvironmentResponse) {
			for _, msg := range messages {
				r.say <- msg
			}
			synctest.Wait()
		}
		unlisted := func() bool { _, unlisted := client.Unlisted(); return unlisted }

		say(upsert("elsewhere"), end("1"))
		require.Len(t, (<-client.Environments()).Deployments, 1, "nothing is lost when none has listed it")
		require.False(t, unlisted())
		say(upsert(self.Region), bookmark("2"))
		require.Len(t, (<-client.Environments()).Deployments, 2)
		require.NoError(t, client.Registered())

		r.mu.Lock()
		r.refuse = status.Error(codes.OutOfRange, "reset")
		r.mu.Unlock()
		r.say <- nil
		time.Sleep(10 * time.Second)
		say(end("3")) // empty
		require.Empty(t, client.Environments())
		require.Equal(t, []int{1, 2}, k.sizes())
		require.NoError(t, client.Registered(), "ready without the registry")
		require.True(t, unlisted())
		say(upsert("elsewhere"), bookmark("4"))
		require.Empty(t, client.Environments())

		say(upsert(self.Region), bookmark("5"))
		require.Len(t, (<-client.Environments()).Deployments, 2)
		require.Equal(t, []int{1, 2, 2}, k.sizes())
		require.False(t, unlisted())
		cancel()
		require.NoError(t, <-done)
	})
}

// The same at a start, with the kept environment; and with an unreadable environment, which may list the
// deployment.
func TestAStartBesideAnEmptyRegistryKeepsTheEnvironment_I27(t *testing.T) {
	for name, keeper := range map[string]envregistry.Keeper{
		"kept": kept{&schema.Environment{Deployments: []schema.Deployment{{
			DeploymentID: self, Version: "v1",
			Address: "here:1", Generation: 2,
		}}}},
		"unreadable": unreadable{},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{say: make(chan *registryv1.WatchEnvironmentResponse)}
				channel := &inprocess.Channel{}
				registryv1.RegisterRegistryServiceServer(channel, r)
				client, err := envregistry.New(envregistry.Config{
					Deployment: self, Address: "here:1",
					Registry: channel, Keeper: keeper, Logger: zap.NewNop(),
				})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- client.Run(ctx) }()
				r.say <- end("1")
				synctest.Wait()
				for len(client.Environments()) > 0 {
					require.NotEmpty(t, (<-client.Environments()).Deployments)
				}
				_, unlisted := client.Unlisted()
				require.True(t, unlisted)
				require.Equal(t, name == "kept", client.Registered() == nil)
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// A registry that was restored to a time before rights were declared opens nothing, for the process that runs
// and at the next start: only a later declaration replaces a declaration.
func TestARegistryWithoutRightsDoesNotEndDeclaredOnes(t *testing.T) {
	declare := func(deny bool, declaration int64) *registryv1.WatchEnvironmentResponse {
		return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Upsert{Upsert: &registryv1.WatchEnvironmentResponse_Change{
			Item: &registryv1.WatchEnvironmentResponse_Change_Rights{Rights: &registryv1.Rights{
				Deny:        deny,
				Declaration: declaration,
			}},
		}}}
	}
	listed := []schema.Deployment{{DeploymentID: self, Version: "v1", Address: "here:1", Generation: 2}}
	for name, keeper := range map[string]envregistry.Keeper{
		"the process runs": &keeper{}, "the process starts": kept{&schema.Environment{
			Deployments: listed,
			Rights:      &schema.Rights{Deny: true, Declaration: 20},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{say: make(chan *registryv1.WatchEnvironmentResponse)}
				channel := &inprocess.Channel{}
				registryv1.RegisterRegistryServiceServer(channel, r)
				client, err := envregistry.New(envregistry.Config{
					Deployment: self, Address: "here:1",
					Registry: channel, Keeper: keeper, Logger: zap.NewNop(),
				})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- client.Run(ctx) }()
				say := func(messages ...*registryv1.WatchEnvironmentResponse) *schema.Rights {
					for _, msg := range messages {
						r.say <- msg
					}
					synctest.Wait()
					return (<-client.Environments()).Rights
				}
				if name == "the process runs" {
					require.Nil(t, say(upsert(self.Region), end("1")), "nothing was declared")
					require.True(t, say(declare(true, 20), bookmark("2")).Deny)
					r.mu.Lock()
					r.refuse = status.Error(codes.OutOfRange, "reset")
					r.mu.Unlock()
					r.say <- nil
					time.Sleep(10 * time.Second)
				}
				require.True(t, say(upsert(self.Region), end("3")).Deny, "a snapshot without rights")
				require.True(t, say(upsert("elsewhere"), bookmark("4")).Deny)
				require.True(t, say(declare(false, 10), bookmark("5")).Deny, "an earlier declaration")
				require.True(t, client.RightsLost())
				require.False(t, say(declare(false, 30), bookmark("6")).Deny, "a later declaration")
				require.False(t, client.RightsLost())
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// unreadable is a keeper whose environment cannot be read.
type unreadable struct{}

func (unreadable) LoadEnvironment(context.Context) (*schema.Environment, error) {
	return nil, errors.New("the database is away")
}

func (unreadable) KeepEnvironment(context.Context, *schema.Environment) error {
	panic("replaces an environment that was not read")
}

// A slow reader skips environments: only the newest waits for it.
func TestASlowReaderGetsTheNewestEnvironment(t *testing.T) {
	inClient(t, func(t *testing.T, r *registry, _ *keeper, environments <-chan *schema.Environment) {
		r.say <- end("0")
		for i := range 100 {
			r.say <- upsert(fmt.Sprint("r", i))
			r.say <- bookmark(fmt.Sprint(i + 1))
		}
		synctest.Wait()
		require.Len(t, (<-environments).Deployments, 100)
	})
}

// A silent watch is closed and opened again: the server sends a message every few seconds, so its connection
// is half open.
func TestASilentWatchIsOpenedAgain(t *testing.T) {
	inClient(t, func(t *testing.T, r *registry, _ *keeper, _ <-chan *schema.Environment) {
		r.say <- end("1")
		for range 20 {
			time.Sleep(5 * time.Second)
			r.say <- bookmark("1")
		}
		require.Len(t, r.watched(), 1, "one that speaks lives on")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, len(r.watched()), 1)
	})
}

// While the registry is unreachable the kept environment counts, and no deployment is removed from it.
func TestAnUnreachableRegistryChangesNothing_I27(t *testing.T) {
	inClient(t, func(t *testing.T, r *registry, k *keeper, environments <-chan *schema.Environment) {
		for _, msg := range []*registryv1.WatchEnvironmentResponse{upsert("a"), end("1")} {
			r.say <- msg
		}
		synctest.Wait()
		<-environments
		for range 5 {
			r.mu.Lock()
			r.refuse = errors.New("away")
			r.mu.Unlock()
			r.say <- nil
			time.Sleep(time.Minute)
		}
		require.Equal(t, []int{1}, k.sizes())
		require.Empty(t, environments)
	})
}
