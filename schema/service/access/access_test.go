package access_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	authorizationv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/authorization/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/access"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

var (
	self  = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	other = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
)

// open are the rights of an environment in which users need no grants.
const open = "---\nrights: { default: allow }\n"

const declared = `
service: a.example.com
version: v1
kinds:
  - { kind: Thing, patterns: ["things/{thing}"] }
---
rights:
  default: deny
  grants:
    - { identity: user/ann, verbs: [read, write, delete], kind: a.example.com/Thing, name: things/ann-* }
    - { group: sre, verbs: [operate], name: things/ops }
    - { identity: user/ann, verbs: [refer], name: things/shared }
`

// environments is an environment that a test changes.
type environments struct {
	mu      sync.Mutex
	env     *schema.Environment
	changed chan struct{}
}

func (e *environments) Environment() *schema.Environment {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.env
}

func (e *environments) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

func (e *environments) set(t *testing.T, text string) {
	f, err := schema.ParseFile("f", strings.NewReader(text))
	require.NoError(t, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed != nil {
		close(e.changed)
	}
	e.changed = make(chan struct{})
	e.env = &schema.Environment{
		Services: f.Services, Rights: f.Rights,
		Deployments: []schema.Deployment{{DeploymentID: self, Version: "v1"}},
	}
}

func newAccess(t *testing.T, text string, change ...func(*access.Config)) (*access.Access, *environments) {
	t.Helper()
	e := &environments{}
	e.set(t, text)
	cfg := access.Config{Deployment: self, Environments: e, Logger: zap.NewNop()}
	for _, c := range change {
		c(&cfg)
	}
	return access.New(cfg), e
}

func as(t *testing.T, role identity.Role, name string, groups ...string) context.Context {
	return identity.NewCallerContext(t.Context(), identity.Caller{
		Identity: identity.Identity{Role: role, Name: name},
		Groups:   groups,
	})
}

func call(a *access.Access, ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
	return a.Unary(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, handler)
}

func fine(context.Context, any) (any, error) { return nil, nil }

func put(name string) *resourcev1.BatchWriteResourcesRequest_Write {
	return &resourcev1.BatchWriteResourcesRequest_Write{Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{
		Put: &resourcev1.Resource{Name: name},
	}}
}

func TestEachRequestNeedsItsRight(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, declared, func(c *access.Config) {
		c.FinalizerHolder = func(_ context.Context, _, finalizer string) (string, error) {
			return map[string]string{"badge": "user/ann"}[finalizer], nil
		}
	})
	ann, sre, operator := as(t, identity.RoleUser, "ann"), as(t, identity.RoleUser, "sam", "sre"),
		as(t, identity.RoleOperator, "olga")
	mine, theirs := "things/ann-1", "things/bob-1"
	for _, c := range []struct {
		ctx     context.Context
		method  string
		req     any
		allowed bool
	}{
		{ann, resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{Name: mine}, true},
		{
			ann, resourcev1.ResourceService_GetResource_FullMethodName,
			&resourcev1.GetResourceRequest{Name: "//a.example.com/us-west2/" + mine}, true,
		},
		{
			ann, resourcev1.ResourceService_GetResource_FullMethodName, &resourcev1.GetResourceRequest{Name: theirs},
			false,
		},
		{
			ann, resourcev1.ResourceService_GetResource_FullMethodName,
			&resourcev1.GetResourceRequest{Name: "//a.example.com/us-west2/" + theirs}, false,
		},
		{
			ann, resourcev1.ResourceService_BatchGetResources_FullMethodName,
			&resourcev1.BatchGetResourcesRequest{Names: []string{mine, theirs}}, false,
		},
		{
			ann, resourcev1.ResourceService_BatchGetResources_FullMethodName,
			&resourcev1.BatchGetResourcesRequest{Names: []string{mine, "//a.example.com/eastus2/" + theirs}}, true,
		},
		{
			ann, resourcev1.ResourceService_PutResource_FullMethodName,
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: mine}}, true,
		},
		{
			ann, resourcev1.ResourceService_PutResource_FullMethodName,
			&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: theirs}}, false,
		},
		{
			ann, resourcev1.ResourceService_BatchWriteResources_FullMethodName,
			&resourcev1.BatchWriteResourcesRequest{Writes: []*resourcev1.BatchWriteResourcesRequest_Write{
				put(mine),
				put(theirs),
			}}, false,
		},
		{
			ann, resourcev1.ResourceService_MutateAndValidateResource_FullMethodName,
			&resourcev1.MutateAndValidateResourceRequest{
				Write: put(mine),
				More:  []*resourcev1.BatchWriteResourcesRequest_Write{put(theirs)},
			}, false,
		},
		{
			ann, resourcev1.ResourceService_DeleteResource_FullMethodName, &resourcev1.DeleteResourceRequest{Name: mine},
			true,
		},
		{
			ann, resourcev1.ResourceService_DeleteResource_FullMethodName, &resourcev1.DeleteResourceRequest{Name: theirs},
			false,
		},
		{
			ann, resourcev1.ResourceService_PlanDeletion_FullMethodName, &resourcev1.PlanDeletionRequest{Name: theirs},
			false,
		},
		{
			ann, resourcev1.ResourceService_SetBlockDeletion_FullMethodName,
			&resourcev1.SetBlockDeletionRequest{Name: mine}, false,
		},
		{ann, resourcev1.ResourceService_DeleteResource_FullMethodName, &resourcev1.DeleteResourceRequest{
			Name: mine,
			Now:  true,
		}, false},
		{
			ann, resourcev1.ResourceService_BatchDeleteResources_FullMethodName,
			&resourcev1.BatchDeleteResourcesRequest{
				Now:      true,
				Requests: []*resourcev1.DeleteResourceRequest{{Name: mine}},
			}, false,
		},
		{
			ann, resourcev1.ResourceService_UndeleteResource_FullMethodName,
			&resourcev1.UndeleteResourceRequest{Name: mine}, true,
		},
		{
			ann, resourcev1.ResourceService_UndeleteResource_FullMethodName,
			&resourcev1.UndeleteResourceRequest{Name: "things/ops"}, false,
		},
		{
			sre, resourcev1.ResourceService_SetBlockDeletion_FullMethodName,
			&resourcev1.SetBlockDeletionRequest{Name: "things/ops"}, true,
		},
		{
			sre, resourcev1.ResourceService_SetBlockDeletion_FullMethodName,
			&resourcev1.SetBlockDeletionRequest{Name: mine}, false,
		},
		{
			operator, resourcev1.ResourceService_SetBlockDeletion_FullMethodName,
			&resourcev1.SetBlockDeletionRequest{Name: mine}, true,
		},
		{ann, resourcev1.ResourceService_RemoveFinalizer_FullMethodName, &resourcev1.RemoveFinalizerRequest{
			Name:      mine,
			Finalizer: "badge",
		}, true},
		{ann, resourcev1.ResourceService_RemoveFinalizer_FullMethodName, &resourcev1.RemoveFinalizerRequest{
			Name:      mine,
			Finalizer: "calendar",
		}, false},
		{
			ann, resourcev1.ResourceService_RemoveFinalizer_FullMethodName,
			&resourcev1.RemoveFinalizerRequest{Name: theirs, Finalizer: "badge"}, false,
		},
		{
			sre, resourcev1.ResourceService_RemoveFinalizer_FullMethodName,
			&resourcev1.RemoveFinalizerRequest{Name: "things/ops", Finalizer: "badge"}, true,
		},
		{sre, resourcev1.ResourceService_RemoveFinalizer_FullMethodName, &resourcev1.RemoveFinalizerRequest{
			Name:      mine,
			Finalizer: "badge",
		}, false},
		{
			operator, resourcev1.ResourceService_RemoveFinalizer_FullMethodName,
			&resourcev1.RemoveFinalizerRequest{Name: theirs, Finalizer: "gone"}, true,
		},
		{
			ann, resourcev1.ResourceService_UpdateResourceStatus_FullMethodName,
			&resourcev1.UpdateResourceStatusRequest{Name: mine}, true,
		},
		{
			ann, resourcev1.ResourceService_UpdateResourceStatus_FullMethodName,
			&resourcev1.UpdateResourceStatusRequest{Name: theirs}, false,
		},
		{operator, adminv1.AdminService_Decommission_FullMethodName, &adminv1.DecommissionRequest{}, true},
		{ann, adminv1.AdminService_Decommission_FullMethodName, &adminv1.DecommissionRequest{}, false},
		{ann, adminv1.AdminService_Explain_FullMethodName, &adminv1.ExplainRequest{Name: theirs}, false},
		{ann, resourcev1.ResourceService_ListResources_FullMethodName, &resourcev1.ListResourcesRequest{}, true},
	} {
		called := false
		_, err := call(a, c.ctx, c.method, c.req, func(context.Context, any) (any, error) {
			called = true
			return nil, nil
		})
		require.Equal(t, c.allowed, called, "%s %v", c.method, c.req)
		if !c.allowed {
			require.Equal(t, codes.PermissionDenied, status.Code(err), "%s %v", c.method, c.req)
		}
	}
	_, err := call(a, ann, resourcev1.ResourceService_DeleteResource_FullMethodName,
		&resourcev1.DeleteResourceRequest{Name: theirs}, fine)
	require.ErrorContains(t, err,
		"user/ann has no right to delete //a.example.com/us-west2/things/bob-1: ask an operator for a grant")
	_, err = call(a, t.Context(), resourcev1.ResourceService_GetResource_FullMethodName,
		&resourcev1.GetResourceRequest{Name: mine}, fine)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "a caller without identity")
}

// A process that has not adopted the running version does not know the holder of a finalizer: it allows and
// denies nothing by its own version. Many denials of one identity have the first ones in the audit, then one
// in ten seconds, and hide no denials of others; the next line of the identity says how many were left out.
func TestDenialsOfOneIdentityHideNoOthers(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	a, _ := newAccess(t, declared, func(c *access.Config) { c.Logger = zap.New(core) })
	synctest.Test(t, func(t *testing.T) {
		denied := func(name string) {
			_, err := call(a, as(t, identity.RoleUser, name), resourcev1.ResourceService_GetResource_FullMethodName,
				&resourcev1.GetResourceRequest{Name: "things/x"}, fine)
			require.Equal(t, codes.PermissionDenied, status.Code(err))
		}
		lines := func(name string) []observer.LoggedEntry {
			return logged.FilterField(zap.Stringer("identity", identity.Identity{Role: identity.RoleUser, Name: name})).
				All()
		}
		for range 1000 {
			denied("ann")
		}
		denied("ben")
		require.Len(t, lines("ann"), 10)
		require.Len(t, lines("ben"), 1)
		time.Sleep(10 * time.Second)
		denied("ann")
		denied("ann")
		require.Len(t, lines("ann"), 11)
		require.Equal(t, int64(990), lines("ann")[10].ContextMap()["left_out"])
		require.Equal(t, "audit", lines("ben")[0].LoggerName)
	})
}

func TestAnOlderVersionNamesNoHolder(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, declared, func(c *access.Config) {
		c.FinalizerHolder = func(context.Context, string, string) (string, error) { return "user/ann", peer.ErrAborted }
	})
	remove := func(who context.Context, name string) error {
		_, err := call(a, who, resourcev1.ResourceService_RemoveFinalizer_FullMethodName,
			&resourcev1.RemoveFinalizerRequest{Name: name, Finalizer: "badge"}, fine)
		return err
	}
	for _, who := range []context.Context{as(t, identity.RoleUser, "ann"), as(t, identity.RoleUser, "sam", "sre")} {
		require.Equal(t, codes.Aborted, status.Code(remove(who, "things/ops")),
			"another try, or another process, answers")
	}
	require.NoError(t, remove(as(t, identity.RoleOperator, "olga"), "things/ann-1"),
		"the right of operators is in no version")
}

func TestAListIsLimitedToTheNamesThatItsCallerMayRead(t *testing.T) {
	t.Parallel()
	a, e := newAccess(t, declared)
	names := func() (out grant.Within) {
		_, err := call(a, as(t, identity.RoleUser, "ann"), resourcev1.ResourceService_ListResources_FullMethodName,
			&resourcev1.ListResourcesRequest{},
			func(ctx context.Context, _ any) (any, error) { out = access.Names(ctx); return nil, nil })
		require.NoError(t, err)
		return out
	}
	require.Equal(t, []grant.NameRange{{From: "things/ann-", Below: "things/ann."}}, names().Of("Thing"))
	require.Empty(t, names().Of("Other"))
	e.set(t, "rights: { default: allow, grants: [{ group: a, verbs: [read] }] }")
	require.Nil(t, names(), "a changed declaration is in force at once")
}

func TestAnswersAndErrorsHideNames(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, declared)
	ctx := as(t, identity.RoleUser, "ann")
	blocked := &peer.BlockedError{Name: "things/ann-1", Deployment: self}
	for _, name := range []string{"things/ann-2", "things/secret"} {
		blocked.Add(peer.Holder{
			Name: schema.FullName{Deployment: self, Name: name}, Path: "to",
			Target: schema.FullName{Deployment: self, Name: "things/ann-1"},
		})
	}
	_, err := call(a, ctx, resourcev1.ResourceService_DeleteResource_FullMethodName,
		&resourcev1.DeleteResourceRequest{Name: "things/ann-1"},
		func(context.Context, any) (any, error) { return nil, outcome.Status(zap.NewNop(), blocked) })
	st := status.Convert(err)
	require.Equal(t, codes.FailedPrecondition, st.Code())
	require.Contains(t, st.Message(), "things/ann-2")
	require.Contains(t, st.Message(), "a resource that you may not read (to)")
	require.NotContains(t, st.Proto().String(), "secret")
	require.Contains(t, st.Proto().String(), `hidden`)

	answer := &adminv1.ExplainResponse{
		Name: "//a.example.com/us-west2/things/ann-1",
		Reasons: []*adminv1.ExplainResponse_Reason{
			{Message: "//a.example.com/us-west2/things/secret, and //a.example.com/us-west2/things/ann-3; wait"},
		},
	}
	_, err = call(a, ctx, adminv1.AdminService_Explain_FullMethodName, &adminv1.ExplainRequest{Name: "things/ann-1"},
		func(context.Context, any) (any, error) {
			return answer, nil
		})
	require.NoError(t, err)
	require.Equal(t, "//a.example.com/us-west2/things/ann-1", answer.GetName())
	require.Equal(t, "a resource that you may not read, and //a.example.com/us-west2/things/ann-3; wait",
		answer.GetReasons()[0].GetMessage())

	plan := &resourcev1.PlanDeletionResponse{Groups: []*resourcev1.PlanDeletionResponse_Group{
		{Count: 2, Samples: []string{
			"//a.example.com/us-west2/things/secret",
			"//a.example.com/us-west2/things/ann-3",
		}},
	}}
	_, err = call(a, ctx, resourcev1.ResourceService_PlanDeletion_FullMethodName,
		&resourcev1.PlanDeletionRequest{Name: "things/ann-1"}, func(context.Context, any) (any, error) {
			return plan, nil
		})
	require.NoError(t, err)
	require.Equal(t, []string{"//a.example.com/us-west2/things/ann-3"}, plan.GetGroups()[0].GetSamples())
	require.EqualValues(t, 2, plan.GetGroups()[0].GetCount())
}

// The state of a deployment tells nothing of resources that the caller may not read: no uid, kind, id of a
// deletion, holder, or address.
func TestTheStateOfADeploymentTellsNothingOfHiddenResources(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t, declared)
	ann := as(t, identity.RoleUser, "ann")
	const seen, hidden = "//a.example.com/us-west2/things/ann-1", "//a.example.com/us-west2/things/secret"
	deletions := func() []*adminv1.Deletion {
		return []*adminv1.Deletion{{Id: "id-secret", Root: hidden, Found: 3}, {Id: "id-seen", Root: seen, Found: 2}}
	}
	stuck := func(name string) *adminv1.ListStuckResponse_Resource {
		return &adminv1.ListStuckResponse_Resource{
			Name: name, Kind: "Kind" + name[len(name)-3:],
			Uid: "uid-" + name[len(name)-3:], Reasons: []string{"waits for finalizer f of user/" + name[len(name)-3:]},
		}
	}
	answers := map[string]proto.Message{
		adminv1.AdminService_Status_FullMethodName: &adminv1.StatusResponse{
			Deployment: "a.example.com/us-west2", Deletions: deletions(), DeletionsTotal: 2,
			Failures: []*adminv1.Failure{{Error: "secret at 10.0.0.1:5432"}},
			NotReady: []*adminv1.StatusResponse_NotReady{{
				Check:  "postgres",
				Reason: "dial tcp 10.0.0.1:5432: secret",
			}},
			Kept: []*adminv1.StatusResponse_Kept{
				{Kind: "KindOfSecret", Resources: 2, Sample: "things/secret"},
				{Kind: "Thing", Sample: "things/ann-2"},
			},
			Derivations: []*adminv1.StatusResponse_Derivation{{Kind: "Secret", Total: 5}, {Kind: "Thing", Total: 5}},
		},
		adminv1.AdminService_ListStuck_FullMethodName: &adminv1.ListStuckResponse{
			Resources: []*adminv1.ListStuckResponse_Resource{stuck(hidden), stuck(seen)}, TotalSize: 2,
			Work: []*adminv1.ListStuckResponse_Work{{Group: "g", Count: 1, LastError: "secret at 10.0.0.1:5432"}},
		},
		adminv1.AdminService_ListDeletions_FullMethodName: &adminv1.ListDeletionsResponse{
			Deletions: deletions(),
			TotalSize: 2,
		},
		// Of a resource that the caller may read: the last failure is of its deployment, perhaps about
		// another resource, and the root of its deletion is hidden.
		adminv1.AdminService_Explain_FullMethodName: &adminv1.ExplainResponse{
			Name: seen, Uid: "uid-n-1",
			Reasons: []*adminv1.ExplainResponse_Reason{{
				Type: "release", Message: "waits for b.example.com/eastus2",
				LastError: "secret at 10.0.0.1:5432",
			}}, Deletion: deletions()[0],
		},
	}
	methods := adminv1.File_dbcontroller_admin_v1_admin_proto.Services().ByName("AdminService").Methods()
	for i := range methods.Len() {
		method := fmt.Sprintf("/%s/%s", methods.Get(i).Parent().FullName(), methods.Get(i).Name())
		if access.Covers(method) {
			require.Contains(t, answers, method, "what does it tell of resources that the caller may not read?")
		}
	}
	for method, answer := range answers {
		var req any
		if method == adminv1.AdminService_Explain_FullMethodName {
			req = &adminv1.ExplainRequest{Name: "things/ann-1"}
		}
		out, err := call(a, ann, method, req, func(context.Context, any) (any, error) { return answer, nil })
		require.NoError(t, err)
		text := prototext.Format(out.(proto.Message))
		require.NotContains(t, strings.ToLower(strings.ReplaceAll(text, "a resource that you may not read", "")),
			"secret", method)
		require.NotContains(t, text, "ret\"", "%s: the uid, kind or holder of the secret", method)
		require.NotContains(t, text, "10.0.0.1", method)
		require.NotRegexp(t, "total_size|deletions_total", text, "%s: how many are hidden", method)
		if strings.Contains(method, "ListStuck") || strings.Contains(method, "Explain") {
			require.Contains(t, text, "uid-n-1")
		} else {
			require.Contains(t, text, "id-seen", method)
		}
	}
}

// A caller who may write, delete or operate on a resource, and not read it, gets no contents by the answer of
// any method: name, uid, revision and state.
func TestWithoutTheRightToReadAnswersHaveNoContents(t *testing.T) {
	t.Parallel()
	a, _ := newAccess(t,
		declared+"    - { identity: user/eve, verbs: [write, delete, operate], name: things/secret }\n")
	eve := as(t, identity.RoleUser, "eve")
	body, err := structpb.NewStruct(map[string]any{"key": "value"})
	require.NoError(t, err)
	stored := func() *resourcev1.Resource {
		return &resourcev1.Resource{
			Name: "things/secret", Kind: "Thing", Uid: "u", Revision: 3, Generation: 2,
			State: resourcev1.Resource_STATE_DELETING, Labels: map[string]string{"a": "b"}, Body: body, Status: body,
			OwnerReferences: []*resourcev1.OwnerReference{{Name: "things/owner"}}, Finalizers: []string{"f"},
			Conditions: []*resourcev1.Condition{{Message: "m"}}, BlockDeletion: true,
		}
	}
	left := &resourcev1.Resource{
		Name: "things/secret", Kind: "Thing", Uid: "u", Revision: 3,
		State: resourcev1.Resource_STATE_DELETING,
	}
	const name = "things/secret"
	in := &resourcev1.Resource{Name: name}
	requests := map[string]any{
		resourcev1.ResourceService_CreateResource_FullMethodName: &resourcev1.CreateResourceRequest{
			Resource: in,
		},
		resourcev1.ResourceService_UpdateResource_FullMethodName: &resourcev1.UpdateResourceRequest{
			Resource: in,
		},
		resourcev1.ResourceService_PutResource_FullMethodName: &resourcev1.PutResourceRequest{
			Resource: in,
		},
		resourcev1.ResourceService_BatchWriteResources_FullMethodName: &resourcev1.BatchWriteResourcesRequest{
			Writes: []*resourcev1.BatchWriteResourcesRequest_Write{put(name)},
		},
		resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: &resourcev1.MutateAndValidateResourceRequest{Write: put(name)},
		resourcev1.ResourceService_SetBlockDeletion_FullMethodName: &resourcev1.SetBlockDeletionRequest{
			Name: name,
		},
		resourcev1.ResourceService_RemoveFinalizer_FullMethodName: &resourcev1.RemoveFinalizerRequest{
			Name: name,
		},
		resourcev1.ResourceService_UndeleteResource_FullMethodName: &resourcev1.UndeleteResourceRequest{
			Name: name,
		},
		resourcev1.ResourceService_UpdateResourceStatus_FullMethodName: &resourcev1.UpdateResourceStatusRequest{
			Name: name,
		},
		resourcev1.ResourceService_DeleteResource_FullMethodName: &resourcev1.DeleteResourceRequest{
			Name: name,
		},
		resourcev1.ResourceService_BatchDeleteResources_FullMethodName: &resourcev1.BatchDeleteResourcesRequest{
			Requests: []*resourcev1.DeleteResourceRequest{{Name: name}},
		},
	}
	reading := []string{ // with read alone
		resourcev1.ResourceService_GetResource_FullMethodName,
		resourcev1.ResourceService_BatchGetResources_FullMethodName,
		resourcev1.ResourceService_ListResources_FullMethodName,
	}
	answer := (&resourcev1.Resource{}).ProtoReflect().Descriptor()
	methods := resourcev1.File_dbcontroller_resource_v1_resource_proto.Services().ByName("ResourceService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
		if m.IsStreamingServer() || slices.Contains(reading, full) || !has(m.Output(), answer) {
			continue
		}
		require.Contains(t, requests, full, "what does its answer tell a caller without the right to read?")
		out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
		require.NoError(t, err)
		msg := out.New()
		found := fill(msg, answer, stored)
		_, err = call(a, eve, full, requests[full], func(context.Context, any) (any, error) {
			return msg.Interface(), nil
		})
		require.NoError(t, err, full)
		for _, r := range found() {
			require.True(t, proto.Equal(left, r), "%s: %s", full, r)
		}
	}
}

// has reports whether a message is, or contains, one of another type.
func has(m, of protoreflect.MessageDescriptor) bool {
	if m.FullName() == of.FullName() {
		return true
	}
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); f.Message() != nil && !f.IsMap() && f.Message().FullName() != m.FullName() &&
			has(f.Message(), of) {
			return true
		}
	}
	return false
}

// fill sets the resources in an answer, and returns them when they are asked for.
func fill(m protoreflect.Message, of protoreflect.MessageDescriptor,
	stored func() *resourcev1.Resource,
) func() []*resourcev1.Resource {
	if r, ok := m.Interface().(*resourcev1.Resource); ok {
		proto.Merge(r, stored())
		return func() []*resourcev1.Resource { return []*resourcev1.Resource{r} }
	}
	var all []func() []*resourcev1.Resource
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case f.Message() == nil || f.IsMap() || !has(f.Message(), of):
		case f.IsList():
			all = append(all, fill(m.Mutable(f).List().AppendMutable().Message(), of, stored))
		default:
			all = append(all, fill(m.Mutable(f).Message(), of, stored))
		}
	}
	return func() (out []*resourcev1.Resource) {
		for _, one := range all {
			out = append(out, one()...)
		}
		return out
	}
}

// Errors of handlers, and samples, have names without their deployment.
func TestStatusHidesNames(t *testing.T) {
	t.Parallel()
	a, e := newAccess(t, declared)
	const text = "things/secret: to: //a.example.com/us-west2/things/ann-1 is being deleted"
	answers := func(who context.Context) (string, []*adminv1.StatusResponse_Kept) {
		status := &adminv1.StatusResponse{
			Failures: []*adminv1.Failure{{Handler: "owned_pending", Error: text}},
			Kept: []*adminv1.StatusResponse_Kept{
				{Kind: "Thing", Resources: 2, Sample: "things/secret"},
				{Kind: "Thing", Resources: 1, Sample: "things/ann-3"},
			},
		}
		stuck := &adminv1.ListStuckResponse{Work: []*adminv1.ListStuckResponse_Work{{
			Group: "owned_pending", Count: 3,
			LastError: text,
		}, {Group: "owned_deleting"}}}
		_, err := call(a, who, adminv1.AdminService_Status_FullMethodName, &adminv1.StatusRequest{},
			func(context.Context, any) (any, error) {
				return status, nil
			})
		require.NoError(t, err)
		_, err = call(a, who, adminv1.AdminService_ListStuck_FullMethodName, &adminv1.ListStuckRequest{},
			func(context.Context, any) (any, error) {
				return stuck, nil
			})
		require.NoError(t, err)
		require.Empty(t, stuck.GetWork()[1].GetLastError())
		return status.GetFailures()[0].GetError() + stuck.GetWork()[0].GetLastError(), status.GetKept()
	}
	ann, operator := as(t, identity.RoleUser, "ann"), as(t, identity.RoleOperator, "olga")
	errors, kept := answers(ann)
	require.NotContains(t, errors, "secret")
	require.Contains(t, errors, "not shown")
	require.Equal(t, "a resource that you may not read", kept[0].GetSample())
	require.EqualValues(t, 2, kept[0].GetResources())
	require.Equal(t, "things/ann-3", kept[1].GetSample())
	errors, kept = answers(operator)
	require.Equal(t, text+text, errors)
	require.Equal(t, "things/secret", kept[0].GetSample())
	e.set(t, "rights: { default: allow, grants: [{ group: a, verbs: [read] }] }")
	errors, _ = answers(ann)
	require.Equal(t, text+text, errors, "who may read everything here")
}

// stream is the stream of a watch.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

func TestAWatchEndsWhenTheRightsOfItsCallerChange(t *testing.T) {
	t.Parallel()
	a, e := newAccess(t, declared)
	begun, ended := make(chan grant.Within), make(chan error)
	go func() {
		ended <- a.Stream(nil, stream{ctx: as(t, identity.RoleUser, "ann")},
			&grpc.StreamServerInfo{FullMethod: resourcev1.ResourceService_WatchResources_FullMethodName},
			func(_ any, s grpc.ServerStream) error {
				begun <- access.Names(s.Context())
				<-s.Context().Done()
				return s.Context().Err()
			})
	}()
	require.NotEmpty(t, (<-begun).Of("Thing"))
	e.set(t, strings.ReplaceAll(declared, "things/ops", "things/others")) // concerns others only
	select {
	case err := <-ended:
		t.Fatal("the watch ended:", err)
	default:
	}
	e.set(t, strings.ReplaceAll(declared, "things/ann-*", "things/x"))
	err := <-ended
	require.Equal(t, codes.OutOfRange, status.Code(err))
	require.ErrorContains(t, err, "the rights of the caller have changed")
}

func establish(person *schemav1.EstablishReferencesRequest_Person, uid []byte,
	names ...string,
) *schemav1.EstablishReferencesRequest_Attempt {
	req := &schemav1.EstablishReferencesRequest_Attempt{Person: person}
	for _, n := range names {
		req.References = append(req.References, &schemav1.EstablishReferencesRequest_Reference{
			Holder: &schemav1.ResourceRef{Name: "hs/h"}, Path: "to", Target: &schemav1.ResourceRef{Name: n, Uid: uid},
		})
	}
	return req
}

// tokens knows one token.
type tokens struct {
	required bool
	denied   string
}

func (tokens) Verify(_ context.Context, token string) (identity.Caller, error) {
	if token != "of ann" {
		return identity.Caller{}, errors.New("a wrong token")
	}
	return identity.Caller{Identity: identity.Identity{Role: identity.RoleUser, Name: "ann"}, Token: token}, nil
}

func (t tokens) RequireForwarded() bool { return t.required }

func (t tokens) Denied(who identity.Identity) error {
	if t.denied == who.String() {
		return errors.New("denied")
	}
	return nil
}

// refusal is the error that the handler of one attempt reads.
func refusal(t *testing.T, a *access.Access, by context.Context,
	attempt *schemav1.EstablishReferencesRequest_Attempt,
) (refused error) {
	t.Helper()
	req := &schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{attempt}}
	_, err := call(a, by, schemav1.SchemaService_EstablishReferences_FullMethodName, req,
		func(ctx context.Context, _ any) (any, error) {
			refused = access.Refused(ctx, 0)
			return fine(ctx, nil)
		})
	require.NoError(t, err)
	return refused
}

func TestTheRightToReferIsThatOfThePersonWhoWrites(t *testing.T) {
	t.Parallel()
	peers := identity.NewContext(t.Context(), identity.Deployment(other))
	ann, bob := &schemav1.EstablishReferencesRequest_Person{Identity: "user/ann"},
		&schemav1.EstablishReferencesRequest_Person{Identity: "user/bob"}
	proved := &schemav1.EstablishReferencesRequest_Person{Identity: "user/ann", Token: "of ann"}
	uid := uuid.New()
	for _, c := range []struct {
		tokens  access.Tokens
		attempt *schemav1.EstablishReferencesRequest_Attempt
		allowed bool
	}{
		{nil, establish(ann, nil, "things/shared"), true},
		{nil, establish(ann, nil, "things/shared", "things/other"), false},
		{nil, establish(ann, uid[:], "things/other"), false},
		{nil, establish(bob, nil, "things/shared"), false},
		// no deployment speaks for operators
		{
			nil, establish(&schemav1.EstablishReferencesRequest_Person{Identity: "operator/olga"}, nil, "things/shared"),
			false,
		},
		// the deployment itself has no grant
		{nil, establish(nil, nil, "things/shared"), false},
		// established before
		{nil, establish(nil, uid[:], "things/other"), true},
		{tokens{}, establish(proved, nil, "things/shared"), true},
		{tokens{}, establish(&schemav1.EstablishReferencesRequest_Person{Identity: "user/bob", Token: "of ann"}, nil,
			"things/shared"), false},
		{tokens{}, establish(&schemav1.EstablishReferencesRequest_Person{Identity: "user/ann", Token: "forged"}, nil,
			"things/shared"), false},
		{tokens{}, establish(ann, nil, "things/shared"), true}, // by the word of the deployment
		{tokens{denied: "user/ann"}, establish(ann, nil, "things/shared"), false},
		{tokens{required: true}, establish(ann, nil, "things/shared"), false},
		{tokens{required: true}, establish(proved, nil, "things/shared"), true},
	} {
		a, _ := newAccess(t, declared, func(cfg *access.Config) { cfg.Tokens = c.tokens })
		err := refusal(t, a, peers, c.attempt)
		if c.allowed {
			require.NoError(t, err, "%v", c.attempt)
		} else {
			require.Equal(t, codes.PermissionDenied, status.Code(outcome.Status(nil, err)), "%v", c.attempt)
		}
	}
	a, _ := newAccess(t, declared)
	var refused *peer.RefusedError
	require.ErrorAs(t, refusal(t, a, peers, establish(ann, nil, "things/shared", "things/other")), &refused)
	require.Len(t, refused.Refusals, 1)
	require.Equal(t, peer.ReferDenied, refused.Refusals[0].Reason)
}

// Of several attempts in a call, each needs the right of its writer. An authorization service decides about
// each attempt in its time, so such attempts do not share calls.
func TestTheRightToReferIsThatOfEachAttempt(t *testing.T) {
	t.Parallel()
	peers := identity.NewContext(t.Context(), identity.Deployment(other))
	ann, bob := &schemav1.EstablishReferencesRequest_Person{Identity: "user/ann"},
		&schemav1.EstablishReferencesRequest_Person{Identity: "user/bob"}
	req := &schemav1.EstablishReferencesRequest{Attempts: []*schemav1.EstablishReferencesRequest_Attempt{
		establish(bob, nil, "things/shared"), establish(ann, nil, "things/shared"), establish(ann, nil, "things/other"),
		{},
	}}
	a, _ := newAccess(t, declared)
	handled := false
	_, err := call(a, peers, schemav1.SchemaService_EstablishReferences_FullMethodName, req,
		func(ctx context.Context, _ any) (any, error) {
			handled = true
			for i, allowed := range []bool{false, true, false, true} {
				require.Equal(t, allowed, access.Refused(ctx, i) == nil, i)
			}
			return fine(ctx, nil)
		})
	require.NoError(t, err)
	require.True(t, handled)
	require.NoError(t, access.Refused(t.Context(), 7), "a call of the process itself")
	a, _ = newAccess(t, declared, func(cfg *access.Config) { cfg.Outside = never{} })
	_, err = call(a, peers, schemav1.SchemaService_EstablishReferences_FullMethodName, req, fine)
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// never is an authorization service that must not be asked.
type never struct{ access.Authorizer }

// authorizer is an authorization service: names that end in 1 are denied; of subject user/slow it decides
// nothing.
type authorizer struct {
	authorizationv1.UnimplementedAuthorizationServiceServer
}

func (authorizer) Authorize(ctx context.Context,
	req *authorizationv1.AuthorizeRequest,
) (*authorizationv1.AuthorizeResponse, error) {
	if req.GetSubject().GetIdentity() == "user/slow" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := &authorizationv1.AuthorizeResponse{}
	for _, n := range req.GetNames() {
		out.Allowed = append(out.Allowed, !strings.HasSuffix(n, "1"))
	}
	return out, nil
}

func (authorizer) Ranges(_ context.Context,
	req *authorizationv1.RangesRequest,
) (*authorizationv1.RangesResponse, error) {
	if req.GetKind() != "a.example.com/Thing" || req.GetDeployment() != self.String() {
		return nil, status.Error(codes.InvalidArgument, "another kind")
	}
	return &authorizationv1.RangesResponse{Names: []string{"things/ann-2*", "things/zoe"}}, nil
}

func TestAnAuthorizationServiceIsAskedBesideTheGrants(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	authorizationv1.RegisterAuthorizationServiceServer(server, authorizer{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	a, e := newAccess(t, declared, func(cfg *access.Config) { cfg.Outside = access.Outside(conn) })
	read := func(who string, name string) codes.Code {
		_, err := call(a, as(t, identity.RoleUser, who), resourcev1.ResourceService_GetResource_FullMethodName,
			&resourcev1.GetResourceRequest{Name: name}, fine)
		return status.Code(err)
	}
	require.Equal(t, codes.PermissionDenied, read("ann", "things/ann-1"), "denied outside")
	require.Equal(t, codes.OK, read("ann", "things/ann-2"))
	require.Equal(t, codes.PermissionDenied, read("ann", "things/bob-2"),
		"the service allows nothing that the grants deny")
	within, err := a.Within(t.Context(), identity.Caller{Identity: identity.Identity{
		Role: identity.RoleUser,
		Name: "ann",
	}})
	require.NoError(t, err)
	require.Equal(t, []grant.NameRange{{From: "things/ann-2", Below: "things/ann-3"}}, within.Of("Thing"))
	require.False(t, slices.Contains(within.Of("Other"), grant.AllNames))

	e.set(t, strings.Split(declared, "---")[0]+open)
	require.Equal(t, codes.Unavailable, read("slow", "things/a"), "silence denies")
	server.Stop()
	require.Equal(t, codes.Unavailable, read("ann", "things/ann-2"))
}

// counted is an authorization service that allows names without "secret", and counts its questions.
type counted struct {
	mu              sync.Mutex
	questions, asks int // guarded by mu
	ranges          []grant.NameRange
}

func (c *counted) Authorize(_ context.Context, _ grant.Subject, _ schema.Verb,
	names []schema.FullName,
) ([]bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.questions++
	out := make([]bool, len(names))
	for i, n := range names {
		out[i] = !strings.Contains(n.Name, "secret")
	}
	return out, nil
}

func (c *counted) Ranges(context.Context, grant.Subject, schema.Verb, schema.DeploymentID,
	string,
) ([]grant.NameRange, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks++
	return c.ranges, nil
}

func (c *counted) allow(ranges ...grant.NameRange) (asks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = ranges
	return c.asks
}

// An answer with many names is one question to the authorization service, besides that about the request.
func TestNamesOfAnAnswerAreOneQuestion_I20(t *testing.T) {
	t.Parallel()
	c := &counted{}
	a, _ := newAccess(t, strings.Split(declared, "---")[0]+open, func(cfg *access.Config) { cfg.Outside = c })
	answer := &adminv1.ExplainResponse{Name: "//a.example.com/us-west2/things/a"}
	for i := range 300 {
		answer.Reasons = append(answer.Reasons,
			&adminv1.ExplainResponse_Reason{
				Message: fmt.Sprintf(
					"//a.example.com/us-west2/things/secret-%d and //a.example.com/us-west2/things/t-%d wait", i, i),
			})
	}
	_, err := call(a, as(t, identity.RoleUser, "ann"), adminv1.AdminService_Explain_FullMethodName,
		&adminv1.ExplainRequest{Name: "things/a"}, func(context.Context, any) (any, error) {
			return answer, nil
		})
	require.NoError(t, err)
	require.Equal(t, 2, c.questions)
	for i, r := range answer.GetReasons() {
		require.Equal(t, fmt.Sprintf("a resource that you may not read and //a.example.com/us-west2/things/t-%d wait",
			i), r.GetMessage())
	}
}

// An environment that changes every second, as by a deployment that registers without end, asks the
// authorization service now and then; a change of its answer ends the watch all the same.
func TestWatchesAskTheAuthorizationServiceNowAndThen_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counted{}
		a, e := newAccess(t, strings.Split(declared, "---")[0]+open, func(cfg *access.Config) { cfg.Outside = c })
		c.allow(grant.AllNames)
		ended := make(chan error, 1)
		go func() {
			ended <- a.Stream(nil, stream{ctx: as(t, identity.RoleUser, "ann")},
				&grpc.StreamServerInfo{FullMethod: resourcev1.ResourceService_WatchResources_FullMethodName},
				func(_ any, s grpc.ServerStream) error { <-s.Context().Done(); return s.Context().Err() })
		}()
		synctest.Wait()
		began := c.allow(grant.AllNames)
		for range 120 {
			e.set(t, strings.Split(declared, "---")[0]+open)
			time.Sleep(time.Second)
		}
		synctest.Wait() // a question of this moment has its answer before that changes
		require.LessOrEqual(t, c.allow(), began+4*began, "for two minutes")
		require.Empty(t, ended)
		e.set(t, strings.Split(declared, "---")[0]+open)
		time.Sleep(time.Minute)
		require.Equal(t, codes.OutOfRange, status.Code(<-ended))
	})
}

// The right to refer to a resource elsewhere is known here as far as the grants go: for an operator as for
// the user of that name.
func TestGrantsOfResourcesElsewhereAreKnown(t *testing.T) {
	t.Parallel()
	// which is not asked
	a, _ := newAccess(t, declared, func(c *access.Config) { c.Deployment, c.Outside = other, access.Outside(nil) })
	names := []schema.FullName{{Deployment: self, Name: "things/shared"}, {Deployment: self, Name: "things/ann-1"}}
	for _, c := range []struct {
		role identity.Role
		who  string
		want []bool
	}{
		{identity.RoleUser, "ann", []bool{true, false}},
		{identity.RoleUser, "bob", []bool{false, false}},
		{identity.RoleOperator, "bob", []bool{false, false}},
	} {
		method := resourcev1.ResourceService_ListResources_FullMethodName
		_, err := call(a, as(t, c.role, c.who), method, &resourcev1.SetBlockDeletionRequest{},
			func(ctx context.Context, _ any) (any, error) {
				allowed, err := peer.PersonFrom(ctx).Refer(ctx, names)
				require.NoError(t, err)
				require.Equal(t, c.want, allowed, c.who)
				return nil, nil
			})
		require.NoError(t, err)
	}
}
