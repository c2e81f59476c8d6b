package access

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// hiddenName replaces the full name of a resource that the caller may not read.
const hiddenName = "a resource that you may not read"

// hiddenError replaces an error of a handler, whose text may have names without their deployment.
const hiddenError = "not shown: it may name resources that you may not read; an operator can read it"

type readableKey struct{}

// Readable reports for each name whether the caller of a request may read the resource; all of them where no
// rights are checked.
func Readable(ctx context.Context, names []schema.FullName) []bool {
	if readable, ok := ctx.Value(readableKey{}).(func([]schema.FullName) []bool); ok {
		return readable(names)
	}
	out := make([]bool, len(names))
	for i := range out {
		out[i] = true
	}
	return out
}

// readable denies all when the authorization service does not answer.
func (a *Access) readable(ctx context.Context, who identity.Caller, names []schema.FullName) []bool {
	allowed, err := a.Authorize(ctx, who, schema.Read, names)
	if err != nil {
		return make([]bool, len(names))
	}
	return allowed
}

// redacted hides names that the caller may not read in an answer about other resources than the requested
// ones, and in an error. An authorization service is asked about all names of an answer at once.
func (a *Access) redacted(ctx context.Context, who identity.Caller, method string, out any, err error) (any, error) {
	hide := &hider{read: readsOnly[method], readable: func(names []schema.FullName) []bool {
		return a.readable(ctx, who, names)
	}, known: map[schema.FullName]bool{}}
	if a.cfg.Outside != nil {
		hide.collecting = true
		_ = a.redact(who, hide, out, err)
		hide.ask()
	}
	return out, a.redact(who, hide, out, err)
}

func (a *Access) redact(who identity.Caller, hide *hider, out any, err error) error {
	if err != nil {
		return hide.status(err)
	}
	switch out := out.(type) {
	case *adminv1.ExplainResponse:
		hide.message(out.ProtoReflect())
		a.hideErrors(who, out)
		if out.GetDeletion().GetRoot() == hiddenName {
			out.Deletion = nil
		}
	case *adminv1.ListStuckResponse:
		hide.message(out.ProtoReflect())
		a.hideErrors(who, out)
		out.Resources = slices.DeleteFunc(out.GetResources(), func(r *adminv1.ListStuckResponse_Resource) bool {
			return r.GetName() == hiddenName
		})
		if !a.readsAll(who) {
			out.TotalSize = 0
		}
	case *adminv1.ListDeletionsResponse:
		hide.message(out.ProtoReflect())
		out.Deletions = readableDeletions(out.GetDeletions())
		if !a.readsAll(who) {
			out.TotalSize = 0
		}
	case *adminv1.StatusResponse:
		hide.message(out.ProtoReflect())
		a.hideErrors(who, out)
		out.Deletions = readableDeletions(out.GetDeletions())
		if !a.readsAll(who) {
			out.DeletionsTotal = 0
		}
		out.Scheduled = slices.DeleteFunc(out.GetScheduled(), func(d *adminv1.StatusResponse_ScheduledDeletion) bool {
			return d.GetRoot() == hiddenName
		})
		granted := a.granted(who)
		out.Kept = slices.DeleteFunc(out.GetKept(), func(k *adminv1.StatusResponse_Kept) bool {
			return len(granted.Of(k.GetKind())) == 0
		})
		for _, kept := range out.GetKept() {
			if !hide.may(schema.FullName{Deployment: a.cfg.Deployment, Name: kept.GetSample()}) {
				kept.Sample = hiddenName
			}
		}
		out.Derivations = slices.DeleteFunc(out.GetDerivations(), func(d *adminv1.StatusResponse_Derivation) bool {
			return len(granted.Of(d.GetKind())) == 0
		})
	case *resourcev1.PlanDeletionResponse:
		hide.message(out.ProtoReflect())
	default:
		for _, r := range resourcesOf(out) {
			a.hideContents(hide, r)
			hide.conditions(r)
		}
	}
	return nil
}

// readableDeletions leaves out the deletions whose root is hidden: their ids are of resources that the caller
// may not read.
func readableDeletions(all []*adminv1.Deletion) []*adminv1.Deletion {
	return slices.DeleteFunc(all, func(d *adminv1.Deletion) bool { return d.GetRoot() == hiddenName })
}

// resourcesOf returns the resources in an answer.
func resourcesOf(out any) []*resourcev1.Resource {
	switch out := out.(type) {
	case *resourcev1.Resource:
		return []*resourcev1.Resource{out}
	case interface {
		GetResources() []*resourcev1.Resource
	}:
		return out.GetResources()
	case interface {
		GetResource() *resourcev1.Resource
	}:
		return []*resourcev1.Resource{out.GetResource()}
	case *resourcev1.BatchDeleteResourcesResponse:
		var all []*resourcev1.Resource
		for _, one := range out.GetResponses() {
			all = append(all, one.GetResource())
		}
		return all
	}
	return nil
}

// hideContents leaves of a resource that the caller may write, delete or operate on, but not read, the fields
// that such a caller needs.
func (a *Access) hideContents(hide *hider, r *resourcev1.Resource) {
	if r == nil || hide.read {
		return
	}
	name, err := schema.ParseFullName("//" + r.GetDeployment() + "/" + r.GetName())
	if err != nil { // the answer of a deletion does not name the deployment
		name = schema.FullName{Deployment: a.cfg.Deployment, Name: r.GetName()}
	}
	if hide.may(name) {
		return
	}
	kept := &resourcev1.Resource{
		Name: r.GetName(), Kind: r.GetKind(), Deployment: r.GetDeployment(), Uid: r.GetUid(),
		Revision: r.GetRevision(), State: r.GetState(), DeleteTime: r.GetDeleteTime(), PurgeTime: r.GetPurgeTime(),
	}
	proto.Reset(r)
	proto.Merge(r, kept)
}

// readsAll reports whether a caller may read every resource of this deployment.
func (a *Access) readsAll(who identity.Caller) bool {
	return a.granted(who) == nil && (a.cfg.Outside == nil || who.Role == identity.RoleOperator)
}

// hideErrors hides the errors of handlers, and the reasons of checks, which have addresses and identities,
// from callers without the right to read every resource here.
func (a *Access) hideErrors(who identity.Caller, out any) {
	if a.readsAll(who) {
		return
	}
	hide := func(text *string) {
		if *text != "" {
			*text = hiddenError
		}
	}
	switch out := out.(type) {
	case *adminv1.ExplainResponse:
		for _, r := range out.GetReasons() {
			hide(&r.LastError)
		}
	case *adminv1.ListStuckResponse:
		for _, w := range out.GetWork() {
			hide(&w.LastError)
		}
	case *adminv1.StatusResponse:
		for _, f := range out.GetFailures() {
			hide(&f.Error)
		}
		for _, c := range out.GetNotReady() {
			hide(&c.Reason)
		}
		for _, o := range out.GetOutstanding() {
			hide(&o.Problem)
		}
		for _, d := range out.GetScheduled() {
			hide(&d.Reason)
		}
	}
}

type hider struct {
	read     bool // the request needed the right to read: the resources in the answer are for the caller
	readable func([]schema.FullName) []bool
	known    map[schema.FullName]bool // the answers so far
	// collecting: nothing is hidden, and names are collected, which ask asks about.
	collecting bool
	names      []schema.FullName
}

// askAtOnce is the number of names in one question.
const askAtOnce = 1000

// ask asks about the names that were collected.
func (h *hider) ask() {
	for names := range slices.Chunk(h.names, askAtOnce) {
		for i, allowed := range h.readable(names) {
			h.known[names[i]] = allowed
		}
	}
	h.collecting, h.names = false, nil
}

// may reports whether the caller may read a resource.
func (h *hider) may(name schema.FullName) bool {
	allowed, known := h.known[name]
	switch {
	case known:
		return allowed
	case h.collecting:
		h.names = append(h.names, name)
		h.known[name] = true
		return true
	}
	h.known[name] = h.readable([]schema.FullName{name})[0]
	return h.known[name]
}

func (h *hider) conditions(r *resourcev1.Resource) {
	for _, c := range r.GetConditions() {
		c.Message = h.text(c.GetMessage())
	}
}

// message hides names in all texts of a message, and removes list elements that are nothing but such a name.
func (h *hider) message(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				h.message(v.List().Get(i).Message())
			}
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			h.list(m, f, v.List())
		case f.Kind() == protoreflect.MessageKind:
			h.message(v.Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(h.text(v.String())))
		}
		return true
	})
}

func (h *hider) list(m protoreflect.Message, f protoreflect.FieldDescriptor, of protoreflect.List) {
	kept := m.NewField(f).List()
	for i := range of.Len() {
		if text := h.text(of.Get(i).String()); text != hiddenName {
			kept.Append(protoreflect.ValueOfString(text))
		}
	}
	m.Set(f, protoreflect.ValueOfList(kept))
}

// fullNames finds the full names in a text. It may take punctuation along that follows one.
var fullNames = regexp.MustCompile(`//[a-z][a-z0-9.-]*/[a-z][a-z0-9-]*/[a-z][A-Za-z0-9]*/[!-~]+`)

// text hides the full names in a text that the caller may not read.
func (h *hider) text(text string) string {
	if !strings.Contains(text, "//") {
		return text
	}
	return fullNames.ReplaceAllStringFunc(text, func(found string) string {
		name := strings.TrimRight(found, `.,;:)"'`)
		full, err := schema.ParseFullName(name)
		if err == nil && h.may(full) {
			return found
		}
		if err != nil && h.collecting {
			return found
		}
		return hiddenName + found[len(name):]
	})
}

// status hides names in an error: in its text, and among the holders in its details, where it counts them.
func (h *hider) status(err error) error {
	st, ok := status.FromError(err)
	if fault := (*requestid.Fault)(nil); !ok || errors.As(err, &fault) { // the text of a fault has no names
		return err
	}
	out := status.New(st.Code(), h.text(st.Message()))
	var info *errdetails.ErrorInfo
	var details []protoadapt.MessageV1
	hidden := 0
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.PreconditionFailure:
			hidden += h.violations(d)
		}
		if m, ok := d.(proto.Message); ok {
			details = append(details, protoadapt.MessageV1Of(m))
		}
	}
	if info != nil && hidden > 0 {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		if named, err := strconv.Atoi(info.GetMetadata()["named"]); err == nil {
			info.Metadata["named"] = strconv.Itoa(named - hidden)
		}
		info.Metadata["hidden"] = strconv.Itoa(hidden)
	}
	if with, err := out.WithDetails(details...); err == nil {
		out = with
	}
	return out.Err()
}

// violations removes the violations about resources that the caller may not read, and returns their number.
func (h *hider) violations(of *errdetails.PreconditionFailure) (hidden int) {
	var kept []*errdetails.PreconditionFailure_Violation
	for _, v := range of.GetViolations() {
		if h.text(v.GetSubject()) != v.GetSubject() {
			hidden++
			continue
		}
		v.Description = h.text(v.GetDescription())
		kept = append(kept, v)
	}
	of.Violations = kept
	return hidden
}
