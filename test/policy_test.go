package test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/db-controller/db-controller/internal/identity"
)

// A second copy of the policy: a change of the policy has to be made here too. Callers are a user, an
// operator, a deployment, an application and the registry.
const whoMay = `
dbcontroller.resource.v1.ResourceService GetResource ListResources CreateResource UpdateResource PutResource DeleteResource BatchDeleteResources UndeleteResource WatchResources ListReferrers AcquireDelegations BatchGetResources BatchWriteResources MutateAndValidateResource PlanDeletion: user operator
dbcontroller.resource.v1.ResourceService SetBlockDeletion RemoveFinalizer UpdateResourceStatus: user operator
dbcontroller.admin.v1.AdminService Status Explain ListDeletions ListStuck: user operator
dbcontroller.admin.v1.AdminService Decommission Verify ListRemovals AcceptDatabase WaiveComparison Pause Resume Retry ListReleasable ForceRelease Purge: operator
dbcontroller.schema.v1.SchemaService EstablishReferences ResolveBlockades RecallDelegations PlanDeletion TraceCascades: deployment application
dbcontroller.schema.v1.SchemaService ConfirmBlockades ReleaseBlockades WatchImportedServiceDeletions AcknowledgeDeletions WatchResourceShadows CheckOwners DropOwners AnnounceEpoch GetEpoch ConfirmEpoch CheckReferences UpgradeOwnerReferences: deployment
dbcontroller.schema.v1.SchemaService ListResourceShadows ListBlockades: deployment operator
dbcontroller.registry.v1.RegistryService Apply Remove SetDeploymentVersion DecommissionDeployment AcceptDatabase ListRevisions: operator
dbcontroller.registry.v1.RegistryService GetEnvironment WatchEnvironment: user operator deployment registry
dbcontroller.registry.v1.RegistryService RegisterDeployment: deployment
grpc.health.v1.Health Check Watch List: user operator deployment registry
dbcontroller.authorization.v1.AuthorizationService Authorize Ranges: none
`

// methods are the methods of the generated code with their allowed callers.
func methods(t *testing.T) map[protoreflect.MethodDescriptor][]string {
	t.Helper()
	may := map[string][]string{}
	for line := range strings.Lines(strings.TrimSpace(whoMay)) {
		left, right, _ := strings.Cut(strings.TrimSpace(line), ": ")
		names := strings.Fields(left)
		for _, method := range names[1:] {
			may[names[0]+"."+method] = strings.Fields(right)
		}
	}
	out := map[protoreflect.MethodDescriptor][]string{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if pkg := string(f.Package()); !strings.HasPrefix(pkg, "dbcontroller.") && pkg != "grpc.health.v1" {
			return true
		}
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				m := f.Services().Get(i).Methods().Get(j)
				require.Contains(t, may, string(m.FullName()), "a method that is missing in this copy of the policy")
				out[m] = may[string(m.FullName())]
				delete(may, string(m.FullName()))
			}
		}
		return true
	})
	require.Empty(t, may, "methods that are none")
	return out
}

func callEmpty(ctx context.Context, conn grpc.ClientConnInterface, m protoreflect.MethodDescriptor) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	in, out := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, name, in, out)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return errors.Join(stream.CloseSend(), stream.RecvMsg(out))
}

// Each certificate at each listener calls each method of each service: allowed callers pass, others are
// refused, and a service that a listener lacks is unimplemented for all.
func TestCertificatesListenersAndMethods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user, err := f.Issue(identity.Identity{Role: identity.RoleUser, Name: "ann"})
	require.NoError(t, err)
	operator, err := f.Issue(identity.Identity{Role: identity.RoleOperator, Name: "eve"})
	require.NoError(t, err)
	ours, err := f.Issue(identity.Identity{Role: identity.RoleApplication, Name: "a.example.com/booking"})
	require.NoError(t, err)
	callers := map[string]struct{ role, certs string }{
		"an application": {"application", ours},
		"a user":         {"user", user}, "an operator": {"operator", operator},
		"the registry":                {"registry", f.RegistryCerts()},
		"a deployment of the service": {"deployment", f.Deployments[f.id(aEast+"x/y")].Certs},
		"another deployment":          {"deployment", f.Deployments[f.id(bEast+"x/y")].Certs},
		"the deployment itself":       {"deployment", f.Deployments[f.id(aWest+"x/y")].Certs},
	}
	listeners := map[string][]string{
		"a.example.com/us-west2": {
			"dbcontroller.resource.", "dbcontroller.admin.", "dbcontroller.schema.",
			"grpc.health.",
		},
		"registry": {"dbcontroller.registry.", "grpc.health."},
	}
	tried := 0
	for who, caller := range callers {
		for listener, has := range listeners {
			conn := f.at(caller.certs, listener)
			for m, may := range methods(t) {
				name, tried := who+" at "+listener+": "+string(m.FullName()), &tried
				*tried++
				err := callEmpty(t.Context(), conn, m)
				code := status.Code(err)
				// without a grant, as here
				if (m.Name() == "SetBlockDeletion" || m.Name() == "RemoveFinalizer") && caller.role == "user" &&
					has[0] == "dbcontroller.resource." {
					require.Equal(t, codes.PermissionDenied, code, "%s: %v", name, err)
				}
				switch {
				case !hasPrefix(string(m.FullName()), has):
					require.Equal(t, codes.Unimplemented, code, name)
				case strings.Contains(" "+strings.Join(may, " ")+" ", " "+caller.role+" "):
					require.NotEqual(t, codes.Unimplemented, code, "%s: %v", name, err)
					require.NotContains(t, status.Convert(err).Message(), "may not call", name)
					require.NotEqual(t, codes.Unauthenticated, code, "%s: %v", name, err)
				default:
					require.Equal(t, codes.PermissionDenied, code, "%s: %v", name, err)
					require.Contains(t, status.Convert(err).Message(), "may not call", name)
				}
			}
		}
	}
	require.Greater(t, tried, 400)
}

func hasPrefix(s string, any []string) bool {
	for _, p := range any {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// at connects to a listener of the fixture: a deployment's, or the registry's.
func (f *fixture) at(certs, listener string) *grpc.ClientConn {
	f.t.Helper()
	if listener != "registry" {
		return f.as(certs, listener)
	}
	credentials, err := identity.Load(identity.InDir(filepath.Clean(certs)))
	require.NoError(f.t, err)
	conn, err := grpc.NewClient(f.RegistryAddress,
		grpc.WithTransportCredentials(credentials.Client(identity.Identity{Role: identity.RoleRegistry})))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
