package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
)

// maxMessages bounds the keys, attempts or references of one call.
const maxMessages = 10_000

// schemas is the SchemaService of one deployment: what other deployments say to it. The caller is who its certificate
// says; nothing in a request names it.
type schemas struct {
	schemav1.UnimplementedSchemaServiceServer
	store *shadow.Store
	// mayRefer tells whether a deployment's current version is of this service or imports it.
	mayRefer func(holder schema.DeploymentID, again bool) (bool, error)
	// disabled fails while the registry has disabled a deployment.
	disabled func(holder schema.DeploymentID) error
	log      *zap.Logger
}

func caller(ctx context.Context) (schema.DeploymentID, error) {
	id, err := identity.FromContext(ctx)
	if err != nil {
		return schema.DeploymentID{}, status.Error(codes.Unauthenticated, err.Error())
	}
	if id.Role != identity.RoleDeployment {
		return schema.DeploymentID{}, status.Errorf(codes.PermissionDenied, "%s is not a deployment", id)
	}
	return id.Deployment, nil
}

func invalid(field string, err error) error {
	return &shadow.InvalidError{Resource: field, Err: err}
}

func bounded(field string, n int) error {
	if n > maxMessages {
		return invalid(field, fmt.Errorf("%d in one call, at most %d are allowed", n, maxMessages))
	}
	return nil
}

func (s *schemas) EstablishReferences(ctx context.Context, req *schemav1.EstablishReferencesRequest) (*schemav1.EstablishReferencesResponse, error) {
	out, err := s.establish(ctx, req)
	return out, toStatus(s.log, err)
}

func (s *schemas) establish(ctx context.Context, req *schemav1.EstablishReferencesRequest) (*schemav1.EstablishReferencesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	attempt, err := wire.UID(req.GetAttempt())
	if err != nil {
		return nil, invalid("attempt", err)
	}
	if attempt.Version() != 7 {
		return nil, invalid("attempt", errors.New("want a UUIDv7"))
	}
	if err := bounded("references", len(req.GetReferences())); err != nil {
		return nil, err
	}
	if len(req.GetReferences()) == 0 {
		return nil, invalid("references", errors.New("there is none"))
	}
	refs := make([]shadow.EstablishReference, len(req.GetReferences()))
	for i, r := range req.GetReferences() {
		if refs[i], err = establishReference(r); err != nil {
			return nil, invalid(fmt.Sprintf("references[%d]", i), err)
		}
	}
	if err := s.disabled(holder); err != nil {
		return nil, &shadow.UnavailableError{Deployments: []schema.DeploymentID{holder}, Err: err}
	}
	again := !slices.ContainsFunc(refs, func(r shadow.EstablishReference) bool { return r.TargetUID == uuid.Nil })
	allowed, err := s.mayRefer(holder, again)
	if err != nil {
		return nil, &shadow.UnavailableError{Deployments: []schema.DeploymentID{s.store.Deployment()}, Err: err}
	}
	if !allowed {
		e := &shadow.RefusedError{}
		for _, r := range refs {
			e.Refusals = append(e.Refusals, shadow.Refusal{
				Holder: r.HolderName, Path: r.Path,
				Target: schema.FullName{Deployment: s.store.Deployment(), Name: r.TargetName}, Reason: shadow.NotImported,
			})
		}
		return nil, e
	}
	done := &shadow.Established{}
	if req.GetValidateOnly() {
		done.UIDs, done.Version, err = s.store.WouldEstablish(ctx, holder, refs)
	} else {
		done, err = s.store.Establish(ctx, holder, attempt, refs)
	}
	if err != nil {
		return nil, err
	}
	out := &schemav1.EstablishReferencesResponse{Epoch: done.Epoch[:]}
	for _, uid := range done.UIDs {
		out.Targets = append(out.Targets, &schemav1.EstablishReferencesResponse_Target{Uid: uid[:], Version: done.Version})
	}
	return out, nil
}

func establishReference(r *schemav1.EstablishReferencesRequest_Reference) (out shadow.EstablishReference, err error) {
	out = shadow.EstablishReference{
		HolderKind: r.GetHolder().GetKind(), HolderName: r.GetHolder().GetName(), Path: r.GetPath(),
		TargetKind: r.GetTarget().GetKind(), TargetName: r.GetTarget().GetName(),
	}
	if out.HolderUID, err = wire.UID(r.GetHolder().GetUid()); err != nil {
		return out, err
	}
	if out.TargetUID, err = wire.OptionalUID(r.GetTarget().GetUid()); err != nil {
		return out, err
	}
	if err = schema.CheckKind(out.HolderKind); err != nil {
		return out, err
	}
	if err = schema.CheckName(out.HolderName); err != nil {
		return out, err
	}
	if err = schema.CheckName(out.TargetName); err != nil {
		return out, err
	}
	if _, err = schema.ParsePath(out.Path); err != nil && out.Path != schema.ParentPath {
		return out, err
	}
	out.Behaviour, err = wire.Behaviour(r.GetBehaviour())
	return out, err
}

func (s *schemas) ConfirmBlockades(ctx context.Context, req *schemav1.ConfirmBlockadesRequest) (*schemav1.ConfirmBlockadesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	attempts, err := wire.UIDs(req.GetAttempts())
	if err == nil {
		err = bounded("attempts", len(attempts))
	}
	if err != nil {
		return nil, toStatus(s.log, invalid("attempts", err))
	}
	epoch, err := wire.OptionalUID(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, invalid("epoch", err))
	}
	unknown, err := s.store.Confirm(ctx, holder, epoch, attempts)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.ConfirmBlockadesResponse{UnknownAttempts: wire.Bytes(unknown)}, nil
}

func (s *schemas) ResolveBlockades(ctx context.Context, req *schemav1.ResolveBlockadesRequest) (*schemav1.ResolveBlockadesResponse, error) {
	target, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := bounded("questions", len(req.GetQuestions())); err != nil {
		return nil, toStatus(s.log, err)
	}
	questions := make([]shadow.Question, len(req.GetQuestions()))
	for i, q := range req.GetQuestions() {
		key, err := blockadeKey(q.GetKey())
		if err != nil {
			return nil, toStatus(s.log, invalid("questions", err))
		}
		questions[i] = shadow.Question{Key: key, Expired: q.GetExpired()}
	}
	answers, err := s.store.Answer(ctx, target, questions)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	out := &schemav1.ResolveBlockadesResponse{Epoch: answers.Epoch[:], Verdicts: make([]schemav1.ResolveBlockadesResponse_Verdict, len(answers.Verdicts))}
	for i, v := range answers.Verdicts {
		out.Verdicts[i] = verdictProto[v]
	}
	return out, nil
}

var verdictProto = map[shadow.Verdict]schemav1.ResolveBlockadesResponse_Verdict{
	shadow.Held:        schemav1.ResolveBlockadesResponse_VERDICT_HELD,
	shadow.GoneVerdict: schemav1.ResolveBlockadesResponse_VERDICT_GONE,
	shadow.Undecided:   schemav1.ResolveBlockadesResponse_VERDICT_UNDECIDED,
}

func (s *schemas) ReleaseBlockades(ctx context.Context, req *schemav1.ReleaseBlockadesRequest) (*schemav1.ReleaseBlockadesResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	if err := bounded("keys", len(req.GetKeys())+len(req.GetAttempts())); err != nil {
		return nil, toStatus(s.log, err)
	}
	keys := make([]shadow.BlockadeKey, len(req.GetKeys()))
	for i, k := range req.GetKeys() {
		if keys[i], err = blockadeKey(k); err != nil {
			return nil, toStatus(s.log, invalid("keys", err))
		}
	}
	attempts, err := wire.UIDs(req.GetAttempts())
	if err != nil {
		return nil, toStatus(s.log, invalid("attempts", err))
	}
	epoch, err := wire.OptionalUID(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, invalid("epoch", err))
	}
	if err := s.store.Release(ctx, holder, epoch, keys, attempts); err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.ReleaseBlockadesResponse{}, nil
}

func blockadeKey(k *schemav1.BlockadeKey) (out shadow.BlockadeKey, err error) {
	if out.Attempt, err = wire.UID(k.GetAttempt()); err != nil {
		return out, err
	}
	if out.HolderUID, err = wire.UID(k.GetHolderUid()); err != nil {
		return out, err
	}
	out.Path = k.GetPath()
	if _, err = schema.ParsePath(out.Path); err != nil && out.Path != schema.ParentPath {
		return out, err
	}
	out.TargetUID, err = wire.UID(k.GetTargetUid())
	return out, err
}

func keyProto(k shadow.BlockadeKey) *schemav1.BlockadeKey {
	return &schemav1.BlockadeKey{Attempt: k.Attempt[:], HolderUid: k.HolderUID[:], Path: k.Path, TargetUid: k.TargetUID[:]}
}

func (s *schemas) WatchImportedServiceDeletions(req *schemav1.WatchImportedServiceDeletionsRequest, stream grpc.ServerStreamingServer[schemav1.WatchImportedServiceDeletionsResponse]) error {
	holder, err := caller(stream.Context())
	if err != nil {
		return toStatus(s.log, err)
	}
	err = s.store.WatchDeletions(stream.Context(), holder, req.GetResumeToken(), func(e schema.Event[schema.Deletion]) error {
		if len(e.Items) > 0 {
			upsert := &schemav1.WatchImportedServiceDeletionsResponse_Deletions{Resources: make([]*schemav1.ResourceRef, len(e.Items)), Notices: make([]int64, len(e.Items))}
			upsert.Causes, upsert.CauseOf = wire.CausesProto(e.Items)
			for i, d := range e.Items {
				upsert.Resources[i], upsert.Notices[i] = &schemav1.ResourceRef{Kind: d.Kind, Name: d.Name, Uid: d.UID[:]}, d.Seq
			}
			err := stream.Send(&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Upsert{Upsert: upsert}})
			if err != nil || e.Token == "" {
				return err
			}
		}
		if e.EndOfSnapshot {
			return stream.Send(&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_EndOfSnapshot{
				EndOfSnapshot: &schemav1.EndOfSnapshot{ResumeToken: e.Token},
			}})
		}
		return stream.Send(&schemav1.WatchImportedServiceDeletionsResponse{Event: &schemav1.WatchImportedServiceDeletionsResponse_Bookmark{
			Bookmark: &schemav1.Bookmark{ResumeToken: e.Token},
		}})
	})
	return toStatus(s.log, err)
}

func (s *schemas) AcknowledgeDeletions(ctx context.Context, req *schemav1.AcknowledgeDeletionsRequest) (*schemav1.AcknowledgeDeletionsResponse, error) {
	holder, err := caller(ctx)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	except, err := wire.UIDs(req.GetExceptUids())
	if err != nil {
		return nil, toStatus(s.log, invalid("except_uids", err))
	}
	epoch, err := wire.OptionalUID(req.GetEpoch())
	if err != nil {
		return nil, toStatus(s.log, invalid("epoch", err))
	}
	patience := acknowledgePatience
	if !req.GetInParts() {
		patience = math.MaxInt64
	}
	more, err := s.store.AcknowledgeFor(ctx, holder, epoch, req.GetPosition(), except, patience)
	if err != nil {
		return nil, toStatus(s.log, err)
	}
	return &schemav1.AcknowledgeDeletionsResponse{More: more}, nil
}

// acknowledgePatience is how long one call acknowledges before it answers that there is more.
const acknowledgePatience = 2 * time.Second

// own refuses everybody but the deployment itself.
func (s *schemas) own(ctx context.Context) error {
	if who, err := caller(ctx); err != nil || who != s.store.Deployment() {
		return status.Error(codes.PermissionDenied, "a deployment's shadows and outstanding work are its own affair")
	}
	return nil
}

// WatchResourceShadows is for the deployment's own nodes.
func (s *schemas) WatchResourceShadows(req *schemav1.WatchResourceShadowsRequest, stream grpc.ServerStreamingServer[schemav1.WatchResourceShadowsResponse]) error {
	if err := s.own(stream.Context()); err != nil {
		return toStatus(s.log, err)
	}
	shards, err := shardList(req.GetShards())
	if err != nil {
		return toStatus(s.log, err)
	}
	err = s.store.WatchWork(stream.Context(), shards, req.GetResumeToken(), func(e schema.Event[schema.Work]) error {
		if len(e.Items) > 0 {
			upsert := &schemav1.WatchResourceShadowsResponse_Work{Items: make([]*schemav1.WorkItem, len(e.Items))}
			for i, w := range e.Items {
				upsert.Items[i] = &schemav1.WorkItem{Id: w.Seq, Action: schemav1.WorkItem_Action(w.Action), Deployment: w.Deployment.String(), CreateTime: timestamppb.New(w.CreatedAt)}
			}
			err := stream.Send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Upsert{Upsert: upsert}})
			if err != nil || e.Token == "" {
				return err
			}
		}
		if e.EndOfSnapshot {
			return stream.Send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_EndOfSnapshot{
				EndOfSnapshot: &schemav1.EndOfSnapshot{ResumeToken: e.Token},
			}})
		}
		return stream.Send(&schemav1.WatchResourceShadowsResponse{Event: &schemav1.WatchResourceShadowsResponse_Bookmark{
			Bookmark: &schemav1.Bookmark{ResumeToken: e.Token},
		}})
	})
	return toStatus(s.log, err)
}

func shardList(in []uint32) ([]int16, error) {
	if len(in) == 0 {
		for i := range uint32(schema.RingSize) {
			in = append(in, i)
		}
	}
	out := make([]int16, len(in))
	for i, shard := range in {
		if shard >= schema.RingSize {
			return nil, invalid("shards", fmt.Errorf("shard %d: the ring has %d", shard, schema.RingSize))
		}
		out[i] = int16(shard)
	}
	return out, nil
}
