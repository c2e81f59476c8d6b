package envregistry_test

import (
	"context"
	"fmt"
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
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/rounds"
)

// fleet is a registry of very many deployments, which counts the sent messages, for each second of a
// simulated time.
type fleet struct {
	registryv1.UnimplementedRegistryServiceServer
	env *registryv1.Environment

	mu       sync.Mutex
	away     bool
	broken   chan struct{} // closed when all streams end
	changed  chan struct{} // closed with the next change
	change   *registryv1.Deployment
	version  int
	messages int
	opened   map[int64]int // streams, by second
	refused  map[int64]int
}

func (f *fleet) RegisterDeployment(context.Context,
	*registryv1.RegisterDeploymentRequest,
) (*registryv1.Deployment, error) {
	return &registryv1.Deployment{}, nil
}

func (f *fleet) state() (away bool, broken, changed chan struct{}, change *registryv1.Deployment, version int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.away, f.broken, f.changed, f.change, f.version
}

func (f *fleet) WatchEnvironment(req *registryv1.WatchEnvironmentRequest,
	stream grpc.ServerStreamingServer[registryv1.WatchEnvironmentResponse],
) error {
	away, broken, _, _, version := f.state()
	second := time.Now().Unix()
	f.mu.Lock()
	if away {
		f.refused[second]++
	} else {
		f.opened[second]++
	}
	f.mu.Unlock()
	if away {
		return status.Error(codes.Unavailable, "away")
	}
	send := func(msgs ...*registryv1.WatchEnvironmentResponse) error {
		f.mu.Lock()
		f.messages += len(msgs)
		f.mu.Unlock()
		for _, msg := range msgs {
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		return nil
	}
	if req.GetResumeToken() == "" {
		var all []*registryv1.WatchEnvironmentResponse
		for _, s := range f.env.GetServices() {
			all = append(all,
				changeOf(&registryv1.WatchEnvironmentResponse_Change{
					Item: &registryv1.WatchEnvironmentResponse_Change_Service{Service: s},
				}))
		}
		for _, d := range f.env.GetDeployments() {
			all = append(all,
				changeOf(&registryv1.WatchEnvironmentResponse_Change{
					Item: &registryv1.WatchEnvironmentResponse_Change_Deployment{Deployment: d},
				}))
		}
		if err := send(append(all, end(fmt.Sprint(version)))...); err != nil {
			return err
		}
	}
	for {
		_, _, changed, _, _ := f.state()
		select {
		case <-stream.Context().Done():
			return nil
		case <-broken:
			return status.Error(codes.Unavailable, "broken")
		case <-time.After(5 * time.Second):
			if err := send(bookmark(fmt.Sprint(version))); err != nil {
				return err
			}
		case <-changed:
			var d *registryv1.Deployment
			_, _, _, d, version = f.state()
			msg := changeOf(&registryv1.WatchEnvironmentResponse_Change{
				Item: &registryv1.WatchEnvironmentResponse_Change_Deployment{Deployment: d},
			})
			if err := send(msg, bookmark(fmt.Sprint(version))); err != nil {
				return err
			}
		}
	}
}

func changeOf(c *registryv1.WatchEnvironmentResponse_Change) *registryv1.WatchEnvironmentResponse {
	return &registryv1.WatchEnvironmentResponse{Event: &registryv1.WatchEnvironmentResponse_Upsert{Upsert: c}}
}

func (f *fleet) tell(d *registryv1.Deployment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change, f.version = d, f.version+1
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fleet) fail(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away = away; away {
		close(f.broken)
		f.broken = make(chan struct{})
	}
}

func (f *fleet) sent() (messages int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	messages, f.messages = f.messages, 0
	return messages
}

func (f *fleet) most(of map[int64]int) (most, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range of {
		most, all = max(most, n), all+n
	}
	clear(of)
	return most, all
}

// large describes services in regions, each importing three others.
func large(services, regions int) *schema.Environment {
	env := &schema.Environment{}
	name := func(i int) string { return fmt.Sprintf("s%03d.example.com", i%services) }
	for i := range services {
		d := &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: name(i), Version: "v1"}}
		for n := 1; n <= 3 && i-n >= 0; n++ {
			d.Imports = append(d.Imports, schema.Import{ServiceVersion: schema.ServiceVersion{
				Service: name(i - n),
				Version: "v1",
			}})
		}
		env.Services = append(env.Services, d)
		for r := range regions {
			env.Deployments = append(env.Deployments, schema.Deployment{
				DeploymentID: schema.DeploymentID{Service: name(i), Region: fmt.Sprintf("region-%03d", r)},
				Version:      "v1", Address: fmt.Sprintf("s%d-r%d:7001", i, r),
			})
		}
	}
	return env
}

// Thousands of deployments follow one registry: the cost of a start, a change and an outage in messages and
// in streams a second, with the real client. One in ten of the deployments runs; the figures are of these.
func TestThousandsOfDeploymentsFollowOneRegistry(t *testing.T) {
	for _, regions := range rounds.Of([]int{10, 50}, []int{10}) {
		const services, oneIn = 60, 10
		env := large(services, regions)
		deployments := len(env.Deployments)
		synctest.Test(t, func(t *testing.T) {
			f := &fleet{
				env: wire.EnvironmentProto(env), broken: make(chan struct{}), changed: make(chan struct{}),
				opened: map[int64]int{}, refused: map[int64]int{},
			}
			ctx, cancel := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			running := 0
			for i := 0; i < deployments; i += oneIn {
				running++
				channel := &inprocess.Channel{Share: true}
				registryv1.RegisterRegistryServiceServer(channel, f)
				d := env.Deployments[i]
				client, err := envregistry.New(envregistry.Config{
					Deployment: d.DeploymentID, Address: d.Address,
					Registry: channel, Keeper: forgetful{}, Logger: zap.NewNop(),
				})
				require.NoError(t, err)
				clients.Go(func() { _ = client.Run(ctx) })
				clients.Go(func() {
					for {
						select {
						case <-ctx.Done():
							return
						case <-client.Environments():
						}
					}
				})
			}
			synctest.Wait()
			perStart := f.sent() / running
			require.Equal(t, deployments+services+1, perStart, "everything once")
			time.Sleep(time.Minute)
			idle := float64(f.sent()) / 60 / float64(running)
			require.InDelta(t, 0.2, idle, 0.02, "a bookmark every five seconds")

			f.tell(&registryv1.Deployment{
				Service: "s001.example.com", Region: "region-001", Version: "v1",
				Address: "moved:1",
			})
			synctest.Wait()
			require.LessOrEqual(t, f.sent(), 3*running, "a change is one message and one token, however many there are")

			f.most(f.opened)
			f.fail(true)
			time.Sleep(5 * time.Minute)
			tries, _ := f.most(f.refused)
			f.fail(false)
			time.Sleep(30 * time.Second)
			back, all := f.most(f.opened)
			require.Equal(t, running, all, "each comes back once")
			require.Less(t, back, running*2/3, "not all in one second")
			again := f.sent()
			require.Less(t, again, running*20, "and goes on where it was: no snapshot")
			subscriptions := 0
			for _, d := range env.Deployments[len(env.Deployments)-regions:] { // of a service that imports three
				model, err := env.Model(d.DeploymentID)
				require.NoError(t, err)
				subscriptions = len(env.Interested(model, nil))
			}
			require.Equal(t, 4*regions, subscriptions)
			t.Logf(
				"%d deployments (%d services, %d regions), 1 in %d runs: a start costs %d messages each; idle %.2f a second each; "+
					"an outage at most %d tries a second of %d, the return at most %d streams a second; %d watches of deletions each",
				deployments, services, regions, oneIn, perStart, idle, tries, running, back, subscriptions)
			cancel()
			clients.Wait()
		})
	}
}

// forgetful keeps nothing.
type forgetful struct{}

func (forgetful) LoadEnvironment(context.Context) (*schema.Environment, error) { return nil, nil }
func (forgetful) KeepEnvironment(context.Context, *schema.Environment) error   { return nil }
