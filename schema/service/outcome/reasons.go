package outcome

import (
	"google.golang.org/grpc/codes"

	"github.com/db-controller/db-controller/schema/peer"
)

// reason describes a reason of ErrorInfo. Each reason has one code, and each code is definite or not, so that
// clients may decide by the code alone. docs/guarantees.md has the table, which `make generate` writes.
type reason struct {
	reason string
	code   codes.Code
	means  string
}

var reasons = withRefusals([]reason{
	{"INVALID", codes.InvalidArgument, "the request is invalid; the details name the fields"},
	{"NOT_FOUND", codes.NotFound, "there is no resource of this name, or it has another uid than the request"},
	{"ALREADY_EXISTS", codes.AlreadyExists, "a resource of this name exists"},
	{"REQUEST_REUSED", codes.AlreadyExists, "the request id was used for another request: use a new one"},
	{
		"MOVED", codes.FailedPrecondition,
		"the resource has another revision or uid than the request: read it, and send a new request",
	},
	{"DELETING", codes.FailedPrecondition, "the resource is being deleted: wait until it is removed"},
	{
		"DELETED", codes.FailedPrecondition,
		"the resource was deleted with a retention, and is hidden until its `purge_time`: undelete it, or delete it with `now`",
	},
	{"NOT_DELETING", codes.FailedPrecondition, "a finalizer: nobody has deleted the resource"},
	{
		"BLOCKED", codes.FailedPrecondition,
		"a delete: the resource, or a resource that the delete cascades to, is referred to; the details name the holders",
	},
	{
		"BLOCK_DELETION", codes.FailedPrecondition,
		"a delete: `block_deletion` is set on the resource, or on a resource that the delete cascades to",
	},
	{
		"TOO_MANY_REMOVALS", codes.FailedPrecondition,
		"a delete: it removes more resources than `max_removals` of the request, or of the rights; look at the plan, and send a greater number",
	},
	{
		"NOT_ATOMIC", codes.FailedPrecondition,
		"an atomic delete: it reaches more than 10,000 resources, or one that is a row of an attached table; delete without `atomic`",
	},
	{
		"ROW_KEPT", codes.FailedPrecondition,
		"a delete: a constraint or a trigger of the application keeps a row of an attached table; the text names it",
	},
	{
		"DENIED", codes.PermissionDenied,
		"the caller has no right to do this with the resource, whether or not it exists; the text names the verb and the name",
	},
	{
		"AUDIT_LOG_UNAVAILABLE", codes.Unavailable,
		"the audit log cannot be written, and calls need it here (`--audit-log-required`)",
	},
	{
		"AUTHORIZER_UNAVAILABLE", codes.Unavailable,
		"the authorization service did not answer, so that the call is denied for now",
	},
	{
		"POSITION", codes.FailedPrecondition,
		"between deployments: the acknowledged position was never sent to the caller",
	},
	{"RESET", codes.OutOfRange, "a watch, or a list: the token cannot be resumed; begin without it"},
	{"UNDECIDED", codes.Aborted, "a delete: a write that may refer to the resource was not decided in time: try again"},
	{"ABORTED", codes.Aborted, "a version switch, a failover, or a concurrent write interfered: try again"},
	{
		"OLD_EPOCH", codes.Aborted,
		"between deployments: the message was sent before the sender's database failed over or was restored",
	},
	{"SLOW_READER", codes.Aborted, "a watch: the client did not read the events in time; go on from the last token"},
	{
		"TOO_MANY_CALLS", codes.ResourceExhausted,
		"the caller has too many costly reads (lists, plans) or statements in progress; wait until some end",
	},
	{
		"TOO_MUCH_WRITTEN", codes.ResourceExhausted,
		"a write or a delete: the caller has written as many bytes as a person may in an hour (`--max-written`); wait for the next hour",
	},
	{
		"COSTLY", codes.ResourceExhausted,
		"a list: the database needed too long for the page; use a narrower filter, or another order",
	},
	{
		"OUTCOME_UNKNOWN", codes.Unknown,
		"the connection to the database broke during the commit, so the write may have taken effect",
	},
	{"DEADLINE_EXCEEDED", codes.DeadlineExceeded, "the deadline of the call has passed"},
	{"CANCELED", codes.Canceled, "the caller cancelled the call"},
	{"ANOTHER_DATABASE", codes.Unavailable, "between deployments: the sender uses another database than the known one"},
	{"DATABASE_UNAVAILABLE", codes.Unavailable, "the deployment's database cannot be reached, or is read-only"},
	{
		"DATABASE_FULL", codes.Unavailable,
		"the disk of the deployment's database is full: nothing was written, and nothing can be until it has space",
	},
	{
		"DATABASE_BUSY", codes.Unavailable,
		"the deployment's database cancelled the request, because a lock or a statement took too long",
	},
	{"INTERNAL", codes.Internal, "a fault of the server: see its log"},
})

// refusalCodes are the codes of refused references that differ from standingCodes.
var refusalCodes = map[peer.Reason]codes.Code{
	peer.QuotaExceeded:        codes.ResourceExhausted,
	peer.TargetDecommissioned: codes.PermissionDenied,
	peer.ReferDenied:          codes.PermissionDenied,
	peer.RemovalDenied:        codes.PermissionDenied,
}

var standingCodes = map[peer.Standing]codes.Code{
	peer.Final: codes.FailedPrecondition,
	peer.Again: codes.Aborted,
	peer.Later: codes.Unavailable,
}

// withRefusals adds the reasons of refused references.
func withRefusals(list []reason) []reason {
	for _, r := range peer.Reasons() {
		as, ok := refusalCodes[r]
		if !ok {
			as = standingCodes[r.Standing()]
		}
		list = append(list, reason{string(r), as, "a reference: its target " + r.Says()})
	}
	return list
}

var codeOf = func() map[string]codes.Code {
	of := map[string]codes.Code{}
	for _, a := range reasons {
		of[a.reason] = a.code
	}
	return of
}()
