package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema/identity"
)

func newCerts() *cobra.Command {
	var dir, trustDomain string
	cmd := &cobra.Command{
		Use:   "certs IDENTITY...",
		Short: "Make certificates for development: an authority, and what deployments, people and the registry show",
		Long: `certs makes an authority in DIR/authority where there is none, and for each identity a folder with tls.crt, tls.key and
ca.crt, as --certs takes it. An identity is

  deployment/SERVICE/REGION   a deployment, such as deployment/iam.example.com/us-west2
  operator/NAME, user/NAME    people, and programs that act for them
  registry                    the environment registry
  host/NAME                   a server that is known by its host name or address, such as PostgreSQL

Processes that run take over what is made anew within seconds. The authority's key lies beside its certificate: for
production use an authority of your own, whose certificates carry one URI, spiffe://TRUST-DOMAIN/IDENTITY.`,
		Example: `  db-controller certs --dir certs --trust-domain example.org deployment/iam.example.com/us-west2 registry operator/alice`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := playground.OpenAuthority(filepath.Join(dir, "authority"), trustDomain)
			if err != nil {
				return err
			}
			for _, name := range args {
				folder := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
				if err := issue(a, folder, name); err != nil {
					return err
				}
				cmd.Printf("%-50s %s\n", name, folder)
			}
			cmd.Printf("trust domain %s, valid for %d days\n", a.TrustDomain(), int(playground.Validity.Hours()/24))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "certs", "folder for all of it")
	cmd.Flags().StringVar(&trustDomain, "trust-domain", "example.org", "what the identities belong to")
	return cmd
}

func issue(a *playground.Authority, folder, name string) error {
	if host, ok := strings.CutPrefix(name, "host/"); ok {
		if host == "" || strings.ContainsAny(host, "/ \t") {
			return fmt.Errorf("identity %q: want host/NAME, such as host/db.example.org", name)
		}
		return a.IssueHost(folder, host)
	}
	id, err := identity.ParsePath("/" + name)
	if err != nil {
		return err
	}
	return a.Issue(folder, id)
}
