// Package outcome is the one mapping between the errors of a deployment and gRPC statuses, in both
// directions: reasons, codes, details, and the bounds of their size.
package outcome

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/violation"
)

// domain is the domain of each ErrorInfo.
const domain = "dbcontroller"

// ErrTooManyCalls is the end of the text of an error that refuses a call because the caller has too many in
// progress.
var ErrTooManyCalls = errors.New("more are not allowed: wait until some of them end")

// ErrTooMuchWritten is the end of the text of an error that refuses a write because the caller has written
// too much.
var ErrTooMuchWritten = errors.New("may write more in the next hour")

// outcomes are the sentinel errors with their reasons. The first that matches counts: an error that wraps two
// of them has the reason of the earlier one.
var outcomes = []struct {
	err    error
	reason string
}{
	{peer.ErrUnknown, "OUTCOME_UNKNOWN"}, // wraps the error that left the outcome unknown
	{peer.ErrNotFound, "NOT_FOUND"},
	{peer.ErrExists, "ALREADY_EXISTS"},
	{peer.ErrRequestReused, "REQUEST_REUSED"},
	{peer.ErrConflict, "MOVED"},
	{peer.ErrDeleting, "DELETING"},
	{peer.ErrDeleted, "DELETED"},
	{peer.ErrNotDeleting, "NOT_DELETING"},
	{peer.ErrTooManyRemovals, "TOO_MANY_REMOVALS"},
	{peer.ErrNotAtomic, "NOT_ATOMIC"},
	{peer.ErrAborted, "ABORTED"},
	{peer.ErrQuota, string(peer.QuotaExceeded)},
	{peer.ErrDecommissioned, "DECOMMISSIONED"},
	{peer.ErrStaleEpoch, "OLD_EPOCH"},
	{peer.ErrPosition, "POSITION"}, // wraps ErrReset
	{peer.ErrReset, "RESET"},
	{shadow.ErrSlow, "SLOW_READER"},
	{peer.ErrDenied, "DENIED"},
	{peer.ErrAuthorizer, "AUTHORIZER_UNAVAILABLE"},
	{peer.ErrAuditLog, "AUDIT_LOG_UNAVAILABLE"},
	{ErrTooManyCalls, "TOO_MANY_CALLS"},
	{ErrTooMuchWritten, "TOO_MUCH_WRITTEN"},
	{budget.ErrExhausted, "TOO_MANY_CALLS"},
	{postgres.ErrTooMany, "TOO_MANY_CALLS"},
	{shadow.ErrCostly, "COSTLY"}, // wraps context.DeadlineExceeded
	{context.DeadlineExceeded, "DEADLINE_EXCEEDED"},
	{context.Canceled, "CANCELED"},
}

// Status is the only function that turns errors into gRPC statuses. An error that is not an outcome is a
// fault of this server: it is logged at the end of the call, and its text, which may contain SQL, is not
// sent.
func Status(log *zap.Logger, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if st := typedStatus(err); st != nil {
		return st
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return Because(o.reason, err)
		}
	}
	switch {
	case postgres.DiskFull(err):
		return fault(log, zap.WarnLevel, postgres.ErrDiskFull.Error(), err, "DATABASE_FULL",
			"the disk of the deployment's database is full: nothing is written until it has space")
	case postgres.Unavailable(err):
		return fault(log, zap.WarnLevel, "the database is unavailable", err, "DATABASE_UNAVAILABLE",
			"the deployment's database is unavailable: try again")
	case postgres.Busy(err):
		return fault(log, zap.WarnLevel, "the database cancelled a request", err, "DATABASE_BUSY",
			"the deployment's database cancelled the request, because a lock or a statement took too long: try again")
	}
	return fault(log, zap.ErrorLevel, "request failed", err, "INTERNAL", "internal error: the server's log says more")
}

func fault(log *zap.Logger, level zapcore.Level, message string, cause error, reason, text string) error {
	return &requestid.Fault{
		Log: log, Level: level, Message: message, Cause: cause,
		Told: Because(reason, errors.New(text)),
	}
}

// typedStatus returns the status of an error that has a type of its own, most with details; nil for other
// errors.
func typedStatus(err error) error {
	var (
		invalid     *peer.InvalidError
		problems    schema.Problems
		references  *peer.RefusedError
		blocked     *peer.BlockedError
		protected   *peer.ProtectedError
		kept        *peer.KeptError
		database    *peer.DatabaseError
		unavailable *peer.UnavailableError
	)
	switch {
	case errors.As(err, &invalid):
		fields := invalidProto(err, invalid)
		return refused("INVALID", err, len(fields), fields, fieldViolations)
	case errors.As(err, &problems):
		return refused("INVALID", err, len(problems), problemsProto(problems), fieldViolations)
	case errors.As(err, &references) && len(references.Refusals) > 0:
		return refusedReferences(references)
	case errors.As(err, &blocked):
		reason := blockedReason(blocked)
		return refused(reason, err, blocked.Total, blockedProto(reason, blocked), violations)
	case errors.As(err, &protected):
		return refused("BLOCK_DELETION", err, len(protected.By), protectedProto(protected), violations)
	case errors.As(err, &kept):
		return Because("ROW_KEPT", kept)
	case errors.As(err, &database):
		return Because("ANOTHER_DATABASE", err)
	case errors.As(err, &unavailable):
		return Because("UNAVAILABLE", err)
	}
	return nil
}

func blockedReason(e *peer.BlockedError) string {
	if e.Undecided {
		return "UNDECIDED"
	}
	return "BLOCKED"
}

// invalidProto returns the fields that the error names; otherwise the invalid resource as one field.
func invalidProto(err error, invalid *peer.InvalidError) (out []*errdetails.BadRequest_FieldViolation) {
	for _, v := range violation.Of(err) {
		out = append(out, fieldViolation(v.Path, v.Problem))
	}
	if len(out) == 0 {
		out = append(out, fieldViolation(invalid.Resource, invalid.Err.Error()))
	}
	return out
}

func problemsProto(problems schema.Problems) (out []*errdetails.BadRequest_FieldViolation) {
	for _, p := range problems {
		out = append(out, fieldViolation(p.Pos.Path, p.Message))
	}
	return out
}

// Because returns the status of a reason, with the code of the reason.
func Because(reason string, err error) error {
	return detailed(codeFor(reason), reason, err)
}

func codeFor(reason string) codes.Code {
	if code, ok := codeOf[reason]; ok {
		return code
	}
	return codes.Unavailable // a reason of a newer version, which may not be final
}

func detailed(code codes.Code, reason string, err error, more ...protoadapt.MessageV1) error {
	return withDetails(code, err, &errdetails.ErrorInfo{Reason: reason, Domain: domain}, more...)
}

func withDetails(code codes.Code, err error, info *errdetails.ErrorInfo, more ...protoadapt.MessageV1) error {
	st := status.New(code, shortText(err.Error()))
	with, derr := st.WithDetails(append([]protoadapt.MessageV1{info}, more...)...)
	if derr != nil {
		return st.Err()
	}
	return with.Err()
}

// refused returns the status of a reason with a list in its details: the first items that have room, of
// total.
func refused[T proto.Message](reason string, err error, total int, items []T,
	message func([]T) protoadapt.MessageV1,
) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain}
	list, _ := listed(info, items, total, message)
	return withDetails(codeFor(reason), err, info, list)
}

// refusedReferences returns the status of refused references, which it lists in the order of the error. When
// not all of them have room, MutateAndValidateResource takes the page token of the metadata and lists the
// next ones; there is no token when it has no room because the names are very long.
func refusedReferences(e *peer.RefusedError) error {
	deciding := e.Deciding()
	items := []*schemav1.ReferencesRefused_Refusal{}
	for _, r := range e.Refusals {
		items = append(items, refusalProto(r))
	}
	info := &errdetails.ErrorInfo{Reason: string(deciding.Reason), Domain: domain}
	list, n := listed(info, items, e.Total(), refusals)
	if at := slices.Index(e.Refusals, deciding); at >= n { // the reference that decides the code is listed first
		list, n = listed(info, append([]*schemav1.ReferencesRefused_Refusal{items[at]}, items...), e.Total(), refusals)
		n--
	}
	if 0 < n && n < e.Total() && e.More == 0 {
		if token := peer.TokenAfter(e.Refusals[n-1]); len(token) < tokenRoom {
			info.Metadata["page_token"] = token
		}
	}
	return withDetails(codeFor(info.GetReason()), e, info, list)
}

func refusalProto(r peer.Refusal) *schemav1.ReferencesRefused_Refusal {
	return &schemav1.ReferencesRefused_Refusal{
		Holder: r.Holder, Path: r.Path, Target: r.Target.String(),
		Reason: string(r.Reason),
	}
}

func blockedProto(reason string, e *peer.BlockedError) (out []*errdetails.PreconditionFailure_Violation) {
	for _, h := range e.Holders {
		out = append(out, &errdetails.PreconditionFailure_Violation{
			Type: reason, Subject: h.Name.String(), Description: fmt.Sprintf("refers to %s in %s", h.Target, h.Path),
		})
	}
	return out
}

func protectedProto(e *peer.ProtectedError) (out []*errdetails.PreconditionFailure_Violation) {
	for _, name := range e.By {
		out = append(out, &errdetails.PreconditionFailure_Violation{Type: "BLOCK_DELETION", Subject: name.String()})
	}
	return out
}

func fieldViolation(field, description string) *errdetails.BadRequest_FieldViolation {
	return &errdetails.BadRequest_FieldViolation{Field: shortText(field), Description: shortText(description)}
}

// FromStatus returns the *peer.RefusedError in an error of another deployment, or the text of the error.
func FromStatus(err error) error {
	for _, detail := range status.Convert(err).Details() {
		refused, ok := detail.(*schemav1.ReferencesRefused)
		if !ok || len(refused.GetRefusals()) == 0 {
			continue
		}
		out := &peer.RefusedError{More: notNamed(err)}
		for _, r := range refused.GetRefusals() {
			target, perr := schema.ParseFullName(r.GetTarget())
			if perr != nil {
				return err
			}
			out.Refusals = append(out.Refusals, peer.Refusal{
				Holder: r.GetHolder(), Path: r.GetPath(), Target: target,
				Reason: peer.Reason(r.GetReason()),
			})
		}
		return out
	}
	return TextOf(err)
}

// ReasonOf returns the reason of the error of a call; empty without one.
func ReasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info.GetReason()
		}
	}
	return ""
}

// notNamed returns the number of items of a list that are not in the details of an error.
func notNamed(err error) int {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			total, _ := strconv.Atoi(info.GetMetadata()["total"])
			named, _ := strconv.Atoi(info.GetMetadata()["named"])
			return max(0, total-named)
		}
	}
	return 0
}

// TextOf returns the text of a call's error, without code and details; errors.Is finds
// context.DeadlineExceeded in it when the call took too long.
func TextOf(err error) error {
	st := status.Convert(err)
	if st.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, st.Message())
	}
	return errors.New(st.Message())
}

// Invalid returns the error of a field of a request that is invalid.
func Invalid(field string, err error) error {
	if len(violation.Of(err)) == 0 {
		err = violation.In(field, err)
	}
	return &peer.InvalidError{Resource: field, Err: err}
}
