package requestid

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// Fault is an error of this server: its cause, which may contain SQL, is for the log, and its status for the
// caller. The log has one line for it, at the end of the call, with the request id.
type Fault struct {
	Log     *zap.Logger
	Level   zapcore.Level
	Message string // of the log line
	Cause   error
	Told    error // a status
}

func (f *Fault) Error() string { return f.Told.Error() }
func (f *Fault) Unwrap() error { return f.Told }

// GRPCStatus returns the status of the answer.
func (f *Fault) GRPCStatus() *status.Status { return status.Convert(f.Told) }

// Told logs a fault, and returns the error of a call with the request id in its details; in its text too when
// the log says more.
func Told(ctx context.Context, log *zap.Logger, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	var fault *Fault
	if !errors.As(err, &fault) && !ok && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded) {
		fault = &Fault{
			Log: log, Level: zap.ErrorLevel, Message: "request failed", Cause: err,
			Told: status.Error(codes.Internal, "internal error: the server's log says more"),
		}
		st = fault.GRPCStatus()
	}
	id := ID(ctx)
	if fault != nil {
		fault.Log.Log(fault.Level, fault.Message, zap.Error(fault.Cause), Field(ctx))
	}
	return named(st, id, fault != nil)
}

// named adds the request id to a status that has none. A forwarded call has it from the deployment that
// answered.
func named(st *status.Status, id uuid.UUID, inText bool) error {
	info, err := anypb.New(&errdetails.RequestInfo{RequestId: id.String()})
	p := st.Proto()
	if err != nil || id == uuid.Nil || slices.ContainsFunc(p.GetDetails(), func(d *anypb.Any) bool {
		return d.MessageIs((*errdetails.RequestInfo)(nil))
	}) {
		return st.Err()
	}
	if inText {
		p.Message += " (request " + id.String() + ")"
	}
	// Second, behind the reason: lists are cut before it.
	p.Details = slices.Insert(p.GetDetails(), min(1, len(p.GetDetails())), info)
	return status.ErrorProto(p)
}
