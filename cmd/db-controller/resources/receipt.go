package resources

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// receipt lists what one deletion has done in all deployments.
type receipt struct {
	Deletion string `json:"deletion"`
	// Root is the full name of the resource with which it began, and Actor who asked for it; empty when no
	// record of it is kept.
	Root        string       `json:"root,omitempty"`
	RootUID     string       `json:"rootUid,omitempty"`
	Actor       string       `json:"actor,omitempty"`
	RequestID   string       `json:"requestId,omitempty"`
	RequestTime string       `json:"requestTime,omitempty"`
	At          []*receiptAt `json:"deployments"` // that it reached, or that did not answer
	// Kept are fields that keep the name of the root.
	Kept   []keeper      `json:"kept"`
	Totals receiptTotals `json:"totals"`
	// Hash is of the compact JSON of all other fields.
	Hash string `json:"hash,omitempty"`
}

// receiptTotals are over all deployments that answered.
type receiptTotals struct {
	Removed  int   `json:"removed"`
	Deleting int   `json:"deleting"` // of the removed ones: in DELETING still
	Unset    int64 `json:"unset"`
	Kept     int   `json:"kept"`
}

// receiptAt is the part of a receipt in one deployment.
type receiptAt struct {
	Deployment string            `json:"deployment"`
	Removals   []json.RawMessage `json:"removals,omitempty" message:"dbcontroller.admin.v1.Removal"`
	// Unset is the number of references that were unset, as long as the deployment keeps the counts of the
	// deletion.
	Unset int64  `json:"unset,omitempty"`
	Error string `json:"error,omitempty"`

	found []*adminv1.Removal
}

// printReceiptOfRoot prints the receipt of the newest deletion that began with a resource.
func printReceiptOfRoot(cmd *cobra.Command, c *client.Client, root string) error {
	name, err := schema.ParseFullName(root)
	if err != nil {
		return err
	}
	found, err := removalsAt(cmd, c, name.Deployment, &adminv1.ListRemovalsRequest{Name: name.Name})
	if err != nil {
		return err
	}
	for _, r := range found {
		if r.GetHow() == "REQUESTED" && r.GetDeletion() != "" {
			return printReceipt(cmd, c, r.GetDeletion())
		}
	}
	if len(found) > 0 && found[0].GetRoot() != "" {
		return cli.WithCode(cli.Refused, fmt.Errorf("%s was removed with %s: removals --root %s", name,
			found[0].GetRoot(), found[0].GetRoot()))
	}
	if r, err := c.Get(cmd.Context(), root); err == nil && r.GetPurgeTime() != nil {
		return cli.WithCode(cli.Refused,
			fmt.Errorf("%s is hidden, and nothing is removed before %s: explain %s shows its deletion", name,
				r.GetPurgeTime().AsTime().Format(time.RFC3339), name))
	}
	return cli.WithCode(cli.Refused,
		fmt.Errorf(
			"there is no record that a deletion began with %s: it was not deleted, or longer ago than --removals-kept of its deployment", name))
}

// printReceiptsOfRequest prints the receipts of the deletions that a request has begun, in whichever
// deployment.
func printReceiptsOfRequest(cmd *cobra.Command, c *client.Client, request string) error {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return cli.Plain(err)
	}
	var deletions []string
	var failed error
	for _, d := range env.Deployments {
		found, err := removalsAt(cmd, c, d.DeploymentID, &adminv1.ListRemovalsRequest{Request: request, PageSize: 1000})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", d.DeploymentID, err))
		}
		for _, r := range found {
			if !slices.Contains(deletions, r.GetDeletion()) {
				deletions = append(deletions, r.GetDeletion())
			}
		}
	}
	if len(deletions) == 0 && failed == nil {
		return cli.WithCode(cli.Refused,
			fmt.Errorf(
				"there is no record of a removal by the request %s: it has removed nothing, or longer ago than --removals-kept of its deployment", request))
	}
	out, all := cli.PrinterOf(cmd), []*receipt{}
	for _, deletion := range deletions {
		of, err := receiptFor(cmd, c, deletion)
		failed = errors.Join(failed, err)
		if of != nil {
			of.print(out)
			all = append(all, of)
			failed = errors.Join(failed, out.Names(of.names()...))
		}
	}
	return errors.Join(out.Document(all), failed)
}

func printReceipt(cmd *cobra.Command, c *client.Client, deletion string) error {
	of, err := receiptFor(cmd, c, deletion)
	if of == nil {
		return err
	}
	out := cli.PrinterOf(cmd)
	of.print(out)
	return errors.Join(out.Names(of.names()...), out.Document(of), err)
}

// receiptFor asks every deployment of the environment for the effects of a deletion there. An error that
// comes with a receipt names the parts that it lacks.
func receiptFor(cmd *cobra.Command, c *client.Client, deletion string) (*receipt, error) {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return nil, cli.Plain(err)
	}
	of := &receipt{Deletion: deletion, At: []*receiptAt{}, Kept: []keeper{}}
	var mu sync.Mutex // of of.At
	var g errgroup.Group
	g.SetLimit(progressCalls)
	for _, d := range env.Deployments {
		g.Go(func() error {
			at := receiptOf(cmd, c, d.DeploymentID, deletion)
			if len(at.found) == 0 && at.Unset == 0 && at.Error == "" {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			of.At = append(of.At, at)
			return nil
		})
	}
	_ = g.Wait() // errors are in the receipt
	slices.SortFunc(of.At, func(a, b *receiptAt) int { return strings.Compare(a.Deployment, b.Deployment) })
	for _, at := range of.At {
		if at.Error != "" {
			err = errors.Join(err, cli.WithCode(cli.Unavailable, fmt.Errorf("%s: %s", at.Deployment, at.Error)))
		}
	}
	of.sum()
	if root, nameErr := schema.ParseFullName(of.Root); nameErr == nil {
		kept, failed := keepersAfter(cmd.Context(), c, root)
		of.Kept, of.Totals.Kept = append(of.Kept, kept...), len(kept)
		err = errors.Join(err, failed)
	}
	of.Hash = of.hash()
	of.record(cmd.Context(), c)
	return of, err
}

// sum fills in the totals, and the root as the first record with it has it.
func (r *receipt) sum() {
	for _, at := range r.At {
		r.Totals.Unset += at.Unset
		for _, f := range at.found {
			r.Totals.Removed++
			if !f.GetGone() {
				r.Totals.Deleting++
			}
			if r.Root == "" && f.GetRoot() != "" {
				r.Root, r.RootUID, r.Actor, r.RequestID = f.GetRoot(), f.GetRootUid(), f.GetActor(), f.GetRequestId()
				r.RequestTime = cli.At(f.GetRequestTime().AsTime())
			}
		}
	}
}

// names are those of all removed resources.
func (r receipt) names() (names []string) {
	for _, at := range r.At {
		names = append(names, namesOf(at.found)...)
	}
	return names
}

func (r receipt) hash() string {
	r.Hash = ""
	raw, err := json.Marshal(r)
	if err != nil {
		return "" // a receipt has no values that cannot be encoded
	}
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// recordedAs is the request id of the call that tells a hash to an audit log: its first 128 bits.
func recordedAs(hash string) string {
	raw, err := hex.DecodeString(strings.TrimPrefix(hash, "sha256:"))
	if err != nil || len(raw) < 16 {
		return ""
	}
	return uuid.UUID(raw[:16]).String()
}

// record reads one record at the root's deployment, whose audit log has the request id of the call.
func (r receipt) record(ctx context.Context, c *client.Client) {
	root, err := schema.ParseFullName(r.Root)
	if err != nil {
		return
	}
	if admin, err := c.Admin(ctx, root.Deployment); err == nil {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", recordedAs(r.Hash))
		// the receipt is good without it
		_, _ = admin.ListRemovals(ctx, &adminv1.ListRemovalsRequest{Deletion: r.Deletion, PageSize: 1})
	}
}

// verifyReceipt computes the hash of a receipt in a file again.
func verifyReceipt(cmd *cobra.Command, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all := []*receipt{}
	if err := json.Unmarshal(raw, &all); err != nil {
		one := &receipt{}
		if err := json.Unmarshal(raw, one); err != nil {
			return cli.Usage("%s: no receipt in JSON: %w", path, err)
		}
		all = append(all, one)
	}
	out, verified := cli.PrinterOf(cmd), []verifiedReceipt{}
	for _, r := range all {
		if r.Hash == "" || r.Hash != r.hash() {
			err = errors.Join(err,
				fmt.Errorf("%s: the receipt of the deletion %s is not as it was printed: its hash is %s", path,
					r.Deletion, r.hash()))
			continue
		}
		out.Line("The receipt of the deletion %s is as it was printed. In an audit log: a line with the request id %s.",
			r.Deletion, recordedAs(r.Hash))
		verified = append(verified, verifiedReceipt{r.Deletion, r.Hash, recordedAs(r.Hash)})
	}
	return errors.Join(out.Document(verified), err)
}

// verifiedReceipt is a receipt whose hash is right, and the request id of the call that has told it to the
// deployment of its root.
type verifiedReceipt struct {
	Deletion  string `json:"deletion"`
	Hash      string `json:"hash"`
	RequestID string `json:"requestId"`
}

func receiptOf(cmd *cobra.Command, c *client.Client, id schema.DeploymentID, deletion string) *receiptAt {
	at := &receiptAt{Deployment: id.String()}
	found, err := removalsAt(cmd, c, id, &adminv1.ListRemovalsRequest{Deletion: deletion, PageSize: 1000})
	if err != nil {
		at.Error = err.Error()
		return at
	}
	at.found, at.Removals = found, cli.Messages(found)
	at.Unset = unsetBy(cmd.Context(), c, id, deletion)
	return at
}

// unsetBy is the number of references that a deletion has unset in a deployment; 0 when its counts are not
// kept any more.
func unsetBy(ctx context.Context, c *client.Client, id schema.DeploymentID, deletion string) int64 {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	admin, err := c.Admin(ctx, id)
	if err != nil {
		return 0
	}
	counts, err := admin.ListDeletions(ctx, &adminv1.ListDeletionsRequest{Deletion: deletion})
	if err != nil || len(counts.GetDeletions()) == 0 {
		return 0
	}
	return counts.GetDeletions()[0].GetUnset()
}

// maxListed is the number of resources of a deployment that people see.
const maxListed = 20

func (r receipt) print(out cli.Printer) {
	if len(r.At) == 0 {
		out.Line(
			"There is no record of deletion %s: it removed nothing, or longer ago than --removals-kept of each deployment.", r.Deletion)
		return
	}
	out.Line("deletion %s%s", r.Deletion, r.root())
	for _, at := range r.At {
		if at.Error != "" {
			out.Line("%s: %s", at.Deployment, at.Error)
			continue
		}
		going := 0
		for _, f := range at.found {
			if !f.GetGone() {
				going++
			}
		}
		text := cli.Plural(len(at.found), "resource") + " removed"
		if going > 0 {
			text += fmt.Sprintf(", %d of them still DELETING", going)
		}
		if at.Unset > 0 {
			text += ", " + cli.Plural(at.Unset, "reference") + " unset"
		}
		out.Line("%s: %s", at.Deployment, text)
		for _, f := range at.found[:min(len(at.found), maxListed)] {
			out.Line("  %s  %s  uid %s  %s", f.GetName(), f.GetKind(), f.GetUid(), cli.At(f.GetDecideTime().AsTime()))
		}
		if more := len(at.found) - maxListed; more > 0 {
			out.Line("  and %d more: -o json lists all", more)
		}
	}
	printKeepers(out, r.Kept)
	out.Line("in all: %s removed, %s unset, %s kept; %s", cli.Plural(r.Totals.Removed, "resource"),
		cli.Plural(r.Totals.Unset, "reference"), cli.Plural(r.Totals.Kept, "name"), r.Hash)
}

// root names the root, and who deleted it.
func (r receipt) root() string {
	if r.Root == "" {
		return ""
	}
	text := fmt.Sprintf(" of %s, %s", r.Root, r.RequestTime)
	if r.Actor != "" {
		text += " by " + r.Actor
	}
	if r.RequestID != "" {
		text += ", request " + r.RequestID
	}
	return text
}
