// Package playground runs a registry and deployments on one machine as in production: each is a process with
// its own database and certificate. The command dev, the benchmarks and the tests use it.
package playground

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/internal/atomicfile"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
)

// Config of a Playground.
type Config struct {
	// Dir for certificates, logs and client.yaml; it must exist.
	Dir string
	// Binary is the db-controller program.
	Binary    string
	Databases Databases
	// Registries is how many servers the registry has (default 1).
	Registries int
	// Deployments to run. The argument apply of Start has to register them.
	Deployments []schema.DeploymentID
	// HostNames and Addresses are in the certificates of the processes (default: this machine's), for clients
	// that verify host names.
	HostNames []string
	Addresses []net.IP
	// Args are further flags of each deployment's serve.
	Args []string
	// Tell, if set, is called every ten seconds with the processes that are not ready yet, and the reasons.
	Tell func(text string)
}

// Databases are those of the registry and of the deployments.
type Databases struct {
	// New creates an empty database with a name, and returns its DSN.
	New func(ctx context.Context, name string) (dsn string, err error)
	// Serving turns the DSN from New into the DSN for the deployment's process (default: the same).
	Serving func(dsn string) string
	// Controller is Serving for the process's own work (default: the same DSN for all).
	Controller func(dsn string) string
	// DSNs has the DSN of each deployment that has a database already.
	DSNs map[schema.DeploymentID]string
	// Args are further flags of each command that connects to a database.
	Args []string
}

// Patience is how long each process may take to start: a slow machine, or one that does other things, is no
// failure.
const Patience = 10 * time.Minute

// Playground is a registry and deployments, each a process.
type Playground struct {
	cfg       Config
	authority *Authority
	Registry  *Process
	// Registries are all servers of the registry, Registry is the first of them.
	Registries  []*Process
	Deployments map[schema.DeploymentID]*Deployment
	// RegistryDSN is the DSN of the registry's database.
	RegistryDSN string
	// RegistryAddress is host:port of the registry's gRPC server, or of several, separated by commas.
	RegistryAddress string
}

// Deployment is one of the playground's deployments.
type Deployment struct {
	*Process
	Address string // of gRPC
	HTTP    string
	DSN     string
	Certs   string
}

// ClientFile is the name of the client's configuration that Start writes.
const ClientFile = "client.yaml"

// clientMark is the first line of a ClientFile.
const clientMark = "# Configuration of clients of this playground; written at its start."

// CheckFolder returns an error for a folder whose ClientFile was not written by a playground: Start would
// replace it.
func CheckFolder(dir string) error {
	path := filepath.Join(dir, ClientFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(string(raw), clientMark) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf(
		"%s is the configuration of another installation, and a playground would replace it: use another folder with --dir", path)
}

// New makes certificates and databases, and describes the processes; nothing runs yet.
func New(ctx context.Context, cfg Config) (*Playground, error) {
	if cfg.Dir == "" || cfg.Binary == "" || cfg.Databases.New == nil {
		return nil, errors.New("a playground needs a folder, a binary and databases")
	}
	authority, err := NewAuthority()
	if err != nil {
		return nil, err
	}
	p := &Playground{cfg: cfg, authority: authority, Deployments: map[schema.DeploymentID]*Deployment{}}
	cfg.Registries = max(cfg.Registries, 1)
	if cfg.HostNames == nil && cfg.Addresses == nil {
		cfg.HostNames, cfg.Addresses = LocalNames, LocalAddresses
	}
	p.cfg = cfg
	addresses, err := p.addresses(p.names())
	if err != nil {
		return nil, err
	}
	if err := authority.Issue(p.certs("client"), identity.Identity{
		Role: identity.RoleOperator,
		Name: "playground",
	}); err != nil {
		return nil, err
	}
	if err := p.describeRegistry(ctx, addresses); err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(1) // databases are cloned from one template, one at a time
	for _, id := range cfg.Deployments {
		at := addresses[id.String()]
		d := &Deployment{Address: at[0], HTTP: "http://" + at[1], Certs: p.certs(fileName(id))}
		p.Deployments[id] = d
		g.Go(func() error { return p.describe(ctx, id, d) })
	}
	return p, g.Wait()
}

func (p *Playground) certs(name string) string { return filepath.Join(p.cfg.Dir, "certs", name) }

func fileName(id schema.DeploymentID) string {
	return strings.NewReplacer("/", "-", ".", "-").Replace(id.String())
}

// names of the processes.
func (p *Playground) names() []string {
	var names []string
	for i := range p.cfg.Registries {
		names = append(names, registryName(i))
	}
	for _, id := range p.cfg.Deployments {
		names = append(names, id.String())
	}
	return names
}

func registryName(i int) string {
	if i == 0 {
		return "registry"
	}
	return fmt.Sprintf("registry-%d", i+1)
}

func (p *Playground) describeRegistry(ctx context.Context, addresses map[string][2]string) error {
	dsn, err := p.cfg.Databases.New(ctx, "registry")
	if err != nil {
		return fmt.Errorf("make the registry's database: %w", err)
	}
	if err := p.authority.Issue(p.RegistryCerts(), identity.Identity{Role: identity.RoleRegistry},
		ReachedAt(p.cfg.HostNames, p.cfg.Addresses)); err != nil {
		return err
	}
	var all []string
	p.RegistryDSN = dsn
	for i := range p.cfg.Registries {
		name := registryName(i)
		address, http := addresses[name][0], addresses[name][1]
		all = append(all, address)
		p.Registries = append(p.Registries, NewProcess(name, p.cfg.Binary, append([]string{
			"registry", "--postgres", dsn, "--certs", p.RegistryCerts(),
			"--listen", address, "--http", http, "--migrate", "--start-timeout", Patience.String(),
		}, p.cfg.Databases.Args...), filepath.Join(p.cfg.Dir, name+".log"), "http://"+http+"/readyz"))
	}
	for _, r := range p.Registries {
		r.tell = p.cfg.Tell
	}
	p.Registry, p.RegistryAddress = p.Registries[0], strings.Join(all, ",")
	return nil
}

func (p *Playground) describe(ctx context.Context, id schema.DeploymentID, d *Deployment) (err error) {
	d.DSN = p.cfg.Databases.DSNs[id]
	serving := d.DSN
	if d.DSN == "" {
		if d.DSN, err = p.cfg.Databases.New(ctx, fileName(id)); err != nil {
			return fmt.Errorf("make the database of %s: %w", id, err)
		}
		if serving = d.DSN; p.cfg.Databases.Serving != nil {
			serving = p.cfg.Databases.Serving(d.DSN)
		}
	}
	if err := p.authority.Issue(d.Certs, identity.Deployment(id),
		ReachedAt(p.cfg.HostNames, p.cfg.Addresses)); err != nil {
		return err
	}
	args := append([]string{
		"serve", "--deployment", id.String(), "--postgres", serving, "--registry", p.RegistryAddress,
		"--certs", d.Certs,
		"--listen", d.Address, "--http", strings.TrimPrefix(d.HTTP, "http://"), "--migrate", "--start-timeout",
		Patience.String(),
	}, append(slices.Clone(p.cfg.Databases.Args), p.cfg.Args...)...)
	if p.cfg.Databases.Controller != nil && p.cfg.Databases.DSNs[id] == "" {
		args = append(args, "--postgres-controller", p.cfg.Databases.Controller(d.DSN))
	}
	d.Process = NewProcess(id.String(), p.cfg.Binary, args, filepath.Join(p.cfg.Dir, fileName(id)+".log"),
		d.HTTP+"/readyz")
	d.tell = p.cfg.Tell
	return nil
}

// startsAtOnce is the number of deployments that start at a time. Each migrates its database and compiles its
// schema: all together would be ready late, and none of them before the others.
func startsAtOnce() int { return max(4, 2*runtime.GOMAXPROCS(0)) }

// Start writes ClientFile, starts the registry, calls apply, which has to register the deployments, starts
// the deployments, some at a time, and waits until all are ready. A process that is not ready after Patience
// ends, and so does Start, with its reasons.
func (p *Playground) Start(ctx context.Context, apply func(ctx context.Context) error) error {
	client := fmt.Sprintf(clientMark+"\nregistry: %s\ncerts: %s\n", p.RegistryAddress, p.certs("client"))
	if err := atomicfile.Write(filepath.Join(p.cfg.Dir, ClientFile), []byte(client)); err != nil {
		return err
	}
	for _, r := range p.Registries {
		if err := r.Start(); err != nil {
			return err
		}
		if err := r.WaitReady(ctx); err != nil {
			return err
		}
	}
	if err := apply(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(startsAtOnce())
	for _, d := range p.Deployments {
		g.Go(func() error {
			if ctx.Err() != nil { // another one has failed
				return nil
			}
			if err := d.Start(); err != nil {
				return err
			}
			return d.WaitReady(ctx)
		})
	}
	return g.Wait()
}

// ClientCerts is the folder with an operator's certificate.
func (p *Playground) ClientCerts() string { return p.certs("client") }

// RegistryCerts is the folder with the registry's certificate.
func (p *Playground) RegistryCerts() string { return p.certs("registry") }

// Issue writes a certificate for a person into a folder, and returns the folder.
func (p *Playground) Issue(id identity.Identity, changes ...func(*x509.Certificate)) (dir string, err error) {
	dir = p.certs(string(id.Role) + "-" + id.Name)
	return dir, p.authority.Issue(dir, id, changes...)
}

// Stop ends every process.
func (p *Playground) Stop() error {
	var g errgroup.Group
	for _, d := range p.Deployments {
		if d.Process != nil {
			g.Go(d.Stop)
		}
	}
	for _, r := range p.Registries {
		g.Go(r.Stop)
	}
	return g.Wait()
}
