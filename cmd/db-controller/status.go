package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// statusesAtOnce bounds the deployments that are asked at the same time.
const statusesAtOnce = 16

func newStatus() *cobra.Command {
	var all bool
	cmd := resourceCommand("status DEPLOYMENT | status --all", "Show the version, the processes and the outstanding work of deployments", `  db-controller status iam.example.com/us-west2
  db-controller status --all`, nil,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all {
				return statusOfAll(cmd, c)
			}
			id, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			s, err := statusOf(cmd.Context(), c, id)
			if err != nil {
				return plain(err)
			}
			out := printerOf(cmd)
			printStatus(out, s)
			return out.document(s)
		})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if all {
			return cobra.NoArgs(cmd, args)
		}
		return ofDeployment(cmd, args)
	}
	cmd.Flags().BoolVar(&all, "all", false, "a line for each deployment of the environment")
	cmd.ValidArgsFunction = completeDeployments(1)
	return cmd
}

func statusOf(ctx context.Context, c *client.Client, id schema.DeploymentID) (*adminv1.StatusResponse, error) {
	admin, err := c.Admin(ctx, id)
	if err != nil {
		return nil, err
	}
	return admin.Status(ctx, &adminv1.StatusRequest{})
}

// deploymentStatus is the answer of a deployment, or the reason why there is none.
type deploymentStatus struct {
	Deployment string          `json:"deployment"`
	Status     json.RawMessage `json:"status,omitempty"`
	Error      string          `json:"error,omitempty"`

	answer *adminv1.StatusResponse
}

// statusOfAll asks every deployment of the environment. It fails when one of them does not answer.
func statusOfAll(cmd *cobra.Command, c *client.Client) error {
	env, err := c.Environment(cmd.Context())
	if err != nil {
		return err
	}
	found := make([]deploymentStatus, len(env.Deployments))
	var g errgroup.Group
	g.SetLimit(statusesAtOnce)
	for i, d := range env.Deployments {
		found[i].Deployment = d.String()
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			s, err := statusOf(ctx, c, d.DeploymentID)
			if err != nil {
				found[i].Error = plain(err).Error()
				return nil
			}
			found[i].answer, found[i].Status = s, message(s)
			return nil
		})
	}
	_ = g.Wait() // the errors are in found
	return printStatuses(printerOf(cmd), found)
}

func printStatuses(out printer, found []deploymentStatus) error {
	var rows [][]any
	silent := 0
	for _, f := range found {
		if f.answer == nil {
			silent++
			rows = append(rows, []any{f.Deployment, "", "", "", "", f.Error})
			continue
		}
		count, oldest := int64(0), ""
		var since time.Time
		for _, o := range f.answer.GetOutstanding() {
			count += o.GetCount()
			if t := o.GetOldestTime().AsTime(); since.IsZero() || t.Before(since) {
				since, oldest = t, ago(t)
			}
		}
		rows = append(rows, []any{f.Deployment, f.answer.GetVersion(), len(f.answer.GetProcesses()), count, oldest, strings.Join(notes(f.answer), "; ")})
	}
	out.table("DEPLOYMENT VERSION PROCESSES OUTSTANDING OLDEST NOTES", rows)
	err := out.document(found)
	if err == nil && silent > 0 {
		err = &exitError{exitUnavailable, fmt.Errorf("%d of %s did not answer", silent, plural(len(found), "deployment"))}
	}
	return err
}

// notes are what an operator has to know beside the numbers.
func notes(s *adminv1.StatusResponse) []string {
	lines := epochLines(s)
	for _, f := range s.GetFailures() {
		lines = append(lines, fmt.Sprintf("%s for %s fails: %s", f.GetHandler(), f.GetDeployment(), f.GetError()))
	}
	return lines
}

func printStatus(out printer, s *adminv1.StatusResponse) {
	out.line("%s runs %s, switched %s", s.GetDeployment(), s.GetVersion(), plural(s.GetGeneration(), "time"))
	for _, p := range s.GetProcesses() {
		out.line("%s", processLine(p))
	}
	printDecisions(out, s)
	for _, line := range epochLines(s) {
		out.line("%s", line)
	}
	for _, d := range s.GetDelegations() {
		out.line("delegations: may refer to %s of %s without asking", plural(d.GetActingHeld(), "resource"), d.GetDeployment())
	}
	for _, k := range s.GetKept() {
		out.line("kept: %s of kind %s, such as %s, which the version does not describe: they can be read and deleted", plural(k.GetResources(), "resource"), k.GetKind(), k.GetSample())
	}
	for _, d := range s.GetDerivations() {
		out.line("deriving references of %s again: %d of %d done, %d set aside", d.GetKind(), d.GetDone(), d.GetTotal(), d.GetSetAside())
	}
	if len(s.GetOutstanding()) == 0 {
		out.line("Nothing is outstanding.")
		return
	}
	var rows [][]any
	for _, o := range s.GetOutstanding() {
		rows = append(rows, []any{o.GetGroup(), o.GetDeployment(), o.GetCount(), time.Since(o.GetOldestTime().AsTime()).Round(time.Second)})
	}
	out.table("OUTSTANDING FOR COUNT OLDEST", rows)
	for _, f := range s.GetFailures() {
		out.line("last failure of %s for %s, %s ago: %s", f.GetHandler(), f.GetDeployment(), time.Since(f.GetTime().AsTime()).Round(time.Second), f.GetError())
	}
}

// printDecisions shows what operators have decided about other deployments.
func printDecisions(out printer, s *adminv1.StatusResponse) {
	for _, d := range s.GetDecommissioned() {
		still := ""
		if d.GetWorking() {
			still = "; work on its references and resources is outstanding"
		}
		out.line("%s is decommissioned, by %s on %s: %s%s", d.GetDeployment(), d.GetSaidBy(), at(d.GetSaidTime().AsTime()), d.GetReason(), still)
	}
	for _, w := range s.GetWords() {
		out.line("%s of %s, by %s on %s: %s", w.GetWhat(), w.GetDeployment(), w.GetSaidBy(), at(w.GetSaidTime().AsTime()), w.GetReason())
	}
	for _, f := range s.GetFailures() {
		if f.GetHandler() == "database" {
			out.line("MESSAGES OF %s ARE IGNORED: %s", f.GetDeployment(), f.GetError())
		}
	}
}

// epochLines describe the epoch of the database while it restricts deletes or references have lost their targets.
func epochLines(s *adminv1.StatusResponse) []string {
	var lines []string
	e := s.GetEpoch()
	if e.GetOrdinal() > 1 {
		lines = append(lines, fmt.Sprintf("the database was failed over or restored %s, last noticed %s ago",
			plural(e.GetOrdinal()-1, "time"), time.Since(e.GetSince().AsTime()).Round(time.Second)))
	}
	if e.GetAwaitingRegistry() {
		lines = append(lines, "NOTHING IS DELETED until the registry returns the deployments that may refer to resources here: if its database was restored or failed over as well, apply the files that describe all deployments again")
	}
	if len(e.GetUnconfirmed()) > 0 {
		lines = append(lines, "NOTHING IS DELETED until these deployments have confirmed their references: "+strings.Join(e.GetUnconfirmed(), ", ")+
			" (for one that stays down: db-controller waive, or decommission)")
	}
	if n := s.GetDanglingReferences(); n > 0 {
		lines = append(lines, fmt.Sprintf("%s without a target: db-controller verify lists them, a person decides about each, or about all (--repair --dangling=act)", plural(n, "reference")))
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
