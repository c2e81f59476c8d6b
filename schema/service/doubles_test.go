package service

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/service/peers"
	"github.com/db-controller/db-controller/schema/shadow"
)

var (
	sibling = schema.DeploymentID{Service: self.Service, Region: "eastus2"}
	other   = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}

	ann      = identity.Identity{Role: identity.RoleUser, Name: "ann"}
	operator = identity.Identity{Role: identity.RoleOperator, Name: "eve"}
)

func as(t testing.TB, who identity.Identity) context.Context {
	t.Helper()
	return identity.NewContext(t.Context(), who)
}

func asDeployment(t testing.TB, d schema.DeploymentID) context.Context {
	t.Helper()
	return as(t, identity.Deployment(d))
}

// uid returns a uid that is recognised in a failed comparison.
func uid(n byte) uuid.UUID {
	return uuid.UUID{0: n, 6: 0x40, 8: 0x80, 15: n}
}

func bytesOf(id uuid.UUID) []byte { return id[:] }

func newAttempt(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id
}

// reasonOf returns the reason in the details of an error.
func reasonOf(t testing.TB, err error) string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			require.Equal(t, "dbcontroller", info.GetDomain())
			return info.GetReason()
		}
	}
	return ""
}

// schemaStore is the store of a SchemaService: a test sets the functions that it expects to be called, and a
// call of another one panics.
type schemaStore struct {
	establish func(holder schema.DeploymentID, attempt peer.AttemptID,
		refs []peer.EstablishReference) (*peer.Established, error)
	establishTogether func(ctx context.Context, holder schema.DeploymentID,
		attempts []peer.EstablishAttempt) []peer.EstablishOutcome
	wouldEstablish func(holder schema.DeploymentID, attempt peer.AttemptID,
		refs []peer.EstablishReference) (*peer.Established, error)
	confirm func(holder schema.DeploymentID, epoch uuid.UUID,
		attempts []peer.AttemptID) ([]peer.AttemptID, error)
	release func(holder schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
		attempts []peer.AttemptID) error
	answer          func(target schema.DeploymentID, questions []peer.Question) (*peer.Answers, error)
	recall          func(from schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error)
	checkReferences func(holder schema.DeploymentID, refs []peer.CheckedReference) ([]peer.Known, error)
	checkKept       func(holder schema.DeploymentID, token string) error
	watchDeletions  func(holder schema.DeploymentID, token string,
		deliver func(schema.Event[schema.Deletion]) error) error
	acknowledge func(holder schema.DeploymentID, epoch uuid.UUID, token string, except []uuid.UUID,
		limit time.Duration) (bool, error)
	checkOwners func(ownee schema.DeploymentID, questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)
	wouldCheck  func(ownee schema.DeploymentID, questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)
	dropOwners  func(from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion,
		releases []peer.OwnerRelease) ([]uuid.UUID, bool, error)
	upgradeOwners func(from schema.DeploymentID, version string, generation int64,
		renamed map[string]string) (int64, error)
	runs peer.OwnerAnswers // the version and the generation that the caller says when it is asked
	// of the deployment, as it is known of the caller, and as the caller says it when it is asked
	epoch, peerEpoch, says uuid.UUID
	unread                 error // of peerEpoch
	referredIn             func(of schema.DeploymentID, epoch uuid.UUID) (peer.TargetKinds, error)
	told                   func(from schema.DeploymentID, epoch uuid.UUID) (uuid.UUID, error)
	confirmed              func(by schema.DeploymentID, epoch, selfEpoch uuid.UUID) error
	plan                   func(q peer.PlanQuestion) (*peer.Plan, error)
	trace                  func(uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error)
	listShadows            func(kind, token string, limit int) ([]shadow.ResourceView, string, error)
	listBlockades          func(of schema.DeploymentID, token string, limit int) ([]shadow.BlockadeView, string, error)
	watchWork              func(shards []int16, token string, deliver func(schema.Event[schema.Work]) error) error
	delegable              bool    // of the last confirm
	references             []int32 // of the last confirm
}

func (s *schemaStore) Establish(_ context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	return s.establish(holder, attempt, refs)
}

func (s *schemaStore) EstablishTogether(ctx context.Context, holder schema.DeploymentID,
	attempts []peer.EstablishAttempt,
) []peer.EstablishOutcome {
	if s.establishTogether != nil {
		return s.establishTogether(ctx, holder, attempts)
	}
	out := make([]peer.EstablishOutcome, len(attempts))
	for i, a := range attempts {
		out[i].Established, out[i].Err = s.establish(holder, a.Attempt, a.Refs)
	}
	return out
}

func (s *schemaStore) WouldEstablish(_ context.Context, holder schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	return s.wouldEstablish(holder, attempt, refs)
}

func (s *schemaStore) Confirm(_ context.Context, holder schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error) {
	s.delegable, s.references = c.Delegable, c.References
	unknown, err := s.confirm(holder, c.Epoch, c.Attempts)
	return &peer.Confirmed{Unknown: unknown}, err
}

func (s *schemaStore) Release(_ context.Context, holder schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
	attempts []peer.AttemptID,
) error {
	return s.release(holder, epoch, keys, attempts)
}

func (s *schemaStore) Answer(_ context.Context, target schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	return s.answer(target, questions)
}

func (s *schemaStore) Recall(_ context.Context, from schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	return s.recall(from, asked)
}

func (s *schemaStore) CheckReferences(_ context.Context, holder schema.DeploymentID,
	refs []peer.CheckedReference,
) ([]peer.Known, error) {
	return s.checkReferences(holder, refs)
}

func (s *schemaStore) CheckKept(_ context.Context, holder schema.DeploymentID, token string) error {
	if s.checkKept == nil {
		return nil
	}
	return s.checkKept(holder, token)
}

func (s *schemaStore) WatchDeletions(_ context.Context, holder schema.DeploymentID, token string,
	deliver func(schema.Event[schema.Deletion]) error,
) error {
	return s.watchDeletions(holder, token, deliver)
}

func (s *schemaStore) AcknowledgeFor(_ context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string,
	except []uuid.UUID, limit time.Duration,
) (bool, error) {
	return s.acknowledge(holder, epoch, token, except, limit)
}

func (s *schemaStore) CheckOwners(_ context.Context, ownee schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return s.checkOwners(ownee, questions)
}

func (s *schemaStore) WouldCheckOwners(_ context.Context, ownee schema.DeploymentID,
	questions []peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return s.wouldCheck(ownee, questions)
}

func (s *schemaStore) DropOwners(_ context.Context, from schema.DeploymentID, epoch uuid.UUID, owners []schema.Deletion,
	releases []peer.OwnerRelease,
) ([]uuid.UUID, bool, error) {
	return s.dropOwners(from, epoch, owners, releases)
}

func (s *schemaStore) UpgradeOwners(_ context.Context, from schema.DeploymentID, version string, generation int64,
	renamed map[string]string,
) (int64, error) {
	return s.upgradeOwners(from, version, generation, renamed)
}

func (s *schemaStore) ReferredKinds(context.Context, schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
	return s.epoch, peer.TargetKinds{Known: true, Names: []string{"Target"}}, nil
}

func (s *schemaStore) ReferredKindsIn(_ context.Context, of schema.DeploymentID,
	epoch uuid.UUID,
) (peer.TargetKinds, error) {
	if s.referredIn == nil {
		return peer.TargetKinds{Known: true, Names: []string{"Target"}}, nil
	}
	return s.referredIn(of, epoch)
}

func (s *schemaStore) PeerEpoch(context.Context, schema.DeploymentID) (uuid.UUID, error) {
	return s.peerEpoch, s.unread
}

func (s *schemaStore) RecordPeerEpoch(_ context.Context, from schema.DeploymentID, epoch uuid.UUID,
	_ peer.TargetKinds,
) (uuid.UUID, error) {
	return s.told(from, epoch)
}

func (s *schemaStore) MarkReferencesConfirmed(_ context.Context, by schema.DeploymentID, epoch,
	selfEpoch uuid.UUID,
) error {
	return s.confirmed(by, epoch, selfEpoch)
}

func (s *schemaStore) Plan(_ context.Context, q peer.PlanQuestion) (*peer.Plan, error) {
	return s.plan(q)
}

func (s *schemaStore) Trace(_ context.Context, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	return s.trace(uids)
}

func (s *schemaStore) ListShadows(_ context.Context, kind, token string,
	limit int,
) ([]shadow.ResourceView, string, error) {
	return s.listShadows(kind, token, limit)
}

func (s *schemaStore) ListBlockades(_ context.Context, of schema.DeploymentID, token string,
	limit int,
) ([]shadow.BlockadeView, string, error) {
	return s.listBlockades(of, token, limit)
}

func (s *schemaStore) WatchWork(_ context.Context, shards []int16, token string,
	deliver func(schema.Event[schema.Work]) error,
) error {
	return s.watchWork(shards, token, deliver)
}

// newSchemaService returns a SchemaService of self over a double of the store, to which every deployment may
// refer.
func newSchemaService(store *schemaStore) *schemas {
	return &schemas{
		self: self, establisher: store, blockades: store, attempts: store, rights: store, feeds: store, owners: store,
		upgrades: store, epochs: store, plans: store, shadows: store,
		epochOf: func(context.Context, schema.DeploymentID) (uuid.UUID, peer.TargetKinds, error) {
			return store.says, peer.TargetKinds{}, nil
		},
		versionOf: func(context.Context, schema.DeploymentID) (string, int64, error) {
			return cmp.Or(store.runs.Version, "v1"), store.runs.Generation, nil
		},
		mayRefer:  func(schema.DeploymentID, bool) (bool, error) { return true, nil },
		disabled:  func(schema.DeploymentID) error { return nil },
		delegates: delegatesUnless(nil, nil),
		log:       zap.NewNop(),
	}
}

// resourceStore is the store of a ResourceService, see schemaStore.
type resourceStore struct {
	get              func(name string) (*peer.Resource, error)
	conditions       func(name string) ([]shadow.Condition, error)
	list             func(req shadow.ListRequest) ([]peer.Resource, string, error)
	save             func(writes []peer.Write) ([]peer.Resource, error)
	saveRequested    func(id uuid.UUID, writes []peer.Write) ([]peer.Resource, error)
	validate         func(writes []peer.Write, token string) ([]peer.Resource, error)
	delete           func(ctx context.Context, req shadow.DeleteRequest) (peer.DeleteResult, error)
	planDelete       func(name string) (*shadow.DeletePlan, error)
	setBlockDeletion func(name string, uid uuid.UUID, block bool) (*peer.Resource, error)
}

func (s *resourceStore) Get(_ context.Context, name string) (*peer.Resource, error) {
	return s.get(name)
}

func (s *resourceStore) Conditions(_ context.Context, name string) ([]shadow.Condition, error) {
	return s.conditions(name)
}

func (s *resourceStore) List(_ context.Context, req shadow.ListRequest) ([]peer.Resource, string, error) {
	return s.list(req)
}

func (s *resourceStore) Save(_ context.Context, writes []peer.Write) ([]peer.Resource, error) {
	return s.save(writes)
}

func (s *resourceStore) SaveRequested(_ context.Context, id uuid.UUID, writes []peer.Write) ([]peer.Resource, error) {
	return s.saveRequested(id, writes)
}

func (s *resourceStore) ValidateBatch(_ context.Context, writes []peer.Write, token string) ([]peer.Resource, error) {
	return s.validate(writes, token)
}

func (s *resourceStore) DeleteAll(ctx context.Context,
	reqs []shadow.DeleteRequest,
) (results []peer.DeleteResult, err error) {
	for _, req := range reqs {
		result, err := s.delete(ctx, req)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

func (s *resourceStore) Undelete(_ context.Context, name string, uid uuid.UUID) (*peer.Resource, error) {
	return s.setBlockDeletion(name, uid, false)
}

func (s *resourceStore) PlanDelete(_ context.Context, names ...string) (*shadow.DeletePlan, error) {
	return s.planDelete(strings.Join(names, " "))
}

func (s *resourceStore) SetBlockDeletion(_ context.Context, name string, uid uuid.UUID,
	block bool,
) (*peer.Resource, error) {
	return s.setBlockDeletion(name, uid, block)
}

// newResourceService returns a ResourceService of self over a double of the store, without a version, in an
// environment with self, sibling and other.
func newResourceService(store *resourceStore) *resources {
	peers := peers.New(self, nil)
	peers.Update(&schema.Environment{Deployments: []schema.Deployment{
		{DeploymentID: self},
		{DeploymentID: sibling},
		{DeploymentID: other},
	}})
	return &resources{
		self: self, model: func() *schema.Model {
			return nil
		}, reader: store, writer: store, deleter: store, blocker: store,
		forward: &forwarder{self: self, peers: peers, log: zap.NewNop()}, log: zap.NewNop(),
	}
}

// databaseDouble is a deployment's knowledge of databases: met collects the compared ones.
type databaseDouble struct {
	database uuid.UUID
	met      []string
	stranger error
	meet     func(with schema.DeploymentID, database uuid.UUID) error
}

func (d *databaseDouble) Database() uuid.UUID { return d.database }

func (d *databaseDouble) DecommissionedBy(context.Context, schema.DeploymentID) error { return nil }

func (d *databaseDouble) Logger() *zap.Logger { return zap.NewNop() }

func (d *databaseDouble) CheckCaller(context.Context, schema.DeploymentID) error { return d.stranger }

func (d *databaseDouble) CheckDatabase(_ context.Context, with schema.DeploymentID, database uuid.UUID) error {
	d.met = append(d.met, with.String()+" "+database.String())
	if d.meet == nil {
		return nil
	}
	return d.meet(with, database)
}

// decommissionedDouble is the set of decommissioned deployments.
type decommissionedDouble map[schema.DeploymentID]bool

func (d decommissionedDouble) IsDecommissioned(id schema.DeploymentID) bool { return d[id] }

// streamDouble is the server's side of a stream: it keeps the sent messages, and returns one request.
type streamDouble struct {
	ctx     context.Context
	receive func(into any) error
	sent    []any
	failing error
}

func (s *streamDouble) Context() context.Context     { return s.ctx }
func (s *streamDouble) SetHeader(metadata.MD) error  { return nil }
func (s *streamDouble) SendHeader(metadata.MD) error { return nil }
func (s *streamDouble) SetTrailer(metadata.MD)       {}
func (s *streamDouble) RecvMsg(m any) error          { return s.receive(m) }

func (s *streamDouble) SendMsg(m any) error {
	if s.failing != nil {
		return s.failing
	}
	s.sent = append(s.sent, m)
	return nil
}

// serverStream is a streamDouble with the typed methods of a generated stream.
type serverStream[T any] struct{ *streamDouble }

func newServerStream[T any](ctx context.Context) *serverStream[T] {
	return &serverStream[T]{&streamDouble{ctx: ctx}}
}

func (s *serverStream[T]) Send(m *T) error { return s.SendMsg(m) }

func (s *serverStream[T]) messages(t testing.TB) (out []*T) {
	t.Helper()
	for _, m := range s.sent {
		if parts, ok := m.(interface{ Whole() proto.Message }); ok {
			m = parts.Whole()
		}
		typed, ok := m.(*T)
		require.True(t, ok, "%T", m)
		out = append(out, typed)
	}
	return out
}
