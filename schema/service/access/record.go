package access

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

// classOf returns the class of a call. Lists and plans, also of operators, are reads.
func classOf(method string, verb schema.Verb) auditlog.Class {
	switch name := path.Base(method); {
	case method == resourcev1.ResourceService_AcquireDelegations_FullMethodName, verb == schema.Refer:
		return auditlog.References
	case verb == schema.Read, strings.HasPrefix(name, "List"), strings.HasPrefix(name, "Plan"):
		return auditlog.Reads
	case verb == schema.Delete:
		return auditlog.Deletes
	case verb == schema.Operate:
		return auditlog.Operate
	}
	return auditlog.Writes
}

func eventOf(ctx context.Context, who identity.Caller, method string, d demand) auditlog.Event {
	e := auditlog.Event{
		Class: classOf(method, d.verb), Identity: who.Identity.String(), Proof: who.Proof, Person: d.person,
		Method: method, RequestID: requestid.ID(ctx).String(), Verb: string(d.verb),
	}
	for _, name := range d.names {
		e.Names = append(e.Names, name.String())
	}
	return e
}

// eventsOf are the events of a call: each has some of its names.
func eventsOf(ctx context.Context, who identity.Caller, method string, d demand) (out []auditlog.Event) {
	for names := range slices.Chunk(d.names, auditlog.MaxNames) {
		out = append(out, eventOf(ctx, who, method, demand{verb: d.verb, names: names, person: d.person}))
	}
	if out == nil {
		out = append(out, eventOf(ctx, who, method, d))
	}
	return out
}

// record writes the events of a call to the audit log, if the log has its class: before the call is carried
// out; of a read, before its answer is sent.
func (a *Access) record(ctx context.Context, who identity.Caller, method string, d demand) error {
	if !a.cfg.AuditLog.Has(classOf(method, d.verb)) || !strings.HasPrefix(method, "/dbcontroller.") {
		return nil
	}
	for _, e := range eventsOf(ctx, who, method, d) {
		e.Outcome = auditlog.Allowed
		if err := a.cfg.AuditLog.Record(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// failed records that an allowed call failed, and waits for nothing: it has its answer. The failures of one
// caller's reads, which are names that do not exist, are bounded as denials are.
func (a *Access) failed(ctx context.Context, who identity.Caller, method string, d demand, code codes.Code) {
	class := classOf(method, d.verb)
	if !a.cfg.AuditLog.Has(class) || !strings.HasPrefix(method, "/dbcontroller.") {
		return
	}
	if class == auditlog.Reads {
		leftOut, log := a.denials.log(answers(who), time.Now())
		if !log {
			return
		}
		a.leftOut(who, leftOut)
	}
	e := eventOf(ctx, who, method, d)
	e.Outcome, e.Code = auditlog.Failed, code.String()
	a.cfg.AuditLog.Note(e)
}

// denied writes a denial into the log of the process and the audit log, within the bound of its caller.
func (a *Access) denied(ctx context.Context, who identity.Caller, method string, d demand) {
	leftOut, log := a.denials.log(answers(who), time.Now())
	if !log {
		return
	}
	fields := fieldsOf(ctx, who, method, d)
	if leftOut > 0 {
		fields = append(fields, zap.Int("left_out", leftOut))
	}
	a.cfg.Logger.Named("audit").Info("denied", append(fields, zap.Int("names", len(d.names)),
		zap.Stringer("first", d.names[0]))...)
	e := eventOf(ctx, who, method, d)
	if e.Outcome = auditlog.Denied; a.cfg.AuditLog.Has(e.Class) {
		a.leftOut(who, leftOut)
		a.cfg.AuditLog.Note(e) // the call is denied in any case
	}
}

// answers returns the identity that has few lines: the caller, or the deployment on whose word alone it is
// believed, which could make up any number of people.
func answers(who identity.Caller) identity.Identity {
	if who.WordOf != (identity.Identity{}) {
		return who.WordOf
	}
	return who.Identity
}

// leftOut records the number of events of a caller that have no line.
func (a *Access) leftOut(who identity.Caller, n int) {
	if n > 0 {
		a.cfg.AuditLog.Note(auditlog.Event{Outcome: auditlog.LeftOut, Identity: answers(who).String(), Count: n})
	}
}

func fieldsOf(ctx context.Context, who identity.Caller, method string, d demand) []zap.Field {
	return []zap.Field{
		zap.Stringer("identity", who.Identity), zap.String("proof", who.Proof), zap.String("method", method),
		zap.String("verb", string(d.verb)), requestid.Field(ctx),
	}
}

// established are the resources here to which the attempts of a deployment refer, by the person who writes.
func (a *Access) established(attempts ...*schemav1.EstablishReferencesRequest_Attempt) (out []demand) {
	for _, attempt := range attempts {
		person := attempt.GetPerson().GetIdentity()
		i := slices.IndexFunc(out, func(d demand) bool { return d.person == person })
		if i < 0 {
			i, out = len(out), append(out, demand{verb: schema.Refer, person: person})
		}
		for _, ref := range attempt.GetReferences() {
			out[i].names = append(out[i].names, schema.FullName{
				Deployment: a.cfg.Deployment,
				Name:       ref.GetTarget().GetName(),
			})
		}
	}
	return out
}

// establish records the attempts of a deployment before they are carried out, and then the failed ones.
func (a *Access) establish(ctx context.Context, who identity.Caller, method string,
	in *schemav1.EstablishReferencesRequest, handler grpc.UnaryHandler,
) (any, error) {
	for _, d := range a.established(in.GetAttempts()...) {
		if err := a.record(ctx, who, method, d); err != nil {
			return nil, a.status(err)
		}
	}
	out, err := handler(a.withRefused(ctx, who, in), in)
	outcomes := []*schemav1.EstablishReferencesResponse_Outcome(nil)
	if answer, ok := out.(*schemav1.EstablishReferencesResponse); ok && err == nil {
		outcomes = answer.GetOutcomes()
	}
	for i, attempt := range in.GetAttempts() {
		code := status.Code(err)
		if i < len(outcomes) {
			if code = codes.Code(outcomes[i].GetFailure().GetCode()); outcomes[i].GetLeftOut() != nil { //nolint:gosec // a code
				code = codes.Aborted
			}
		}
		if code != codes.OK {
			for _, d := range a.established(attempt) {
				a.failed(ctx, who, method, d, code)
			}
		}
	}
	return out, err
}
