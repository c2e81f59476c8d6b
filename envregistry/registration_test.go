package envregistry_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// book is a registry with one deployment.
type book struct {
	registryv1.UnimplementedRegistryServiceServer

	mu      sync.Mutex
	entry   *registryv1.Deployment                            // guarded by mu
	changed chan struct{}                                     // guarded by mu; closed with the next change
	calls   []*registryv1.RegisterDeploymentRequest           // guarded by mu
	at      []time.Time                                       // guarded by mu; of calls
	refuse  func(*registryv1.RegisterDeploymentRequest) error // guarded by mu; nil takes all
}

func (b *book) RegisterDeployment(_ context.Context,
	req *registryv1.RegisterDeploymentRequest,
) (*registryv1.Deployment, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls, b.at = append(b.calls, req), append(b.at, time.Now())
	if b.refuse != nil {
		if err := b.refuse(req); err != nil {
			return nil, err
		}
	}
	return b.set(req.GetAddress(), req.GetGeneration()), nil
}

// set changes the entry; with mu held.
func (b *book) set(address string, generation int64) *registryv1.Deployment {
	b.entry = &registryv1.Deployment{
		Service: self.Service, Region: self.Region, Version: "v1", Address: address,
		Generation: generation,
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return b.entry
}

func (b *book) say(address string, generation int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(address, generation)
}

func (b *book) refusing(refuse func(*registryv1.RegisterDeploymentRequest) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = refuse
}

func (b *book) state() (entry *registryv1.Deployment, changed chan struct{}, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry, b.changed, len(b.calls)
}

func (b *book) WatchEnvironment(_ *registryv1.WatchEnvironmentRequest,
	stream grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	for first := true; ; first = false {
		entry, changed, _ := b.state()
		change := changeOf(&registryv1.WatchEnvironmentResponse_Change{
			Item: &registryv1.WatchEnvironmentResponse_Change_Deployment{Deployment: entry},
		})
		last := bookmark("t")
		if first {
			last = end("t")
		}
		for _, msg := range []*registryv1.WatchEnvironmentResponse{change, last} {
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		for waiting := true; waiting; {
			select {
			case <-stream.Context().Done():
				return nil
			case <-changed:
				waiting = false
			case <-time.After(5 * time.Second):
				if err := stream.Send(bookmark("t")); err != nil {
					return err
				}
			}
		}
	}
}

// leading runs a client of the process at here:1, beside a registry that has the entry.
func leading(t *testing.T, address string, generation int64, test func(t *testing.T, b *book,
	client *envregistry.Client),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &book{changed: make(chan struct{})}
		b.say(address, generation)
		channel := &inprocess.Channel{}
		registryv1.RegisterRegistryServiceServer(channel, b)
		client, err := envregistry.New(envregistry.Config{
			Deployment: self, Address: "here:1", Registry: channel,
			Keeper: forgetful{}, Logger: zap.NewNop(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- client.Run(ctx) }()
		test(t, b, client)
		cancel()
		require.NoError(t, <-done)
	})
}

// A registration that failed is tried again without any other change.
func TestAFailedRegistrationIsTriedAgain(t *testing.T) {
	leading(t, "there:1", 3, func(t *testing.T, b *book, client *envregistry.Client) {
		synctest.Wait()
		b.refusing(func(*registryv1.RegisterDeploymentRequest) error {
			return status.Error(codes.Unavailable, "its database is away")
		})
		client.Lead(true)
		time.Sleep(30 * time.Second)
		require.ErrorContains(t, client.Registered(), "there:1", "which others reach instead")
		require.Contains(t, client.Problem(), "its database is away")
		_, _, calls := b.state()
		require.Less(t, calls, 30, "less and less often")
		b.refusing(nil)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		entry, _, calls := b.state()
		require.Equal(t, "here:1", entry.GetAddress())
		require.NoError(t, client.Registered())
		require.Empty(t, client.Problem())
		time.Sleep(time.Minute)
		_, _, later := b.state()
		require.Equal(t, calls, later, "and no more than it takes")
	})
}

// A registration has the generation after the registry's entry, independent of clocks.
func TestAGenerationIsANumberOfTheRegistryAndNoTime(t *testing.T) {
	for _, has := range []int64{0, 3} {
		leading(t, "there:1", has, func(t *testing.T, b *book, client *envregistry.Client) {
			synctest.Wait()
			b.refusing(func(req *registryv1.RegisterDeploymentRequest) error {
				if req.GetGeneration() < b.entry.GetGeneration() {
					return status.Error(codes.FailedPrecondition, "superseded")
				}
				return nil
			})
			client.Lead(true)
			synctest.Wait()
			entry, _, _ := b.state()
			require.Equal(t, "here:1", entry.GetAddress())
			require.Equal(t, has+1, entry.GetGeneration())
			require.NoError(t, client.Registered())
		})
	}
}

// A process that leads is ready when its own address is registered, and registers again when another one
// replaces it.
func TestReadyMeansThatThisAddressIsRegistered(t *testing.T) {
	leading(t, "there:1", 3, func(t *testing.T, b *book, client *envregistry.Client) {
		synctest.Wait()
		require.NoError(t, client.Registered(), "another process does")
		require.True(t, client.CanLead(), "it would be registered")
		b.refusing(func(*registryv1.RegisterDeploymentRequest) error { return status.Error(codes.Unavailable, "away") })
		client.Lead(true)
		synctest.Wait()
		require.Error(t, client.Registered())
		b.refusing(nil)
		time.Sleep(10 * time.Second)
		require.NoError(t, client.Registered())
		b.say("elsewhere:1", 9)
		synctest.Wait()
		require.NoError(t, client.Registered(), "taken back at once")
		entry, _, _ := b.state()
		require.EqualValues(t, 10, entry.GetGeneration())
		b.say("", 11)
		time.Sleep(time.Second)
		require.NoError(t, client.Registered())
	})
}

// The registry answers the watch of a process and refuses its registrations: as the leader it could not be
// reached until it, or another process, is registered.
func TestAProcessWhoseRegistrationsFailLeavesTheLead(t *testing.T) {
	leading(t, "there:1", 3, func(t *testing.T, b *book, client *envregistry.Client) {
		b.refusing(func(req *registryv1.RegisterDeploymentRequest) error {
			if req.GetAddress() == "here:1" {
				return status.Error(codes.PermissionDenied, "not from there")
			}
			return nil
		})
		synctest.Wait()
		require.True(t, client.CanLead(), "nothing speaks against it")
		client.Lead(true)
		synctest.Wait()
		require.False(t, client.CanLead())
		require.Error(t, client.Registered())
		_, followed := client.Heard()
		require.True(t, followed)

		client.Lead(false)
		time.Sleep(time.Second)
		require.False(t, client.CanLead(), "another try would fail as well")
		b.say("other:1", 4)
		synctest.Wait()
		require.NoError(t, client.Registered(), "another process leads, and is registered")

		client.Lead(true)
		synctest.Wait()
		require.False(t, client.CanLead())
		b.refusing(nil)
		time.Sleep(longest)
		require.True(t, client.CanLead())
		require.NoError(t, client.Registered())
	})
}

// longest is more than the longest pause between two tries to register.
const longest = 6 * time.Second

// Two processes that both believe to lead the deployment replace each other's registration at growing
// intervals: each registration is sent to all deployments.
func TestTwoLeadersRegisterInTurnsSlowly(t *testing.T) {
	leading(t, "there:1", 3, func(t *testing.T, b *book, client *envregistry.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		channel := &inprocess.Channel{}
		registryv1.RegisterRegistryServiceServer(channel, b)
		other, err := envregistry.New(envregistry.Config{
			Deployment: self, Address: "other:1", Registry: channel,
			Keeper: forgetful{}, Logger: zap.NewNop(),
		})
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- other.Run(ctx) }()
		client.Lead(true)
		other.Lead(true)
		time.Sleep(5 * time.Second)
		_, _, calls := b.state()
		require.Less(t, calls, 25)
		other.Lead(false)
		time.Sleep(10 * time.Second)
		require.NoError(t, client.Registered())
		b.mu.Lock()
		require.True(t, slices.IsSortedFunc(b.calls, func(x, y *registryv1.RegisterDeploymentRequest) int {
			return int(x.GetGeneration() - y.GetGeneration())
		}))
		b.mu.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

// The kept environment counts at a start without a registry.
func TestAStartWithoutARegistryKeepsTheRegistration(t *testing.T) {
	for _, address := range []string{"here:1", "there:1"} {
		synctest.Test(t, func(t *testing.T) {
			client, err := envregistry.New(envregistry.Config{
				Deployment: self, Address: "here:1", Registry: &inprocess.Channel{}, Logger: zap.NewNop(),
				Keeper: kept{&schema.Environment{Deployments: []schema.Deployment{{
					DeploymentID: self, Version: "v1",
					Address: address, Generation: 2,
				}}}},
			})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- client.Run(ctx) }()
			client.Lead(true)
			synctest.Wait()
			require.Equal(t, address == "here:1", client.Registered() == nil)
			require.Equal(t, address == "here:1", client.CanLead(), "another process may be able to register")
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// kept is a keeper with an environment.
type kept struct{ env *schema.Environment }

func (k kept) LoadEnvironment(context.Context) (*schema.Environment, error) { return k.env, nil }
func (kept) KeepEnvironment(context.Context, *schema.Environment) error     { return nil }
