package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// longestChain bounds how many links of a chain of removals are followed.
const longestChain = 100

func newRemovals() *cobra.Command {
	var uid string
	cmd := resourceCommand("removals NAME", "Show why the resources of a name were removed, up to the root of each deletion",
		"  db-controller removals //devices.example.com/us-west2/projects/acme/devices/d1", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return err
			}
			if uid != "" {
				if _, err := uuid.Parse(uid); err != nil {
					return fmt.Errorf("--uid: %w", err)
				}
			}
			found, err := removalsAt(cmd, c, name.Deployment, &adminv1.ListRemovalsRequest{Name: name.Name, Uid: uid})
			if err != nil {
				return err
			}
			if len(found) == 0 {
				cmd.Printf("There is no record of a removal of %s: it was not removed, or longer ago than --removals-kept of its deployment.\n", args[0])
				return nil
			}
			for _, r := range found {
				printChain(cmd, c, r)
			}
			return nil
		})
	cmd.Flags().StringVar(&uid, "uid", "", "only the resource with this uid")
	return cmd
}

func removalsAt(cmd *cobra.Command, c *client.Client, at schema.DeploymentID, req *adminv1.ListRemovalsRequest) ([]*adminv1.Removal, error) {
	admin, err := c.Admin(cmd.Context(), at)
	if err != nil {
		return nil, err
	}
	answer, err := admin.ListRemovals(cmd.Context(), req)
	if err != nil {
		return nil, plain(err)
	}
	return answer.GetRemovals(), nil
}

// printChain follows the cause of a removal from deployment to deployment.
func printChain(cmd *cobra.Command, c *client.Client, r *adminv1.Removal) {
	first := r
	state := "gone"
	if !r.GetGone() {
		state = "still DELETING"
	}
	cmd.Printf("%s  %s  uid %s, removed %s, %s\n", r.GetName(), r.GetKind(), r.GetUid(), localTime(r.GetDecideTime().AsTime()), state)
	for range longestChain {
		if r.GetVia() == "" {
			break
		}
		word := "cascaded with"
		if r.GetHow() == "OWNER_GONE" {
			word = "lost its last owner,"
		}
		next, err := nextLink(cmd, c, r)
		switch {
		case err != nil:
			cmd.Printf("  %s %s, whose deployment does not answer: %v\n", word, r.GetVia(), err)
		case next == nil:
			cmd.Printf("  %s %s, of which no record is kept\n", word, r.GetVia())
		default:
			cmd.Printf("  %s %s  %s  uid %s\n", word, next.GetName(), next.GetKind(), next.GetUid())
			r = next
			continue
		}
		break
	}
	if r.GetRoot() == "" {
		cmd.Println("  the record of the root is no longer kept")
		return
	}
	by := r.GetActor()
	if by == "" {
		by = "nobody: it did not exist any more"
	}
	request := ""
	if r.GetRequestId() != "" {
		request = ", request " + r.GetRequestId()
	}
	cmd.Printf("  root%s: %s, deleted %s by %s%s\n", asTold(first, r), r.GetRoot(), localTime(r.GetRequestTime().AsTime()), by, request)
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

func localTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
