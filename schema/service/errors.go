package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// domain of ErrorInfo.
const domain = "dbcontroller"

// outcomes are errors that are no more than a text.
var outcomes = []struct {
	err    error
	reason string
}{
	{shadow.ErrUnknown, "OUTCOME_UNKNOWN"}, // whatever it was that left it unknown
	{shadow.ErrNotFound, "NOT_FOUND"},
	{shadow.ErrExists, "ALREADY_EXISTS"},
	{shadow.ErrRequestReused, "REQUEST_REUSED"},
	{shadow.ErrMoved, "MOVED"},
	{shadow.ErrDeleting, "DELETING"},
	{shadow.ErrAborted, "ABORTED"},
	{shadow.ErrBarred, "DECOMMISSIONED"},
	{shadow.ErrOldEpoch, "OLD_EPOCH"},
	{shadow.ErrPosition, "POSITION"}, // before ErrReset, which is why
	{shadow.ErrReset, "RESET"},
	{shadow.ErrSlow, "SLOW_READER"},
	{errTooManyCalls, "TOO_MANY_CALLS"},
	{shadow.ErrCostly, "COSTLY"}, // before the deadline, which is why
	{context.DeadlineExceeded, "DEADLINE_EXCEEDED"},
	{context.Canceled, "CANCELED"},
}

// toStatus is the one place where errors become gRPC statuses. What is not an outcome is a fault of this side: it is
// logged here, and its text, which may hold SQL, stays here.
func toStatus(log *zap.Logger, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	var (
		invalid     *shadow.InvalidError
		references  *shadow.RefusedError
		blocked     *shadow.BlockedError
		protected   *shadow.ProtectedError
		unavailable *shadow.UnavailableError
		strange     *shadow.DatabaseError
		problems    schema.Problems
	)
	switch {
	case errors.As(err, &invalid):
		return refused("INVALID", err, 1, []*errdetails.BadRequest_FieldViolation{fieldViolation(invalid.Resource, invalid.Err.Error())}, fieldViolations)
	case errors.As(err, &problems):
		var bad []*errdetails.BadRequest_FieldViolation
		for _, p := range problems {
			bad = append(bad, fieldViolation(p.Pos.Path, p.Message))
		}
		return refused("INVALID", err, len(bad), bad, fieldViolations)
	case errors.As(err, &references) && len(references.Refusals) > 0:
		return refusedReferences(references)
	case errors.As(err, &blocked):
		reason := "BLOCKED"
		if blocked.Undecided {
			reason = "UNDECIDED"
		}
		return refused(reason, err, blocked.Total, blockedProto(reason, blocked), violations)
	case errors.As(err, &protected):
		return refused("BLOCK_DELETION", err, len(protected.By), protectedProto(protected), violations)
	case errors.As(err, &strange):
		return because("ANOTHER_DATABASE", err)
	case errors.As(err, &unavailable):
		return because("UNAVAILABLE", err)
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return because(o.reason, err)
		}
	}
	if postgres.Unavailable(err) {
		log.Warn("the database is unavailable", zap.Error(err))
		return because("DATABASE_UNAVAILABLE", errors.New("the deployment's database is away for now: try again"))
	}
	if postgres.Busy(err) {
		log.Warn("the database gave a request up", zap.Error(err))
		return because("DATABASE_BUSY", errors.New("the deployment's database gave it up, since it took too long beside others: try again"))
	}
	log.Error("request failed", zap.Error(err))
	return because("INTERNAL", errors.New("internal error: the server's log says more"))
}

// because is a status of a reason, with the code that the reason has.
func because(reason string, err error) error {
	return detailed(codeFor(reason), reason, err)
}

func codeFor(reason string) codes.Code {
	if code, ok := codeOf[reason]; ok {
		return code
	}
	return codes.Unavailable // of a newer version, which may accept what this one cannot name
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

// refused is because with a list of total items in the details, as far as there is room.
func refused[T proto.Message](reason string, err error, total int, items []T, message func([]T) protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain}
	list, _ := listed(info, items, total, message)
	return withDetails(codeFor(reason), err, info, list)
}

// refusedReferences names references in the order of refusedError. Where not all have room, the page token is for
// MutateAndValidateResource, which names the next ones; there is none where names are so long that it has no room.
func refusedReferences(e *shadow.RefusedError) error {
	deciding := e.Deciding()
	items := []*schemav1.ReferencesRefused_Refusal{}
	for _, r := range e.Refusals {
		items = append(items, refusalProto(r))
	}
	info := &errdetails.ErrorInfo{Reason: string(deciding.Reason), Domain: domain}
	list, n := listed(info, items, e.Total(), refusals)
	if at := slices.Index(e.Refusals, deciding); at >= n { // who sees only the first ones has to know what to do
		list, n = listed(info, append([]*schemav1.ReferencesRefused_Refusal{items[at]}, items...), e.Total(), refusals)
		n--
	}
	if 0 < n && n < e.Total() && e.More == 0 {
		if token := shadow.TokenAfter(e.Refusals[n-1]); len(token) < tokenRoom {
			info.Metadata["page_token"] = token
		}
	}
	return withDetails(codeFor(info.GetReason()), e, info, list)
}

func refusalProto(r shadow.Refusal) *schemav1.ReferencesRefused_Refusal {
	return &schemav1.ReferencesRefused_Refusal{Holder: r.Holder, Path: r.Path, Target: r.Target.String(), Reason: string(r.Reason)}
}

func blockedProto(reason string, e *shadow.BlockedError) (out []*errdetails.PreconditionFailure_Violation) {
	for _, h := range e.Holders {
		out = append(out, &errdetails.PreconditionFailure_Violation{
			Type: reason, Subject: h.Name.String(), Description: fmt.Sprintf("refers to %s in %s", h.Target, h.Path),
		})
	}
	return out
}

func protectedProto(e *shadow.ProtectedError) (out []*errdetails.PreconditionFailure_Violation) {
	for _, name := range e.By {
		out = append(out, &errdetails.PreconditionFailure_Violation{Type: "BLOCK_DELETION", Subject: name.String()})
	}
	return out
}

func fieldViolation(field, description string) *errdetails.BadRequest_FieldViolation {
	return &errdetails.BadRequest_FieldViolation{Field: shortText(field), Description: shortText(description)}
}

// fromStatus gives back the refusals that another deployment answered with.
func fromStatus(err error) error {
	for _, detail := range status.Convert(err).Details() {
		refused, ok := detail.(*schemav1.ReferencesRefused)
		if !ok {
			continue
		}
		out := &shadow.RefusedError{}
		for _, r := range refused.GetRefusals() {
			target, perr := schema.ParseFullName(r.GetTarget())
			if perr != nil {
				return err
			}
			out.Refusals = append(out.Refusals, shadow.Refusal{Holder: r.GetHolder(), Path: r.GetPath(), Target: target, Reason: shadow.Reason(r.GetReason())})
		}
		out.More = notNamed(err)
		if len(out.Refusals) > 0 {
			return out
		}
	}
	if st := status.Convert(err); st.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, st.Message())
	}
	return errors.New(status.Convert(err).Message())
}

// notNamed is how many more a list has than the details of an error name.
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
