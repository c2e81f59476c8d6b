package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

const (
	insertRevisionSQL = `
INSERT INTO dbcontroller_registry.revision (revision, actor, proof, request_id, method, reason, changes)
VALUES (@revision, @actor, @proof, @request_id, @method, @reason, @changes)`

	// The newest first.
	selectRevisionsSQL = `
SELECT seq, revision, changed_at, actor, proof, request_id, method, reason, changes FROM dbcontroller_registry.revision WHERE seq < $1 ORDER BY seq DESC LIMIT $2`
)

// author is who asks for a change of the environment, and how.
type author struct {
	who            identity.Caller
	request        uuid.UUID
	method, reason string
	decision       string            // one of schema.Decisions; empty for other changes
	signedBy       identity.Identity // who has signed the request, when another operator did
	audit          *auditlog.Log
	log            *zap.Logger
}

func (a *author) event(outcome auditlog.Outcome) auditlog.Event {
	return auditlog.Event{
		Class: auditlog.Registry, Outcome: outcome, Identity: a.who.Identity.String(), Proof: a.who.Proof,
		Method: a.method, RequestID: a.request.String(), Reason: a.reason,
	}
}

// author returns the caller of a request, whom the audit log has.
func (s *Server) author(ctx context.Context, method, reason string) (*author, error) {
	who, err := identity.CallerFromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	a := &author{
		who: who, request: requestid.ID(ctx), method: method, reason: reason, audit: s.audit,
		log: s.log.Named("audit"),
	}
	if err := s.audit.Record(ctx, a.event(auditlog.Asked)); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return a, nil
}

// queue records a change in its transaction.
func (a *author) queue(b *pgx.Batch, revision int64, changes []string) {
	if a != nil {
		b.Queue(insertRevisionSQL, pgx.StrictNamedArgs{
			"revision": revision, "actor": a.who.Identity.String(), "proof": a.who.Proof, "request_id": a.request,
			"method": a.method, "reason": a.reason, "changes": changes,
		})
	}
}

// changed writes the line of the audit, after the commit.
func (a *author) changed(ctx context.Context, revision int64, changes []string) {
	if a != nil {
		e := a.event(auditlog.Changed)
		e.Revision, e.Changes = revision, changes
		a.audit.Note(e) // the change is committed, and the table has it
		a.log.Info("changed", zap.Stringer("identity", a.who.Identity), zap.String("proof", a.who.Proof),
			zap.String("method", a.method),
			requestid.Field(ctx), zap.Int64("revision", revision), zap.String("reason", a.reason),
			zap.Strings("changes", changes))
	}
}

// ended records that a change was denied, or failed, or was only validated.
func (a *author) ended(ctx context.Context, err error) {
	if a == nil {
		return
	}
	e := a.event(auditlog.Failed)
	switch code := status.Code(err); {
	case err == nil:
		e.Outcome, e.Reason = auditlog.Allowed, "nothing was changed"
	case code == codes.PermissionDenied:
		e.Outcome = auditlog.Denied
	default:
		e.Code = code.String()
	}
	a.audit.Note(e)
	if e.Outcome == auditlog.Denied {
		a.log.Info("denied", zap.Stringer("identity", a.who.Identity), zap.String("proof", a.who.Proof),
			zap.String("method", a.method), requestid.Field(ctx))
	}
}

const (
	defaultRevisions = 100
	maxRevisions     = 1000
)

// ListRevisions returns the changes that operators made.
func (s *Server) ListRevisions(ctx context.Context,
	req *registryv1.ListRevisionsRequest,
) (*registryv1.ListRevisionsResponse, error) {
	if err := s.reads(ctx); err != nil {
		return nil, err
	}
	before, size := int64(1<<62), int(req.GetPageSize())
	if token := req.GetPageToken(); token != "" {
		var err error
		if before, err = strconv.ParseInt(token, 10, 64); err != nil {
			return nil, status.Error(codes.InvalidArgument, "page_token: want the next_page_token of a page, or none")
		}
	}
	switch {
	case size < 0:
		return nil, status.Error(codes.InvalidArgument, "page_size: want 0 to 1000")
	case size == 0:
		size = defaultRevisions
	}
	size = min(size, maxRevisions)
	rows, err := s.store.pool.Query(ctx, selectRevisionsSQL, before, size+1)
	if err != nil {
		return nil, s.fail(fmt.Errorf("read the revisions: %w", err))
	}
	out := &registryv1.ListRevisionsResponse{}
	var seqs []int64
	out.Revisions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*registryv1.Revision, error) {
		r := &registryv1.Revision{}
		var at time.Time
		var request uuid.UUID
		var seq int64
		err := row.Scan(&seq, &r.Revision, &at, &r.Actor, &r.Proof, &request, &r.Method, &r.Reason, &r.Changes)
		seqs = append(seqs, seq)
		r.Time, r.RequestId = timestamppb.New(at), request.String()
		return r, err
	})
	if err != nil {
		return nil, s.fail(fmt.Errorf("read the revisions: %w", err))
	}
	if len(out.Revisions) > size {
		out.Revisions = out.Revisions[:size]
		out.NextPageToken = strconv.FormatInt(seqs[size-1], 10)
	}
	return out, nil
}
