package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// receipt lists the resources that one deletion has removed in all deployments.
type receipt struct {
	Deletion string       `json:"deletion"`
	At       []*receiptAt `json:"deployments"` // that it reached, or that did not answer
}

// receiptAt is the part of a receipt in one deployment.
type receiptAt struct {
	Deployment string            `json:"deployment"`
	Removals   []json.RawMessage `json:"removals,omitempty"`
	// Unset is the number of references that were unset, as long as the deployment keeps the counts of the deletion.
	Unset int64  `json:"unset,omitempty"`
	Error string `json:"error,omitempty"`

	found []*adminv1.Removal
}

// printReceipt asks every deployment of the environment for the resources that a deletion has removed there.
func printReceipt(cmd *cobra.Command, c *client.Client, deletion string) error {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return cli.Plain(err)
	}
	of := receipt{Deletion: deletion, At: []*receiptAt{}}
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
	out := cli.PrinterOf(cmd)
	of.print(out)
	err = out.Document(of)
	for _, at := range of.At {
		if at.Error != "" {
			err = errors.Join(err, cli.WithCode(cli.Unavailable, fmt.Errorf("%s: %s", at.Deployment, at.Error)))
		}
	}
	return err
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

// unsetBy is the number of references that a deletion has unset in a deployment; 0 when its counts are not kept any more.
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
		out.Line("There is no record of deletion %s: it removed nothing, or longer ago than --removals-kept of each deployment.", r.Deletion)
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
}

// root names the root, and who deleted it, as the first record with it does.
func (r receipt) root() string {
	for _, at := range r.At {
		for _, f := range at.found {
			if f.GetRoot() == "" {
				continue
			}
			text := fmt.Sprintf(" of %s, %s", f.GetRoot(), cli.At(f.GetRequestTime().AsTime()))
			if f.GetActor() != "" {
				text += " by " + f.GetActor()
			}
			if f.GetRequestId() != "" {
				text += ", request " + f.GetRequestId()
			}
			return text
		}
	}
	return ""
}
