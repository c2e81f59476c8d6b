package harness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
)

const (
	// builtImage comes from image/build.sh.
	builtImage  = "localhost/db-controller-postgres:15"
	publicImage = "postgres:17-alpine"

	// answerLimit bounds the wait for the first answer of a registry or a server,
	// so that tests start soon when none can be reached. A pull may take longer.
	answerLimit = 5 * time.Second
	readyLimit  = 60 * time.Second

	// ownerLabel marks our containers.
	ownerLabel = "db-controller.test"
	ownerValue = "postgres"
	// containerAge is the age at which a test process removes a container without
	// a leash of an earlier one.
	containerAge = time.Hour

	// dataMount is in memory. It is no volume of either image.
	dataMount = "/db-controller-test"
	logLines  = 20
)

// startContainer starts a server in a container of the image, or of the first
// available default image.
func startContainer(ctx context.Context, image string) (*Server, error) {
	s, err := tryContainer(ctx, image)
	if err != nil {
		return nil, fmt.Errorf("use a container: %w", err)
	}
	return s, nil
}

func tryContainer(ctx context.Context, wanted string) (*Server, error) {
	engine, err := connectEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = engine.Close() }() // its idle connections
	image, err := findImage(ctx, engine, wanted)
	if err != nil {
		return nil, err
	}
	// Best effort: it is not this process's fault.
	_ = removeLeftovers(ctx, engine, ownerValue, time.Now().Add(-containerAge))
	c, password, err := runContainer(ctx, image, ownerValue)
	if err != nil {
		return nil, errors.Join(err, terminate(c))
	}
	s, err := serverIn(ctx, engine, c, password)
	if err != nil {
		return nil, errors.Join(err, terminate(c))
	}
	return s, nil
}

// configureLibrary has to be called before the first use of the library.
var configureLibrary = sync.OnceFunc(func() {
	// Its reaper needs one more image; leashes replace it.
	_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // the name is a valid one
	// It would report every step to standard error.
	tclog.SetDefault(tclog.NewNoopLogger())
})

// connectEngine returns a client of the container engine, once that answers.
func connectEngine(ctx context.Context) (engine client.APIClient, err error) {
	configureLibrary()
	// The library panics where it finds no socket of an engine.
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("find a container engine: %v", cause)
		}
	}()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("find a container engine: %w", err)
	}
	if err := provider.Health(ctx); err != nil {
		return nil, fmt.Errorf("ask the container engine: %w", err)
	}
	return provider.Client(), nil
}

// findImage returns an image that is present, or was pulled.
func findImage(ctx context.Context, engine client.APIClient, wanted string) (string, error) {
	candidates := []string{builtImage, publicImage}
	if wanted != "" {
		candidates = []string{wanted}
	}
	for _, image := range candidates {
		if _, err := engine.ImageInspect(ctx, image); err == nil {
			return image, nil
		}
	}
	// Only the last one can come from a registry.
	image := candidates[len(candidates)-1]
	if err := pull(ctx, engine, image); err != nil {
		return "", fmt.Errorf("no image (test/harness/image/build.sh makes one without a registry): pull %s: %w", image, err)
	}
	return image, nil
}

func pull(ctx context.Context, engine client.APIClient, image string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(answerLimit, func() {
		cancel(fmt.Errorf("the registry did not answer in %v", answerLimit))
	})
	defer patience.Stop()
	progress, err := engine.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = progress.Close() }()
	for message, err := range progress.JSONMessages(ctx) {
		patience.Stop()
		if err != nil {
			return cause(ctx, err)
		}
		if message.Error != nil {
			return message.Error
		}
	}
	return nil
}

// cause returns the reason why the context ended, or err when it did not.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// runContainer starts a container and waits until the server in it accepts
// connections. With an error the container may be non-nil; then the caller has to
// terminate it.
func runContainer(ctx context.Context, image, owner string, more ...testcontainers.ContainerCustomizer) (*testcontainers.DockerContainer, string, error) {
	password := rand.Text()
	tail := &logTail{}
	c, err := testcontainers.Run(ctx, image, append([]testcontainers.ContainerCustomizer{
		testcontainers.WithEnv(map[string]string{
			"POSTGRES_PASSWORD":    password,
			"POSTGRES_INITDB_ARGS": "--encoding=UTF8 --no-locale",
			"PGDATA":               dataMount + "/data",
		}),
		testcontainers.WithTmpfs(map[string]string{dataMount: "rw"}),
		testcontainers.WithCmd(serverCommand()...),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithLabels(map[string]string{ownerLabel: owner}),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.AutoRemove = true }),
		testcontainers.WithLogConsumers(tail),
		// Over TCP: while the official image sets itself up, a server answers on the
		// socket that is going to be restarted.
		testcontainers.WithWaitStrategy(wait.ForExec([]string{"pg_isready", "-h", "127.0.0.1", "-U", "postgres"}).
			WithPollInterval(50 * time.Millisecond).WithStartupTimeout(readyLimit)),
	}, more...)...)
	if err != nil {
		return c, "", fmt.Errorf("run %s: %w; it logged: %s", image, err, tail)
	}
	return c, password, nil
}

// serverCommand is the same for all images.
func serverCommand() []string {
	command := []string{"postgres"}
	for name, value := range serverSettings {
		command = append(command, "-c", name+"="+value)
	}
	return command
}

// serverIn returns a Server for the container, which ends with this process at the
// latest.
func serverIn(ctx context.Context, engine client.APIClient, c *testcontainers.DockerContainer, password string) (*Server, error) {
	held, err := leash(ctx, engine, c.ID)
	if err != nil {
		return nil, err
	}
	postgres, err := reach(ctx, c, password)
	if err == nil {
		err = cheapPassword(ctx, postgres.DSN("postgres"))
	}
	if err != nil {
		_ = held.Close()
		return nil, err
	}
	source := fmt.Sprintf("%s in a container of %s", postgres.Source(), c.Image)
	s := newServer(postgres, source)
	s.stop = func() error { return errors.Join(postgres.Stop(), terminate(c), held.Close()) }
	return s, nil
}

// reach connects to the server by the port that the engine published. Its host
// depends on where the engine and the tests run: on this machine, on another one,
// or the tests in a container. The library guesses, and assumes the last at any
// sign of a container. This machine is tried first, since it answers at once; the
// password excludes another process's server. The container's own address, when
// it can be reached, as on Linux, is better still: no proxy copies each packet.
func reach(ctx context.Context, c *testcontainers.DockerContainer, password string) (*launcher.Server, error) {
	port, err := c.MappedPort(ctx, "5432/tcp")
	if err != nil {
		return nil, fmt.Errorf("find the port of the container: %w", err)
	}
	guess, err := c.Host(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the host of the container: %w", err)
	}
	addresses := []string{net.JoinHostPort("127.0.0.1", port.Port()), net.JoinHostPort(guess, port.Port())}
	if ip, err := c.ContainerIP(ctx); err == nil && answers(ctx, net.JoinHostPort(ip, "5432")) {
		addresses = append([]string{net.JoinHostPort(ip, "5432")}, addresses...)
	}
	var errs []error
	for _, address := range addresses {
		dsn := url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", password),
			Host: address, Path: "/postgres", RawQuery: "sslmode=disable",
		}
		postgres, err := use(ctx, dsn.String())
		if err == nil {
			return postgres, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func use(ctx context.Context, dsn string) (*launcher.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return launcher.Start(ctx, launcher.Config{DSN: dsn})
}

// leash ends the container with this process: a shell in it reads from the
// connection that leash returns, and stops the server when the connection ends.
// The kernel closes the connection with the process, however that ends.
func leash(ctx context.Context, engine client.APIClient, id string) (net.Conn, error) {
	shell, err := engine.ExecCreate(ctx, id, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true, // the engine notices the end of both
		Cmd: []string{"sh", "-c", "cat; kill -INT 1"},
	})
	if err != nil {
		return nil, fmt.Errorf("put the container on a leash: %w", err)
	}
	attached, err := engine.ExecAttach(context.WithoutCancel(ctx), shell.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, fmt.Errorf("put the container on a leash: %w", err)
	}
	return attached.Conn, nil
}

func terminate(c *testcontainers.DockerContainer) error {
	return testcontainers.TerminateContainer(c, testcontainers.StopTimeout(0))
}

// removeLeftovers removes the owner's older containers without a leash: those of
// processes that were killed between the start of the container and its leash.
func removeLeftovers(ctx context.Context, engine client.APIClient, owner string, before time.Time) error {
	found, err := engine.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", ownerLabel+"="+owner),
	})
	if err != nil {
		return fmt.Errorf("look for leftover containers: %w", err)
	}
	var errs []error
	for _, one := range found.Items {
		if time.Unix(one.Created, 0).Before(before) {
			errs = append(errs, removeUnleashed(ctx, engine, one.ID))
		}
	}
	return errors.Join(errs...)
}

func removeUnleashed(ctx context.Context, engine client.APIClient, id string) error {
	details, err := engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) || (err == nil && len(details.Container.ExecIDs) > 0) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("inspect a leftover container: %w", err)
	}
	_, err = engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove a leftover container: %w", err)
	}
	return nil
}

// logTail keeps the last log lines of a container, which is removed with its log
// when it ends.
type logTail struct {
	mu    sync.Mutex
	lines []string
}

// Accept implements testcontainers.LogConsumer.
func (l *logTail) Accept(entry testcontainers.Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSpace(string(entry.Content)))
	if len(l.lines) > logLines {
		l.lines = slices.Delete(l.lines, 0, len(l.lines)-logLines)
	}
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
