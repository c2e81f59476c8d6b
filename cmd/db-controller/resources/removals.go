package resources

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// longestChain bounds how many links of a chain of removals are followed.
const longestChain = 100

// NewRemovals returns the command removals.
func NewRemovals() *cobra.Command {
	var uid, deletion, root, request, since, verify string
	cmd := cli.NewDeploymentCommand(
		"removals NAME | removals DEPLOYMENT --since TOKEN | removals --root NAME | removals --request ID",
		"Show why the resources of a name were removed, up to the root of each deletion; what was removed since a token; or a receipt of a deletion",
		`  db-controller removals //devices.example.com/us-west2/projects/acme/devices/d1
  db-controller removals devices.example.com/eastus2 --since "$TOKEN"     # resumeToken of watch -o json, or View.Position of a controller
  db-controller removals --root //iam.example.com/us-west2/projects/acme -o json > receipt.json
  db-controller removals --verify receipt.json`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			switch {
			case verify != "":
				return verifyReceipt(cmd, verify)
			case root != "":
				return printReceiptOfRoot(cmd, c, root)
			case request != "":
				return printReceiptsOfRequest(cmd, c, request)
			case deletion != "":
				return printReceipt(cmd, c, deletion)
			case since != "":
				return printRemovalsSince(cmd, c, args[0], since)
			}
			return printChains(cmd, c, args[0], uid)
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cli.AtMostOne("uid", "root", "request", "deletion", "since", "verify")(cmd, args); err != nil {
			return err
		}
		for flag, id := range map[string]string{"uid": uid, "deletion": deletion, "request": request} {
			if _, err := uuid.Parse(id); err != nil && id != "" {
				return cli.Usage("--%s: %w", flag, err)
			}
		}
		if _, err := schema.ParseFullName(root); err != nil && root != "" {
			return cli.Usage("--root: %w", err)
		}
		switch {
		case root != "" || request != "" || deletion != "" || verify != "":
			return cobra.NoArgs(cmd, args)
		case since != "":
			return cli.OfDeployment(cmd, args)
		}
		return ofResources(cobra.ExactArgs(1))(cmd, args)
	}
	cmd.Long = `Show why the resources of a name were removed, up to the root of each deletion: the resource with which each was removed, the request, its caller and the time.

With --since, list the resources of a deployment that were removed after a token of a watch of its resources, whatever that watch selected: what a controller has
missed while it did not run. Tokens are good for --changes-kept of the deployment (24 hours by default).

With --root, --request or --deletion, print a receipt: all resources that one deletion has removed, in all deployments, the number of references that it has unset,
and the fields that keep the name of its root (ALLOW_DANGLING). Its hash is of the whole receipt, and the same as long as the records are. The deployment of the root
is told the hash, as the request id of a call: its audit log, if it has reads, has this line in its chain of hashes. --verify compares a receipt in JSON with its hash.`
	cmd.Flags().StringVar(&uid, "uid", "", "only the resource with this uid")
	cmd.Flags().StringVar(&root, "root", "",
		"full name of a resource: the receipt of the newest deletion that began with it")
	cmd.Flags().StringVar(&request, "request", "", "request id of a delete: the receipts of what it has deleted")
	cmd.Flags().StringVar(&deletion, "deletion", "",
		"the receipt of the deletion with this id (delete -o json, removals -o json)")
	cmd.Flags().StringVar(&since, "since", "", "what was removed after this token of a watch")
	cmd.Flags().StringVar(&verify, "verify", "", "`FILE` with a receipt in JSON, whose hash is computed again")
	cli.NamesToo(cmd)
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

// printChains shows the causes of the removals of a name.
func printChains(cmd *cobra.Command, c *client.Client, of, uid string) error {
	name, err := schema.ParseFullName(of)
	if err != nil {
		return err
	}
	found, err := removalsAt(cmd, c, name.Deployment, &adminv1.ListRemovalsRequest{Name: name.Name, Uid: uid})
	if err != nil {
		return err
	}
	out := cli.PrinterOf(cmd)
	if len(found) == 0 {
		out.Line(
			"There is no record of a removal of %s: it was not removed, or longer ago than --removals-kept of its deployment.", of)
	}
	chains := make([]chain, len(found))
	for i, r := range found {
		chains[i] = follow(cmd, c, r)
		chains[i].print(out)
	}
	return errors.Join(out.Names(namesOf(found)...), out.Document(chains))
}

// printRemovalsSince lists the resources removed in a deployment after a token.
func printRemovalsSince(cmd *cobra.Command, c *client.Client, of, token string) error {
	id, err := schema.ParseDeploymentID(of)
	if err != nil {
		return err
	}
	found, err := removalsAt(cmd, c, id, &adminv1.ListRemovalsRequest{Since: token, PageSize: 1000})
	if err != nil {
		if status.Code(err) == codes.OutOfRange {
			return fmt.Errorf(
				"%w: what was removed since is not known; compare a list of the resources with what you know, and \"removals NAME\" tells of each one", err)
		}
		return err
	}
	out, rows := cli.PrinterOf(cmd), [][]any{}
	for _, r := range found {
		rows = append(rows, []any{
			r.GetName(), r.GetKind(), r.GetUid(), cli.At(r.GetDecideTime().AsTime()),
			cmp.Or(r.GetRoot(), "-"), cmp.Or(r.GetActor(), "-"),
		})
	}
	if len(found) == 0 {
		out.Line("Nothing was removed in %s since then.", id)
	} else {
		out.Table("NAME KIND UID DECIDED ROOT BY", rows)
	}
	return errors.Join(out.Names(namesOf(found)...), out.Document(cli.Messages(found)))
}

func namesOf(removals []*adminv1.Removal) []string {
	names := make([]string, len(removals))
	for i, r := range removals {
		names[i] = r.GetName()
	}
	return names
}

func removalsAt(cmd *cobra.Command, c *client.Client, at schema.DeploymentID,
	req *adminv1.ListRemovalsRequest,
) ([]*adminv1.Removal, error) {
	admin, err := c.Admin(cmd.Context(), at)
	if err != nil {
		return nil, err
	}
	var all []*adminv1.Removal
	for {
		answer, err := admin.ListRemovals(cmd.Context(), req)
		if err != nil {
			return nil, cli.Plain(err)
		}
		all = append(all, answer.GetRemovals()...)
		if req.PageToken = answer.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}

// chain is a removal with its causes, up to the root as far as records are kept.
type chain struct {
	Removals []json.RawMessage `json:"removals" message:"dbcontroller.admin.v1.Removal"`
	// Incomplete says why the chain ends before its root.
	Incomplete string `json:"incomplete,omitempty"`

	links []*adminv1.Removal
}

// follow follows the cause of a removal from deployment to deployment.
func follow(cmd *cobra.Command, c *client.Client, r *adminv1.Removal) (found chain) {
	found.links = []*adminv1.Removal{r}
	for range longestChain {
		if r.GetVia() == "" {
			break
		}
		next, err := nextLink(cmd, c, r)
		if err != nil {
			found.Incomplete = fmt.Sprintf("%s, whose deployment does not answer: %v", r.GetVia(), err)
			break
		}
		if next == nil {
			found.Incomplete = r.GetVia() + ", of which no record is kept"
			break
		}
		found.links = append(found.links, next)
		r = next
	}
	found.Removals = cli.Messages(found.links)
	return found
}

func (f chain) print(out cli.Printer) {
	first, last := f.links[0], f.links[len(f.links)-1]
	state := "gone"
	if !first.GetGone() {
		state = "still DELETING"
	}
	out.Line("%s  %s  uid %s, deletion decided %s, %s", first.GetName(), first.GetKind(), first.GetUid(),
		cli.At(first.GetDecideTime().AsTime()), state)
	for i, r := range f.links[1:] {
		out.Line("  %s %s  %s  uid %s", because(f.links[i]), r.GetName(), r.GetKind(), r.GetUid())
	}
	if f.Incomplete != "" {
		out.Line("  %s %s", because(last), f.Incomplete)
	}
	if last.GetRoot() == "" {
		out.Line("  the record of the root is no longer kept")
		return
	}
	if _, err := schema.ParseFullName(last.GetRoot()); err != nil {
		out.Line("  root: a decision about %s, %s by %s; for its reason: db-controller status %s",
			strings.TrimPrefix(last.GetRoot(), "//"), cli.At(last.GetRequestTime().AsTime()), last.GetActor(),
			deploymentOf(last.GetName()))
		return
	}
	by := last.GetActor()
	if by == "" {
		by = "nobody: it did not exist any more"
	}
	request := ""
	if last.GetRequestId() != "" {
		request = ", request " + last.GetRequestId()
	}
	out.Line("  root%s: %s, deleted %s by %s%s", asTold(first, last), last.GetRoot(),
		cli.At(last.GetRequestTime().AsTime()), by, request)
}

func because(r *adminv1.Removal) string {
	if r.GetHow() == "OWNER_GONE" {
		return "lost its last owner,"
	}
	return "cascaded with"
}

// deploymentOf returns the deployment of a full name.
func deploymentOf(name string) string {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return ""
	}
	return full.Deployment.String()
}

// asTold names the deployment whose word the root is, unless the deployment of the first link has recorded
// the root itself.
func asTold(first, last *adminv1.Removal) string {
	by := last.GetToldBy()
	of, err := schema.ParseFullName(last.GetName())
	own, ownErr := schema.ParseFullName(first.GetName())
	if by == "" && err == nil && ownErr == nil && of.Deployment != own.Deployment {
		by = of.Deployment.String()
	}
	if by == "" {
		return ""
	}
	return ", as told by " + by
}

// nextLink returns the removal that caused r; nil: its record is no longer kept.
func nextLink(cmd *cobra.Command, c *client.Client, r *adminv1.Removal) (*adminv1.Removal, error) {
	via, err := schema.ParseFullName(r.GetVia())
	if err != nil || r.GetViaUid() == "" {
		return nil, err
	}
	found, err := removalsAt(cmd, c, via.Deployment, &adminv1.ListRemovalsRequest{Name: via.Name, Uid: r.GetViaUid()})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}
