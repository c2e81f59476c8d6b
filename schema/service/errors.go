package service

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
)

// domain of ErrorInfo.
const domain = "dbcontroller"

var outcomes = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{shadow.ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{shadow.ErrExists, codes.AlreadyExists, "ALREADY_EXISTS"},
	{shadow.ErrRequestReused, codes.AlreadyExists, "REQUEST_REUSED"},
	{shadow.ErrMoved, codes.Aborted, "MOVED"},
	{shadow.ErrDeleting, codes.FailedPrecondition, "DELETING"},
	{shadow.ErrAborted, codes.Aborted, "ABORTED"},
	{shadow.ErrUnknown, codes.Unknown, "OUTCOME_UNKNOWN"},
	{shadow.ErrBarred, codes.PermissionDenied, "DECOMMISSIONED"},
	{shadow.ErrOldEpoch, codes.Aborted, "OLD_EPOCH"},
	{shadow.ErrPosition, codes.FailedPrecondition, "POSITION"}, // before ErrReset, which is why
	{shadow.ErrReset, codes.OutOfRange, "RESET"},
	{shadow.ErrSlow, codes.Aborted, "SLOW_READER"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
	{context.Canceled, codes.Canceled, "CANCELED"},
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
		refused     *shadow.RefusedError
		blocked     *shadow.BlockedError
		protected   *shadow.ProtectedError
		unavailable *shadow.UnavailableError
		problems    schema.Problems
	)
	switch {
	case errors.As(err, &invalid):
		return detailed(codes.InvalidArgument, "INVALID", err, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: invalid.Resource, Description: invalid.Err.Error()},
		}})
	case errors.As(err, &problems):
		bad := &errdetails.BadRequest{}
		for _, p := range problems {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: p.Pos.Path, Description: p.Message})
		}
		return detailed(codes.InvalidArgument, "INVALID", err, bad)
	case errors.As(err, &refused) && len(refused.Refusals) > 0:
		return detailed(refusedCode(refused), string(refused.Refusals[0].Reason), err, refusedProto(refused))
	case errors.As(err, &blocked):
		return detailed(codes.FailedPrecondition, "BLOCKED", err, blockedProto(blocked))
	case errors.As(err, &protected):
		return detailed(codes.FailedPrecondition, "BLOCK_DELETION", err)
	case errors.As(err, &unavailable):
		return detailed(codes.Unavailable, "UNAVAILABLE", err)
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return detailed(o.code, o.reason, err)
		}
	}
	if shadow.DatabaseAway(err) {
		log.Warn("the database is away", zap.Error(err))
		return detailed(codes.Unavailable, "DATABASE_UNAVAILABLE", errors.New("the deployment's database is away for now: try again"))
	}
	log.Error("request failed", zap.Error(err))
	return detailed(codes.Internal, "INTERNAL", errors.New("internal error: the server's log says more"))
}

func detailed(code codes.Code, reason string, err error, more ...protoadapt.MessageV1) error {
	st := status.New(code, err.Error())
	with, derr := st.WithDetails(append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: domain}}, more...)...)
	if derr != nil {
		return st.Err()
	}
	return with.Err()
}

func refusedCode(e *shadow.RefusedError) codes.Code {
	code := codes.FailedPrecondition
	for _, r := range e.Refusals {
		switch r.Reason {
		case shadow.TargetUnreadable, shadow.UnknownKind:
			return codes.Unavailable
		case shadow.NotImported, shadow.NotReferable:
			code = codes.PermissionDenied
		case shadow.QuotaExceeded:
			return codes.ResourceExhausted
		case shadow.TargetClosing, shadow.AttemptClosed:
			if e.Only(r.Reason) {
				code = codes.Aborted
			}
		default:
		}
	}
	return code
}

func refusedProto(e *shadow.RefusedError) *schemav1.ReferencesRefused {
	out := &schemav1.ReferencesRefused{}
	for _, r := range e.Refusals {
		out.Refusals = append(out.Refusals, &schemav1.ReferencesRefused_Refusal{Holder: r.Holder, Path: r.Path, Target: r.Target.String(), Reason: string(r.Reason)})
	}
	return out
}

func blockedProto(e *shadow.BlockedError) *errdetails.PreconditionFailure {
	out := &errdetails.PreconditionFailure{}
	for _, h := range e.Holders {
		out.Violations = append(out.Violations, &errdetails.PreconditionFailure_Violation{
			Type: "BLOCKED", Subject: h.Name.String(), Description: fmt.Sprintf("refers to it in %s", h.Path),
		})
	}
	return out
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
		if len(out.Refusals) > 0 {
			return out
		}
	}
	return errors.New(status.Convert(err).Message())
}
