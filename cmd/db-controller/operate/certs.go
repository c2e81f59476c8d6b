package operate

import (
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
)

// NewCerts returns the command certs.
func NewCerts() *cobra.Command {
	var dir, trustDomain string
	var at Hosts
	cmd := &cobra.Command{
		Use:   "certs IDENTITY...",
		Short: "Make certificates for development: an authority, and certificates of deployments, people and the registry",
		Long: `certs makes an authority in DIR/authority unless there is one, and for each identity a folder with tls.crt, tls.key and
ca.crt for the flag --certs. An identity is

  deployment/SERVICE/REGION   a deployment, such as deployment/iam.example.com/us-west2
  application/SERVICE/NAME    a program that writes resources in its own transactions, in a deployment's database
  operator/NAME, user/NAME    people, and programs that act for them
  registry                    the environment registry
  host/NAME                   a server that is known by its host name or address, such as PostgreSQL

Certificates of deployments and of the registry also have the names of --dns and --ip, for clients in other languages, which compare them with
the address of the connection.

The authority's key is stored beside its certificate: for production use your own authority, whose certificates carry one URI,
spiffe://TRUST-DOMAIN/IDENTITY.`,
		Example: `  db-controller certs --dir certs --trust-domain example.org deployment/iam.example.com/us-west2 registry operator/alice`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := at.Check(); err != nil {
				return err
			}
			for _, name := range args { // before anything is made
				if err := checkIdentity(name); err != nil {
					return err
				}
			}
			authority := filepath.Join(dir, "authority")
			a, err := playground.OpenAuthority(authority, trustDomain)
			if err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			made := []issued{}
			for _, name := range args {
				folder := filepath.Join(dir, folderOf(name))
				if err := issue(a, folder, name, at); err != nil {
					return err
				}
				if err := a.Share(authority, folder); err != nil {
					return err
				}
				made = append(made, issued{name, folder})
				out.Line("%-50s %s", name, folder)
			}
			days := int(playground.Validity.Hours() / 24)
			out.Line("trust domain %s, valid for %d days", a.TrustDomain(), days)
			return out.Document(map[string]any{"trustDomain": a.TrustDomain(), "days": days, "certificates": made})
		},
	}
	cmd.AddCommand(newRevokeCerts())
	cli.OutputFlag(cmd)
	cmd.Flags().StringVar(&dir, "dir", "certs", "folder for the authority and the certificates")
	cmd.Flags().StringVar(&trustDomain, "trust-domain", "example.org", "trust domain of the identities")
	at.Flags(cmd.Flags())
	return cmd
}

// issued is a certificate for programs.
type issued struct {
	Identity string `json:"identity"`
	Folder   string `json:"folder"`
}

// Hosts are the names and addresses under which servers are reached.
type Hosts struct {
	Names     []string
	Addresses []net.IP
}

// Local are the names and addresses of this machine.
var Local = Hosts{playground.LocalNames, playground.LocalAddresses}

// Flags adds the flag of the hosts.
func (h *Hosts) Flags(f *pflag.FlagSet) {
	f.StringSliceVar(&h.Names, "dns", Local.Names, "host names in the certificates of servers")
	f.IPSliceVar(&h.Addresses, "ip", Local.Addresses, "addresses in the certificates of servers")
}

// Check refuses names that clients would never find in a certificate: they compare an address with the
// addresses alone.
func (h *Hosts) Check() error {
	for _, name := range h.Names {
		switch {
		case net.ParseIP(name) != nil:
			return cli.Usage("--dns %s: it is an address; give it with --ip", name)
		case name == "" || strings.ContainsAny(name, "/:= \t"):
			return cli.Usage("--dns %q: want a host name, such as iam.example.org", name)
		}
	}
	return nil
}

func checkIdentity(name string) error {
	if host, ok := strings.CutPrefix(name, "host/"); ok {
		if host == "" || strings.ContainsAny(host, "/ \t") {
			return cli.Usage("identity %q: want host/NAME, such as host/db.example.org", name)
		}
		return nil
	}
	if _, err := identity.ParsePath("/" + name); err != nil {
		return cli.Usage("%w, or host/NAME", err)
	}
	return nil
}

func issue(a *playground.Authority, folder, name string, at Hosts) error {
	if host, ok := strings.CutPrefix(name, "host/"); ok {
		return a.IssueHost(folder, host)
	}
	id, err := identity.ParsePath("/" + name)
	if err != nil {
		return err
	}
	if playground.Serves(id) {
		return a.Issue(folder, id, playground.ReachedAt(at.Names, at.Addresses))
	}
	return a.Issue(folder, id)
}
