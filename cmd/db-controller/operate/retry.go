package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// retried is a deployment that was asked to try at once.
type retried struct {
	Deployment string `json:"deployment"`
	Of         string `json:"of,omitempty"`   // empty: all, or the resource's
	Name       string `json:"name,omitempty"` // of a resource
	Error      string `json:"error,omitempty"`

	failure error // Error
}

// NewRetry returns the command retry.
func NewRetry() *cobra.Command {
	var of, reason string
	cmd := cli.NewDeploymentCommand("retry DEPLOYMENT|RESOURCE [--of OTHER] --reason TEXT", "Repeat failed work at once, for operators", `  db-controller retry iam.example.com/us-west2 --of devices.example.com/eastus2 --reason "the network is back"
  db-controller retry //iam.example.com/us-west2/projects/acme --reason "ticket 4711"`, cobra.ExactArgs(1),
		func(cmd *cobra.Command, c *client.Client, args []string) error {
			req := &adminv1.RetryRequest{Of: of, Reason: reason}
			at, err := retryAt(args[0], req)
			if err != nil {
				return err
			}
			if err := checkListed(cmd.Context(), c, "of", of); err != nil {
				return err
			}
			done, err := retry(cmd.Context(), c, at, req)
			if err != nil {
				return cli.PlainOf(schema.FullName{Deployment: at, Name: req.GetName()}, err)
			}
			out := cli.PrinterOf(cmd)
			for _, r := range done {
				printRetried(out, r)
			}
			return errors.Join(out.Document(done), unasked(done))
		})
	cmd.Long = `Repeat failed work at once.

Work that fails is tried again after pauses that grow to 10 seconds (rows of attached tables: to an hour after a mistake of a person).
This command ends the pauses in all processes of a deployment: of all its work, of the work for one other deployment (--of), or of the
work of one resource; then the deployments that the resource waits for try again as well.`
	cmd.ValidArgsFunction = cli.CompleteDeployments(1)
	cmd.Flags().StringVar(&of, "of", "", "service/region of another deployment: the work for it, and for its deletions")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which the deployment stores")
	return cmd
}

// retryAt returns the deployment to call for a deployment or a resource, and completes the request.
func retryAt(arg string, req *adminv1.RetryRequest) (at schema.DeploymentID, err error) {
	if req.GetReason() == "" {
		return at, cli.Usage("--reason is missing: the reason is stored with the decision")
	}
	if strings.HasPrefix(arg, "//") {
		name, err := schema.ParseFullName(arg)
		switch {
		case err != nil:
			return at, cli.Usage("%w", err)
		case req.GetOf() != "":
			return at, cli.Usage("--of is for a deployment, not for a resource")
		}
		req.Name = name.Name
		return name.Deployment, nil
	}
	if at, err = schema.ParseDeploymentID(arg); err != nil {
		return at, cli.Usage("%w, or the full name of a resource, such as //iam.example.com/us-west2/projects/acme",
			err)
	}
	if req.GetOf() != "" {
		if _, err := schema.ParseDeploymentID(req.GetOf()); err != nil {
			return at, cli.Usage("--of: %w", err)
		}
	}
	return at, nil
}

// retry calls a deployment, and then the deployments for which the resource waits there: the pause between
// tries may be theirs. A failure of one of them is in its entry.
func retry(ctx context.Context, c *client.Client, at schema.DeploymentID,
	req *adminv1.RetryRequest,
) ([]retried, error) {
	admin, err := c.Admin(ctx, at)
	if err != nil {
		return nil, err
	}
	answer, err := admin.Retry(ctx, req)
	if err != nil {
		return nil, err
	}
	own := retried{Deployment: at.String(), Of: req.GetOf()}
	if req.GetName() != "" {
		own.Name = schema.FullName{Deployment: at, Name: req.GetName()}.String()
	}
	done := []retried{own}
	for _, other := range answer.GetWaitsFor() {
		if other == at.String() {
			continue
		}
		r := retried{Deployment: other, Of: at.String()}
		if err := retryThere(ctx, c, other, &adminv1.RetryRequest{
			Of:     at.String(),
			Reason: req.GetReason(),
		}); err != nil {
			r.failure, r.Error = err, cli.Plain(err).Error()
		}
		done = append(done, r)
	}
	return done, nil
}

func retryThere(ctx context.Context, c *client.Client, other string, req *adminv1.RetryRequest) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	id, err := schema.ParseDeploymentID(other)
	if err != nil {
		return err
	}
	admin, err := c.Admin(ctx, id)
	if err == nil {
		_, err = admin.Retry(ctx, req)
	}
	return err
}

// unasked is the error of a command that could not ask all deployments. The work of the others goes on.
func unasked(done []retried) error {
	failed, code := 0, cli.Refused
	for _, r := range done {
		if r.failure != nil {
			failed++
			if cli.ExitCode(r.failure) != cli.Refused {
				code = cli.Unavailable
			}
		}
	}
	if failed == 0 {
		return nil
	}
	return cli.WithCode(code, fmt.Errorf("%d of %s that the resource waits for could not be asked", failed,
		cli.Plural(len(done)-1, "deployment")))
}

func printRetried(out cli.Printer, r retried) {
	switch {
	case r.Error != "":
		out.Line("%s could not be asked: %s", r.Deployment, r.Error)
	case r.Name != "":
		out.Line("%s tries its work of %s now", r.Deployment, r.Name)
	case r.Of != "":
		out.Line("%s tries its work for %s now", r.Deployment, r.Of)
	default:
		out.Line("%s tries all its work now", r.Deployment)
	}
}
