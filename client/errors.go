package client

import (
	"errors"
	"slices"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// The classes of errors, for errors.Is. An Error has exactly one of them.
var (
	// ErrNotFound: there is no resource of this name, or it has another uid.
	ErrNotFound = errors.New("not found")
	// ErrExists: a resource of this name exists already.
	ErrExists = errors.New("already exists")
	// ErrConflict: the resource, or its status, has another state than the request expects (uid, revision,
	// generation of the status). Read it, and send a new request.
	ErrConflict = errors.New("conflict")
	// ErrDeleting: the resource is being deleted.
	ErrDeleting = errors.New("deleting")
	// ErrBlocked: a delete was refused; Error.Holders and Error.Protected say by whom.
	ErrBlocked = errors.New("blocked")
	// ErrRefused: references of a write were refused; Error.Refusals says which ones.
	ErrRefused = errors.New("reference refused")
	// ErrInvalid: the request is wrong; Error.Fields says where.
	ErrInvalid = errors.New("invalid")
	// ErrDenied: the caller has no right to make the request.
	ErrDenied = errors.New("denied")
	// ErrReset: a token of a watch or of a list cannot be resumed.
	ErrReset = errors.New("reset")
	// ErrUnavailable: the outcome is not known, because a deployment did not answer in time;
	// Error.Deployments names it.
	ErrUnavailable = errors.New("unavailable")
	// ErrInternal: a fault of a server.
	ErrInternal = errors.New("internal")
)

// ErrClosed is the error of calls after Close. The outcome of a write that was under way is unknown.
var ErrClosed = errors.New("the client is closed")

// Error is the answer of a server that a call failed. errors.As finds it in the errors of Client and Kind;
// errors that came from no server, such as a name that is none, and the end of the context, have none.
type Error struct {
	// Class is one of the errors above; errors.Is compares with it.
	Class error
	// Reason is the reason in google.rpc.ErrorInfo, such as TARGET_MISSING; empty if the server gave none.
	Reason string
	// RequestID is the id of a write or a delete whose outcome is unknown: sent again with this id
	// (WithRequestID), it takes effect at most once.
	RequestID string
	// Refusals are refused references, Holders and Protected the resources for which a delete was refused,
	// Fields the invalid fields. Large lists are cut: Total is the number of all items.
	Refusals  []Refusal
	Holders   []Holder
	Protected []schema.FullName
	Fields    []Field
	Total     int
	// Deployments did not answer, or cannot be reached; with ErrUnavailable only.
	Deployments []schema.DeploymentID

	status *status.Status
}

// Refusal is a reference that was refused.
type Refusal struct {
	Holder string          // name of the resource with the reference, relative to its deployment
	Path   string          // of the field in its body, as the kind declares it: spec.members.*
	Target schema.FullName // to which it refers
	Reason string          // such as TARGET_MISSING; docs/guarantees.md lists them
}

// Holder is a resource that refers to a resource which a delete would remove.
type Holder struct {
	Name schema.FullName
	Text string // to which resource it refers, and in which field
}

// Field is a field of a request that is invalid.
type Field struct {
	// Path from the request on: resource.body.spec.account or resource.name of Create, Put and Update,
	// update_mask of Update, writes[2].put.body.members[0] of the third write of Batch and Validate. It is
	// empty when the server names no field.
	Path    string
	Problem string
}

// Error returns the message of the server.
func (e *Error) Error() string { return e.status.Message() }

// Is reports whether target is the class of e.
func (e *Error) Is(target error) bool { return target == e.Class }

// GRPCStatus returns the status that the server sent; status.FromError finds it.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Definite reports whether the request was refused for good: it has not taken effect, and will not. Otherwise
// its outcome is unknown.
func (e *Error) Definite() bool { return definite(e.status.Code()) }

// definite has the codes of docs/guarantees.md, "the meaning of an answer".
func definite(c codes.Code) bool {
	return slices.Contains([]codes.Code{
		codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists, codes.InvalidArgument, codes.PermissionDenied,
		codes.OutOfRange, codes.Unauthenticated, codes.Unimplemented,
	}, c)
}

// classes are the classes of reasons that do not follow from the code.
var classes = map[string]error{
	"MOVED": ErrConflict, "DELETING": ErrDeleting, "DELETED": ErrDeleting, "BLOCKED": ErrBlocked,
	"BLOCK_DELETION": ErrBlocked, "ROW_KEPT": ErrBlocked,
	"REQUEST_REUSED": ErrInvalid,
}

var classOfCode = map[codes.Code]error{
	codes.NotFound: ErrNotFound, codes.AlreadyExists: ErrExists, codes.InvalidArgument: ErrInvalid,
	codes.PermissionDenied: ErrDenied, codes.Unauthenticated: ErrDenied, codes.OutOfRange: ErrReset,
	codes.Unimplemented: ErrInvalid, codes.FailedPrecondition: ErrConflict, codes.Internal: ErrInternal,
}

// errorOf converts the status of a call to a deployment. Other errors, and nil, stay as they are.
func errorOf(err error, asked schema.DeploymentID) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	e := &Error{status: st}
	for _, detail := range st.Details() {
		e.read(detail)
	}
	e.classify(asked)
	return e
}

func (e *Error) read(detail any) {
	switch d := detail.(type) {
	case *errdetails.ErrorInfo:
		e.Reason = d.GetReason()
		e.Total, _ = strconv.Atoi(d.GetMetadata()["total"])
	case *schemav1.ReferencesRefused:
		for _, r := range d.GetRefusals() {
			target, _ := schema.ParseFullName(r.GetTarget())
			e.Refusals = append(e.Refusals, Refusal{
				Holder: r.GetHolder(), Path: r.GetPath(), Target: target,
				Reason: r.GetReason(),
			})
		}
	case *errdetails.PreconditionFailure:
		for _, v := range d.GetViolations() {
			e.readViolation(v)
		}
	case *errdetails.BadRequest:
		for _, v := range d.GetFieldViolations() {
			e.Fields = append(e.Fields, Field{Path: v.GetField(), Problem: v.GetDescription()})
		}
	}
}

func (e *Error) readViolation(v *errdetails.PreconditionFailure_Violation) {
	name, _ := schema.ParseFullName(v.GetSubject())
	if v.GetType() == "BLOCK_DELETION" {
		e.Protected = append(e.Protected, name)
		return
	}
	e.Holders = append(e.Holders, Holder{Name: name, Text: v.GetDescription()})
}

func (e *Error) classify(asked schema.DeploymentID) {
	e.Total = max(e.Total, len(e.Refusals)+len(e.Holders)+len(e.Protected)+len(e.Fields))
	switch class, known := classOfCode[e.status.Code()]; {
	case classes[e.Reason] != nil:
		e.Class = classes[e.Reason]
	case len(e.Refusals) > 0 && e.Definite():
		e.Class = ErrRefused
	case known:
		e.Class = class
	default:
		e.Class = ErrUnavailable
		e.Deployments = e.silent(asked)
	}
}

// silent returns the deployments of the targets that could not be checked, and otherwise the asked one.
func (e *Error) silent(asked schema.DeploymentID) (ids []schema.DeploymentID) {
	for _, r := range e.Refusals {
		ids = append(ids, r.Target.Deployment)
	}
	if len(ids) == 0 && !asked.IsZero() { // zero: the registry
		ids = append(ids, asked)
	}
	return schema.SortedDeployments(ids)
}
