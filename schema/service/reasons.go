package service

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	"github.com/db-controller/db-controller/schema/shadow"
)

// answer is what a reason, as ErrorInfo tells it, means. There is one code a reason, and a code is definite or not, so that
// who looks only at codes is told nothing else. docs/guarantees.md has the table; `make generate` writes it.
type answer struct {
	reason string
	code   codes.Code
	means  string
}

var answers = withRefusals([]answer{
	{"INVALID", codes.InvalidArgument, "the request itself is wrong; details name the fields"},
	{"NOT_FOUND", codes.NotFound, "there is no such resource, or none with that uid"},
	{"ALREADY_EXISTS", codes.AlreadyExists, "the name is taken"},
	{"REQUEST_REUSED", codes.AlreadyExists, "the request id stands for another request: take a new one"},
	{"MOVED", codes.FailedPrecondition, "the resource is at another revision, or has another uid: read it, and send a new request"},
	{"DELETING", codes.FailedPrecondition, "the resource is on its way out: wait until it is gone"},
	{"BLOCKED", codes.FailedPrecondition, "a delete: others refer to the resource, or to what goes with it; details name them"},
	{"BLOCK_DELETION", codes.FailedPrecondition, "a delete: `block_deletion` is set on the resource, or on what goes with it"},
	{"POSITION", codes.FailedPrecondition, "between deployments: an acknowledged position that was never told"},
	{"RESET", codes.OutOfRange, "a watch, or a list: the token cannot be resumed; begin without it"},
	{"UNDECIDED", codes.Aborted, "a delete: who may be about to refer did not decide in time"},
	{"ABORTED", codes.Aborted, "a version switch, a failover, or other writers came in between"},
	{"OLD_EPOCH", codes.Aborted, "between deployments: said before the sender's database was restored"},
	{"SLOW_READER", codes.Aborted, "a watch: what was delivered was not taken in time; go on from the last token"},
	{"TOO_MANY_CALLS", codes.ResourceExhausted, "a list, a plan, or the like: the caller has as many under way as one may have"},
	{"COSTLY", codes.ResourceExhausted, "a list: the database looked for the page for too long; ask for less"},
	{"OUTCOME_UNKNOWN", codes.Unknown, "the database did not tell whether it committed"},
	{"DEADLINE_EXCEEDED", codes.DeadlineExceeded, "the time that the caller gave is up"},
	{"CANCELED", codes.Canceled, "the caller is gone"},
	{"ANOTHER_DATABASE", codes.Unavailable, "between deployments: said from another database than the one that is known of the sender"},
	{"DATABASE_UNAVAILABLE", codes.Unavailable, "the deployment's database is away, or takes no writes"},
	{"DATABASE_BUSY", codes.Unavailable, "the deployment's database gave it up, since a lock or a statement took too long"},
	{"INTERNAL", codes.Internal, "a fault of the server: its log says more"},
})

// Codes of refused references, where that is not the one of all that stand as long.
var refusalCodes = map[shadow.Reason]codes.Code{
	shadow.QuotaExceeded:  codes.ResourceExhausted,
	shadow.DeploymentGone: codes.PermissionDenied,
}

var standingCodes = map[shadow.Standing]codes.Code{
	shadow.Final: codes.FailedPrecondition,
	shadow.Again: codes.Aborted,
	shadow.Later: codes.Unavailable,
}

// withRefusals adds the reasons of refused references.
func withRefusals(own []answer) []answer {
	for _, r := range shadow.Reasons() {
		as, ok := refusalCodes[r]
		if !ok {
			as = standingCodes[r.Standing()]
		}
		own = append(own, answer{string(r), as, "a reference: its target " + r.Says()})
	}
	return own
}

var codeOf = func() map[string]codes.Code {
	of := map[string]codes.Code{}
	for _, a := range answers {
		of[a.reason] = a.code
	}
	return of
}()

// definite tells whether a code refuses for good.
func definite(c codes.Code) bool {
	return slices.Contains([]codes.Code{codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists, codes.InvalidArgument, codes.PermissionDenied, codes.OutOfRange}, c)
}

// reasonTable is the table of the documents: what is definite first.
func reasonTable() string {
	var b strings.Builder
	b.WriteString("| reason | code | definite | says |\n| --- | --- | --- | --- |\n")
	for _, yes := range []bool{true, false} {
		for _, a := range answers {
			if definite(a.code) == yes {
				fmt.Fprintf(&b, "| `%s` | `%v` | %s | %s |\n", a.reason, code.Code(a.code), map[bool]string{true: "yes", false: "no"}[yes], a.means)
			}
		}
	}
	return b.String()
}
