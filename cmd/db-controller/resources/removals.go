package resources

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// longestChain bounds how many links of a chain of removals are followed.
const longestChain = 100

// NewRemovals returns the command removals.
func NewRemovals() *cobra.Command {
	var uid, deletion string
	var all bool
	cmd := cli.NewDeploymentCommand("removals NAME | removals --deletion ID", "Show why the resources of a name were removed, up to the root of each deletion; or all that a deletion has removed",
		`  db-controller removals //devices.example.com/us-west2/projects/acme/devices/d1
  db-controller removals //iam.example.com/us-west2/projects/acme --all`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if deletion != "" {
				if _, err := uuid.Parse(deletion); err != nil {
					return cli.Usage("--deletion: %w", err)
				}
				return printReceipt(cmd, c, deletion)
			}
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return err
			}
			if uid != "" {
				if _, err := uuid.Parse(uid); err != nil {
					return cli.Usage("--uid: %w", err)
				}
			}
			found, err := removalsAt(cmd, c, name.Deployment, &adminv1.ListRemovalsRequest{Name: name.Name, Uid: uid})
			if err != nil {
				return err
			}
			if all && len(found) > 0 && found[0].GetDeletion() != "" { // the newest
				return printReceipt(cmd, c, found[0].GetDeletion())
			}
			out := cli.PrinterOf(cmd)
			if len(found) == 0 {
				out.Line("There is no record of a removal of %s: it was not removed, or longer ago than --removals-kept of its deployment.", args[0])
			}
			chains := make([]chain, len(found))
			for i, r := range found {
				chains[i] = follow(cmd, c, r)
				chains[i].print(out)
			}
			return out.Document(chains)
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if deletion != "" {
			return cobra.NoArgs(cmd, args)
		}
		return ofResources(cobra.ExactArgs(1))(cmd, args)
	}
	cmd.Long = `Show why the resources of a name were removed, up to the root of each deletion: the resource with which each was removed, the request, its caller and the time.

With --all, or --deletion, show all that one deletion has removed, in all deployments, and how many references it has unset: a receipt. For operators.`
	cmd.Flags().StringVar(&uid, "uid", "", "only the resource with this uid")
	cmd.Flags().BoolVar(&all, "all", false, "all that was removed, in all deployments, by the deletion that removed the newest resource of the name")
	cmd.Flags().StringVar(&deletion, "deletion", "", "all that the deletion with this id (delete -o json, removals -o json) has removed in all deployments")
	cmd.ValidArgsFunction = cli.CompleteNames(1)
	return cmd
}

func removalsAt(cmd *cobra.Command, c *client.Client, at schema.DeploymentID, req *adminv1.ListRemovalsRequest) ([]*adminv1.Removal, error) {
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
	Removals []json.RawMessage `json:"removals"`
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
	out.Line("%s  %s  uid %s, deletion decided %s, %s", first.GetName(), first.GetKind(), first.GetUid(), cli.At(first.GetDecideTime().AsTime()), state)
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
			strings.TrimPrefix(last.GetRoot(), "//"), cli.At(last.GetRequestTime().AsTime()), last.GetActor(), deploymentOf(last.GetName()))
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
	out.Line("  root%s: %s, deleted %s by %s%s", asTold(first, last), last.GetRoot(), cli.At(last.GetRequestTime().AsTime()), by, request)
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

// asTold names the deployment whose word the root is, unless the deployment of the first link has recorded the root itself.
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
