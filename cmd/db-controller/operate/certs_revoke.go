package operate

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
)

func newRevokeCerts() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "revoke IDENTITY...",
		Short: "Revoke the certificates of identities",
		Long: `revoke adds the certificates of the identities' folders to the authority's revocation list, and copies the list, ca.crl, to
each folder below DIR. Processes refuse the certificates within seconds, and close their connections. A certificate that is
made for the same identity afterwards is accepted.`,
		Example: `  db-controller certs revoke --dir certs user/mallory`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := checkIdentity(name); err != nil {
					return err
				}
			}
			authority := filepath.Join(dir, "authority")
			if _, err := os.Stat(authority); err != nil {
				return cli.Usage("there is no authority in %s, which certs makes: give its folder with --dir", dir)
			}
			a, err := playground.OpenAuthority(authority, "")
			if err != nil {
				return err
			}
			var certFiles []string
			for _, name := range args {
				certFiles = append(certFiles, filepath.Join(dir, folderOf(name), "tls.crt"))
			}
			users, err := filepath.Glob(filepath.Join(dir, "*", "tls.crt"))
			if err != nil {
				return err
			}
			for i, file := range users {
				users[i] = filepath.Dir(file)
			}
			if err := a.Revoke(authority, certFiles, users); err != nil {
				return err
			}
			out := cli.PrinterOf(cmd)
			out.Line("revoked: %s; the list is in %s", strings.Join(args, ", "), cli.Plural(len(users)+1, "folder"))
			return out.Document(map[string]any{"revoked": args, "folders": len(users) + 1})
		},
	}
	cli.OutputFlag(cmd)
	cmd.Flags().StringVar(&dir, "dir", "certs", "folder of all certificates, as for certs")
	return cmd
}

// folderOf is the folder of an identity's certificate.
func folderOf(identity string) string { return strings.ReplaceAll(identity, "/", "_") }
