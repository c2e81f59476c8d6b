package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/costs"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/schema/wire"
)

// establisher establishes references of other deployments to resources of this one, all or nothing. A refusal
// is a *peer.RefusedError. WouldEstablish stores nothing.
type establisher interface {
	Establish(ctx context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
		refs []peer.EstablishReference) (*peer.Established, error)
	WouldEstablish(ctx context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
		refs []peer.EstablishReference) (*peer.Established, error)
	// EstablishTogether is Establish for several attempts, each by itself.
	EstablishTogether(ctx context.Context, holder schema.DeploymentID,
		attempts []peer.EstablishAttempt) []peer.EstablishOutcome
}

// schemas is the SchemaService of one deployment, for other deployments. The caller is the deployment in the
// certificate; no request names it.
type schemas struct {
	schemav1.UnimplementedSchemaServiceServer
	self        schema.DeploymentID
	establisher establisher
	blockades   blockadeStore
	attempts    attemptStore
	rights      rightRecaller
	feeds       feedStore
	owners      ownerStore
	upgrades    ownerUpgrader
	epochs      epochStore
	epochOf     epochAsker
	versionOf   versionAsker
	asking      singleflight.Group // the questions for epochs, by deployment
	plans       planner
	shadows     shadowStore
	// mayRefer reports whether the current version of a deployment is of this service or imports it, see
	// Peers.MayRefer.
	mayRefer func(holder schema.DeploymentID, again bool) (bool, error)
	// disabled fails while a deployment is disabled in the registry.
	disabled func(holder schema.DeploymentID) error
	// delegates reports whether other deployments may get delegations: not while rules that they do not know
	// decide about references to resources here.
	delegates func() bool
	written   *costs.Written // nil: nothing is counted
	log       *zap.Logger
}

func newSchemas(cfg Config) *schemas {
	store := cfg.Store
	return &schemas{
		self: store.Deployment(), establisher: store.Targets, blockades: store.Targets, attempts: store.Attempts,
		rights: store.Rights, feeds: store.Read,
		owners: store.Owners, upgrades: store.Owners, epochs: store.Gate, epochOf: cfg.Peers.Epoch,
		versionOf: cfg.Peers.Version, plans: store.Deletions, shadows: store.Operate,
		mayRefer: cfg.Peers.MayRefer, disabled: cfg.Peers.Disabled, log: cfg.Logger,
		delegates: delegatesUnless(cfg.Callers.Authorizer, cfg.Callers.Tokens), written: cfg.written,
	}
}

// delegatesUnless is schemas.delegates: other deployments know neither an authorization service nor the proof
// of the writing person.
func delegatesUnless(authorizer access.Authorizer, tokens access.Tokens) func() bool {
	return func() bool { return authorizer == nil && (tokens == nil || !tokens.RequireForwarded()) }
}

// caller returns the deployment that makes a call; it fails for people.
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

func bounded(field string, n int) error {
	if n > wire.MaxMessages {
		return outcome.Invalid(field, fmt.Errorf("%d in one call, at most %d are allowed", n, wire.MaxMessages))
	}
	return nil
}

// messageEpoch reads the epoch of the database from which the caller has read a message.
func messageEpoch(raw []byte) (uuid.UUID, error) {
	epoch, err := wire.UID(raw)
	if err != nil {
		return uuid.Nil, outcome.Invalid("epoch", err)
	}
	return epoch, nil
}

// attempt reads an attempt, and checks that its holders may refer to resources here.
func (s *schemas) attempt(holder schema.DeploymentID,
	req *schemav1.EstablishReferencesRequest_Attempt,
) (out peer.EstablishAttempt, err error) {
	if out.Attempt, err = attemptID(req.GetAttempt()); err != nil {
		return out, err
	}
	if out.Refs, err = establishReferences(req.GetReferences()); err != nil {
		return out, err
	}
	return out, s.checkHolder(holder, out.Refs)
}

func attemptID(raw []byte) (peer.AttemptID, error) {
	attempt, err := wire.UID(raw)
	if err == nil && attempt.Version() != 7 {
		err = errors.New("want a UUIDv7")
	}
	if err != nil {
		return attempt, outcome.Invalid("attempt", err)
	}
	return attempt, nil
}

func establishReferences(in []*schemav1.EstablishReferencesRequest_Reference) ([]peer.EstablishReference, error) {
	if err := bounded("references", len(in)); err != nil {
		return nil, err
	}
	if len(in) == 0 {
		return nil, outcome.Invalid("references", errors.New("the list is empty: give at least one reference"))
	}
	refs := make([]peer.EstablishReference, len(in))
	for i, r := range in {
		var err error
		if refs[i], err = establishReference(r); err != nil {
			return nil, outcome.Invalid(fmt.Sprintf("references[%d]", i), err)
		}
	}
	return refs, nil
}

// checkHolder refuses references of a deployment whose version does not import this service. A disabled
// deployment, and a deployment that the registry's environment lacks, get errors that pass: their references
// may be valid later.
func (s *schemas) checkHolder(holder schema.DeploymentID, refs []peer.EstablishReference) error {
	if err := s.disabled(holder); err != nil {
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{holder}, Err: err}
	}
	again := true // every uid is known, so every reference was established before
	rights := false
	for _, r := range refs {
		right := r.Path == peer.RightPath
		again, rights = again && r.TargetUID != uuid.Nil && !right, rights || right
	}
	allowed, err := s.mayRefer(holder, again)
	if err != nil {
		return &peer.UnavailableError{Deployments: []schema.DeploymentID{s.self}, Err: err}
	}
	reason := peer.NotImported
	if allowed && rights && !s.delegates() {
		allowed, reason = false, peer.NotReferable
	}
	if allowed {
		return nil
	}
	e := &peer.RefusedError{}
	for _, r := range refs {
		e.Refusals = append(e.Refusals, peer.Refusal{
			Holder: r.HolderName, Path: r.Path, Target: schema.FullName{Deployment: s.self, Name: r.TargetName},
			Reason: reason,
		})
	}
	return e
}

func establishReference(r *schemav1.EstablishReferencesRequest_Reference) (out peer.EstablishReference, err error) {
	out = peer.EstablishReference{
		HolderKind: r.GetHolder().GetKind(), HolderName: r.GetHolder().GetName(), Path: r.GetPath(),
		TargetKind: r.GetTarget().GetKind(), TargetName: r.GetTarget().GetName(),
	}
	if out.HolderUID, err = wire.UID(r.GetHolder().GetUid()); err != nil {
		return out, err
	}
	if out.TargetUID, err = wire.OptionalUID(r.GetTarget().GetUid()); err != nil {
		return out, err
	}
	if out.Right, err = wire.OptionalUID(r.GetRight()); err != nil {
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
	if err = wire.CheckPath(out.Path); err != nil {
		return out, err
	}
	out.Behaviour, err = wire.Behaviour(r.GetBehaviour())
	return out, err
}
