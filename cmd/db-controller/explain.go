package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func newExplain() *cobra.Command {
	return resourceCommand("explain NAME", "Show why a resource is pending, or still being deleted", "  db-controller explain //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, err := schema.ParseFullName(args[0])
			if err != nil {
				return err
			}
			admin, err := c.Admin(cmd.Context(), name.Deployment)
			if err != nil {
				return err
			}
			e, err := admin.Explain(cmd.Context(), &adminv1.ExplainRequest{Name: name.Name})
			if err != nil {
				return plain(err)
			}
			state := e.GetState()
			if e.GetPending() {
				state += ", PENDING"
			}
			cmd.Printf("%s  %s  %s  uid %s\n", e.GetName(), e.GetKind(), state, e.GetUid())
			if len(e.GetReasons()) == 0 {
				cmd.Println("  It waits for nothing.")
			}
			for _, r := range e.GetReasons() {
				cmd.Printf("  %-10s %s%s\n", r.GetType(), r.GetMessage(), sinceText(r))
				if r.GetLastError() != "" {
					cmd.Printf("  %-10s last error: %s\n", "", r.GetLastError())
				}
			}
			return nil
		})
}

func sinceText(r *adminv1.ExplainResponse_Reason) string {
	if r.GetSince() == nil {
		return ""
	}
	return fmt.Sprintf(", since %s", time.Since(r.GetSince().AsTime()).Round(time.Second))
}

func newStatus() *cobra.Command {
	return resourceCommand("status DEPLOYMENT", "Show the version, the processes and the outstanding work of a deployment", "  db-controller status iam.example.com/us-west2", ofDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			admin, err := c.Admin(cmd.Context(), id)
			if err != nil {
				return err
			}
			s, err := admin.Status(cmd.Context(), &adminv1.StatusRequest{})
			if err != nil {
				return plain(err)
			}
			cmd.Printf("%s runs %s, switched %d times\n", s.GetDeployment(), s.GetVersion(), s.GetGeneration())
			for _, p := range s.GetProcesses() {
				cmd.Println(processLine(p))
			}
			for _, d := range s.GetDecommissioned() {
				still := ""
				if d.GetWorking() {
					still = "; work on its references and resources is outstanding"
				}
				cmd.Printf("%s is decommissioned, by %s on %s: %s%s\n", d.GetDeployment(), d.GetSaidBy(), d.GetSaidTime().AsTime().Format(time.DateOnly), d.GetReason(), still)
			}
			for _, w := range s.GetWords() {
				cmd.Printf("%s of %s, by %s on %s: %s\n", w.GetWhat(), w.GetDeployment(), w.GetSaidBy(), w.GetSaidTime().AsTime().Format(time.DateOnly), w.GetReason())
			}
			for _, f := range s.GetFailures() {
				if f.GetHandler() == "database" {
					cmd.Printf("MESSAGES OF %s ARE IGNORED: %s\n", f.GetDeployment(), f.GetError())
				}
			}
			for _, line := range epochLines(s) {
				cmd.Println(line)
			}
			for _, k := range s.GetKept() {
				cmd.Printf("kept: %d resources of kind %s, such as %s, which the version does not describe: they can be read and deleted\n", k.GetResources(), k.GetKind(), k.GetSample())
			}
			for _, d := range s.GetDerivations() {
				cmd.Printf("deriving references of %s again: %d of %d done, %d set aside\n", d.GetKind(), d.GetDone(), d.GetTotal(), d.GetSetAside())
			}
			if len(s.GetOutstanding()) == 0 {
				cmd.Println("Nothing is outstanding.")
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "OUTSTANDING\tFOR\tCOUNT\tOLDEST")
			for _, o := range s.GetOutstanding() {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", o.GetGroup(), o.GetDeployment(), o.GetCount(), time.Since(o.GetOldestTime().AsTime()).Round(time.Second))
			}
			_ = w.Flush()
			for _, f := range s.GetFailures() {
				cmd.Printf("last failure of %s for %s, %s ago: %s\n", f.GetHandler(), f.GetDeployment(), time.Since(f.GetTime().AsTime()).Round(time.Second), f.GetError())
			}
			return nil
		})
}

// epochLines describe the epoch of the database while it restricts deletes or references have lost their targets.
func epochLines(s *adminv1.StatusResponse) []string {
	var lines []string
	e := s.GetEpoch()
	if e.GetOrdinal() > 1 {
		lines = append(lines, fmt.Sprintf("the database was failed over or restored %d times, last noticed %s ago",
			e.GetOrdinal()-1, time.Since(e.GetSince().AsTime()).Round(time.Second)))
	}
	if e.GetAwaitingRegistry() {
		lines = append(lines, "NOTHING IS DELETED until the registry returns the deployments that may refer to resources here: if its database was restored or failed over as well, apply the files that describe all deployments again")
	}
	if len(e.GetUnconfirmed()) > 0 {
		lines = append(lines, "NOTHING IS DELETED until these deployments have confirmed their references: "+strings.Join(e.GetUnconfirmed(), ", ")+
			" (for one that stays down: db-controller waive, or decommission)")
	}
	if n := s.GetDanglingReferences(); n > 0 {
		lines = append(lines, fmt.Sprintf("%d references have lost their targets: db-controller verify lists them, a person decides", n))
	}
	return lines
}

func processLine(p *adminv1.StatusResponse_Process) string {
	line := fmt.Sprintf("process %s has %d of %d shards, since %s", p.GetName(), len(p.GetShards()), schema.RingSize, time.Since(p.GetJoinTime().AsTime()).Round(time.Second))
	if late := time.Since(p.GetExpireTime().AsTime()); late > 0 {
		line += fmt.Sprintf("; its lease expired %s ago", late.Round(time.Second))
	}
	return line
}

func newBlockDeletion() *cobra.Command {
	var off bool
	cmd := resourceCommand("block-deletion NAME", "Refuse every delete of a resource until --off, for operators", "  db-controller block-deletion //iam.example.com/us-west2/projects/acme", ofResources(cobra.ExactArgs(1)),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, resources, err := c.Named(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if _, err := resources.SetBlockDeletion(cmd.Context(), &resourcev1.SetBlockDeletionRequest{Name: name.Name, BlockDeletion: !off}); err != nil {
				return plain(err)
			}
			if off {
				cmd.Println(name, "can be deleted again")
			} else {
				cmd.Println(name, "cannot be deleted until block-deletion --off")
			}
			return nil
		})
	cmd.Flags().BoolVar(&off, "off", false, "allow deletes again")
	return cmd
}

func newSetVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "set-version DEPLOYMENT VERSION",
		Short:   "Switch a deployment to another described version of its service",
		Example: "  db-controller set-version devices.example.com/eastus2 v2",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			c, err := openClient(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			d, err := c.SetVersion(cmd.Context(), id, args[1])
			if err != nil {
				return plain(err)
			}
			cmd.Printf("%s switches to %s; see its progress with: db-controller status %s\n", id, d.GetVersion(), id)
			return nil
		},
	}
	contextFlag(cmd)
	return cmd
}
