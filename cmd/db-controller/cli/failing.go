package cli

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

// FailingFor returns the last failures of a deployment's handlers in their work for another deployment, in the process that has answered:
// why the other one waits. A handler that is paused fails for that reason, which the pauses show.
func FailingFor(status *adminv1.StatusResponse, other string) (found []*adminv1.Failure) {
	paused := map[string]bool{}
	for _, p := range status.GetPauses() {
		paused[p.GetHandler()] = true
	}
	for _, f := range status.GetFailures() {
		h, err := schema.ParseHandler(f.GetHandler())
		if err == nil && f.GetDeployment() == other && !paused[string(h)] {
			found = append(found, f)
		}
	}
	return found
}

// HandlerText is the name of a handler in a failure.
func HandlerText(f *adminv1.Failure) string { return strings.ReplaceAll(f.GetHandler(), "_", "-") }

// NextTry says when failed work is tried again; nothing when that is unknown, or now.
func NextTry(at *timestamppb.Timestamp) string {
	left := time.Until(at.AsTime()).Round(time.Second)
	if at == nil || left <= 0 {
		return ""
	}
	return "; again in " + left.String()
}
