package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A plan counts the resources that the deletion takes along and the caller may not delete; where the rights
// say so, each deleting method denies the delete.
func TestACascadeNeedsDeleteWhereTheRightsSaySo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	g.declare(writers)
	root, eve := g.as(issuer.File("root", "db", time.Hour)), g.as(issuer.File("eve", "db", time.Hour))
	put := func(r *resourcev1.PutResourceRequest) {
		_, err := root.PutResource(ctx, r)
		require.NoError(t, err)
	}
	methods := map[string]func(name string) error{
		"delete": func(name string) error {
			_, err := eve.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: name})
			return err
		},
		"batch": func(name string) error {
			_, err := eve.BatchDeleteResources(ctx,
				&resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{{Name: name}}})
			return err
		},
	}
	for method, remove := range methods {
		put(target("eve-p-" + method))
		put(target("eve-own-"+method, "targets/eve-p-"+method))
		put(target("secret-"+method, "targets/eve-p-"+method))
		g.declare(strings.Replace(writers, "default: deny", "default: deny\n  cascade_needs_delete: true", 1))
		plan, err := eve.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: "targets/eve-p-" + method})
		require.NoError(t, err)
		var denied int64
		for _, group := range plan.GetGroups() {
			denied += group.GetDenied()
		}
		require.EqualValues(t, 1, denied, "secret, and not eve-own")
		err = remove("targets/eve-p-" + method)
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", method, err)
		require.ErrorContains(t, err, "takes along what the caller has no right to delete", method)
		require.NotContains(t, err.Error(), "secret", "its name is hidden")
		_, err = root.GetResource(ctx, &resourcev1.GetResourceRequest{Name: "targets/secret-" + method})
		require.NoError(t, err)
		_, err = eve.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/eve-own-" + method})
		require.NoError(t, err, "which takes nothing along")
		_, err = eve.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/eve-none"})
		require.Equal(t, codes.NotFound, status.Code(err))

		g.declare(writers)
		require.NoError(t, remove("targets/eve-p-"+method), "%s: by default the right to the root is enough", method)
	}
	put(target("root-p"))
	put(target("x", "targets/root-p"))
	g.declare(strings.Replace(writers, "default: deny", "default: deny\n  cascade_needs_delete: true", 1))
	_, err := root.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/root-p"})
	require.NoError(t, err, "who may delete all of it")
}

// Where a cascade needs delete, a missing resource does not excuse the others of a batch, and no writer makes
// a resource go with another one if it takes resources along that the writer may not delete.
func TestACascadeNeedsDeleteByEachWay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	g.declare(strings.Replace(writers, "default: deny", "default: deny\n  cascade_needs_delete: true", 1))
	root, eve := g.as(issuer.File("root", "db", time.Hour)), g.as(issuer.File("eve", "db", time.Hour))
	for _, r := range []*resourcev1.PutResourceRequest{
		target("eve-p"), target("secret", "targets/eve-p"), target("eve-own"), target("secret-2", "targets/eve-own"),
		target("eve-m"), target("eve-alone"),
	} {
		_, err := root.PutResource(ctx, r)
		require.NoError(t, err)
	}
	_, err := eve.BatchDeleteResources(ctx,
		&resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{{
			Name:         "targets/eve-none",
			AllowMissing: true,
		}, {Name: "targets/eve-p"}}})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = eve.PutResource(ctx, target("eve-own", "targets/eve-m"))
	require.Equal(t, codes.PermissionDenied, status.Code(err),
		"secret-2 would go with eve-own, and eve-own with eve-m: %v", err)
	_, err = eve.PutResource(ctx, owned("eve-own", "eve-m"))
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = eve.PutResource(ctx, target("eve-alone", "targets/eve-m"))
	require.NoError(t, err, "which takes nothing along")
	_, err = eve.BatchDeleteResources(ctx,
		&resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{{
			Name:         "targets/eve-none",
			AllowMissing: true,
		}, {Name: "targets/eve-m"}}})
	require.NoError(t, err)
}

// A delete that removes more resources than its request allows, or than the rights allow where the request
// has no number, changes nothing.
func TestADeleteRemovesNoMoreThanItsLimit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	issuer := harness.NewIssuer(t)
	g := newGuarded(t, issuer)
	limited := strings.Replace(writers, "default: deny", "default: deny\n  max_removals: 3", 1)
	g.declare(writers)
	root := g.as(issuer.File("root", "db", time.Hour))
	methods := map[string]func(most int64, names ...string) error{
		"delete": func(most int64, names ...string) error {
			_, err := root.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: names[0], MaxRemovals: most})
			return err
		},
		"batch": func(most int64, names ...string) error {
			req := &resourcev1.BatchDeleteResourcesRequest{MaxRemovals: most}
			for _, name := range names {
				req.Requests = append(req.Requests, &resourcev1.DeleteResourceRequest{Name: name, AllowMissing: true})
			}
			_, err := root.BatchDeleteResources(ctx, req)
			return err
		},
	}
	refused := func(err error, text string) {
		t.Helper()
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.Equal(t, "TOO_MANY_REMOVALS", outcome.ReasonOf(err))
		require.ErrorContains(t, err, text)
	}
	for method, remove := range methods {
		made := func(name string) (parent string) {
			t.Helper()
			g.declare(writers)
			name = "root-" + method + name
			_, err := root.PutResource(ctx, target(name))
			require.NoError(t, err)
			for i := range 3 {
				_, err := root.PutResource(ctx, target(fmt.Sprint(name, i), "targets/"+name))
				require.NoError(t, err)
			}
			g.declare(limited)
			return "targets/" + name
		}
		parent := made("p")
		refused(remove(3, parent), "the delete removes 4 resources, 3 are allowed: look at them with plan")
		refused(remove(0, parent), "the delete removes 4 resources, 3 are allowed: look at them with plan")
		plan, err := root.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: parent})
		require.NoError(t, err)
		require.False(t, plan.GetAccepted())
		require.Contains(t, plan.GetRefusal(), "the delete removes 4 resources, 3 are allowed")
		require.Equal(t, codes.InvalidArgument, status.Code(remove(-2, parent)))
		require.Equal(t, codes.InvalidArgument, status.Code(remove(10_000, parent)), "more than a look-ahead counts")
		_, err = root.GetResource(ctx, &resourcev1.GetResourceRequest{Name: parent + "1"})
		require.NoError(t, err, "nothing is removed")
		require.NoError(t, remove(4, parent), "the number of the request counts")
		require.NoError(t, remove(-1, made("q")), "any number")
	}
	parent, id := "targets/root-r", uuid.NewString()
	for _, r := range []*resourcev1.PutResourceRequest{target("root-r"), target("root-s", parent)} {
		_, err := root.PutResource(ctx, r)
		require.NoError(t, err)
	}
	again := func(most int64) error {
		_, err := root.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{
			Name: parent, RequestId: id,
			MaxRemovals: most,
		})
		return err
	}
	refused(again(1), "removes 2 resources, 1 are allowed")
	_, err := root.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: "targets/root-s"})
	require.NoError(t, err)
	// a late copy of a request that was refused has no effect (I29)
	refused(again(1), "removes 2 resources, 1 are allowed")
	require.Equal(t, "REQUEST_REUSED", outcome.ReasonOf(again(5)))
	for _, name := range []string{"root-a", "root-b"} {
		_, err := root.PutResource(ctx, target(name))
		require.NoError(t, err)
	}
	refused(methods["batch"](1, "targets/root-a", "targets/root-none", "targets/root-b"),
		"removes 2 resources, 1 are allowed")
	require.NoError(t, methods["batch"](2, "targets/root-a", "targets/root-none", "targets/root-b"),
		"one that is not there does not count")
	_, err = root.BatchDeleteResources(ctx,
		&resourcev1.BatchDeleteResourcesRequest{Requests: []*resourcev1.DeleteResourceRequest{{
			Name:        "targets/x",
			MaxRemovals: 1,
		}}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}
