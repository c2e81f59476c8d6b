package operate

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// pausing names the handlers and deployments that pause and resume change.
type pausing struct{ of, handler, reason string }

// among returns the pause of a deployment that p names, or nil.
func (p pausing) among(pauses []*adminv1.Pause, at schema.DeploymentID) *adminv1.Pause {
	for _, k := range pauses {
		if k.GetOf() == cmp.Or(p.of, at.String()) && k.GetHandler() == p.handler {
			return k
		}
	}
	return nil
}

// NewPause returns the command pause.
func NewPause() *cobra.Command {
	cmd := newPauseCommand("pause", "Stop deletions or a handler in a deployment until resume, for operators",
		pauseTexts{
			"%s deletes nothing until resume", "%s does nothing for deletions of %s until resume",
			"%s: %s is paused until resume", "%s: %s is paused for %s until resume",
		}, func(ctx context.Context, c *client.Client, admin adminv1.AdminServiceClient, p pausing) error {
			if err := checkListed(ctx, c, "of", p.of); err != nil {
				return err
			}
			_, err := admin.Pause(ctx, &adminv1.PauseRequest{Of: p.of, Handler: p.handler, Reason: p.reason})
			return err
		}, func(_ []*adminv1.Pause, before *adminv1.Pause) string {
			if before == nil {
				return ""
			}
			return fmt.Sprintf("it was paused before, by %s on %s: %s", before.GetActor(),
				cli.At(before.GetTime().AsTime()), before.GetReason())
		})
	cmd.Long = `Stop deletions or a handler in a deployment until resume.

Nothing is marked or removed in the deployment: deletes are answered UNAVAILABLE, and deletions of other deployments that reach it
wait; with --of, only those of one other deployment. References are written, confirmed and released.

With --handler, only this handler stops, in every process within a second; its work waits in the database:

  owned-pending         confirms, releases, resolves, checks of owners, derivations, comparisons after a failover. References whose writers
                        did not answer stay undecided: deletes of their targets wait
  owned-deleting        the removal of resources in DELETING that wait for nothing any more, and of deleted owners
  subscribed-deleting   cascades and unsets for deletions in other deployments, which wait for this one

A pause outlives restarts. A transaction that has begun may still end. status, stuck and explain show each pause and its operator.`
	return cmd
}

// NewResume returns the command resume.
func NewResume() *cobra.Command {
	return newPauseCommand("resume", "End a pause, for operators", pauseTexts{
		"%s deletes again", "%s acts upon deletions of %s again", "%s: %s works again", "%s: %s works for %s again",
	}, func(ctx context.Context, _ *client.Client, admin adminv1.AdminServiceClient, p pausing) error {
		_, err := admin.Resume(ctx, &adminv1.ResumeRequest{Of: p.of, Handler: p.handler, Reason: p.reason})
		return err
	}, func(pauses []*adminv1.Pause, before *adminv1.Pause) string {
		switch {
		case before != nil:
			return ""
		case len(pauses) == 0:
			return "nothing was paused"
		}
		return "there was no such pause: status shows the others"
	})
}

// pauseTexts are the messages of both commands, with the deployment, the handler and the other deployment.
type pauseTexts struct{ all, some, handler, handlerFor string }

func (t pauseTexts) print(out cli.Printer, at schema.DeploymentID, p pausing) {
	handler := schema.Handler(p.handler).Text()
	switch {
	case p.handler != "" && p.of != "":
		out.Line(t.handlerFor, at, handler, p.of)
	case p.handler != "":
		out.Line(t.handler, at, handler)
	case p.of != "":
		out.Line(t.some, at, p.of)
	default:
		out.Line(t.all, at)
	}
}

// newPauseCommand returns pause or resume. note describes a call that changes nothing, by the pauses before
// it and the named pause.
func newPauseCommand(name, short string, texts pauseTexts, call func(context.Context, *client.Client,
	adminv1.AdminServiceClient, pausing) error, note func(pauses []*adminv1.Pause,
	named *adminv1.Pause) string,
) *cobra.Command {
	var p pausing
	cmd := cli.NewDeploymentCommand(name+" DEPLOYMENT [--handler HANDLER] [--of OTHER] --reason TEXT", short, `  db-controller `+name+` iam.example.com/us-west2 --of devices.example.com/eastus2 --reason "ticket 4711"
  db-controller `+name+` iam.example.com/us-west2 --handler owned-pending --reason "ticket 4711"`, cli.OfDeployment,
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			at, err := schema.ParseDeploymentID(args[0])
			if err != nil {
				return err
			}
			if err := p.check(); err != nil {
				return err
			}
			admin, err := c.Admin(cmd.Context(), at)
			if err != nil {
				return err
			}
			before, err := admin.Status(cmd.Context(), &adminv1.StatusRequest{})
			if err == nil {
				err = call(cmd.Context(), c, admin, p)
			}
			if err != nil {
				return cli.Plain(err)
			}
			out := cli.PrinterOf(cmd)
			done := map[string]string{"deployment": at.String(), "of": cmp.Or(p.of, at.String())}
			if p.handler != "" {
				done["handler"] = p.handler
			}
			named := p.among(before.GetPauses(), at)
			unchanged := note(before.GetPauses(), named)
			if unchanged == "" || named != nil { // else it would report the end of no pause
				texts.print(out, at, p)
			}
			if unchanged != "" {
				out.Line("%s: nothing has changed: %s", at, unchanged)
				done["unchanged"] = unchanged
			}
			return out.Document(done)
		})
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	cmd.Flags().StringVar(&p.of, "of", "",
		"service/region of another deployment whose deletions, or work with --handler, are meant (default: all)")
	cmd.Flags().StringVar(&p.handler, "handler", "", "only this handler: "+schema.HandlerNames())
	cmd.Flags().StringVar(&p.reason, "reason", "", "the reason, which the deployment stores")
	return cmd
}

// check checks the flags, and brings the handler into the form of the API.
func (p *pausing) check() error {
	if p.reason == "" {
		return cli.Usage("--reason is missing: the reason is stored with the decision")
	}
	if p.of != "" {
		if _, err := schema.ParseDeploymentID(p.of); err != nil {
			return cli.Usage("--of: %w", err)
		}
	}
	if p.handler != "" {
		handler, err := schema.ParseHandler(p.handler)
		if err != nil {
			return cli.Usage("--handler: %w", err)
		}
		p.handler = string(handler)
	}
	return nil
}

// pauseText describes a pause of a deployment.
func pauseText(deployment string, p *adminv1.Pause) string {
	what := "deletions"
	if p.GetHandler() != "" {
		what = schema.Handler(p.GetHandler()).Text()
	}
	if p.GetOf() != deployment && p.GetHandler() == "" {
		return what + " of " + p.GetOf()
	}
	if p.GetOf() != deployment {
		return what + " for " + p.GetOf()
	}
	return what
}
