package test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// A resource that was exported, and is lost, is put back with all that a client can give it. Fields that the
// project adds later are compared as well.
func TestAnExportedResourceIsPutBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const target, owner, owned = aWest + "targets/exported", bEast + "holders/owner", aEast + "targets/owned"
	f.mustPut(owner, nil)
	f.mustPut(target, fields{"x": "y"})
	f.mustPut(owned, fields{"n": 1}, ownedBy("Holder", owner))
	f.settled()
	for _, name := range []string{target, owned} {
		relative, resources := f.named(name)
		r := f.get(name)
		r.Labels = map[string]string{"team": "blue"}
		_, err := resources.PutResource(t.Context(), &resourcev1.PutResourceRequest{Resource: r})
		require.NoError(t, err)
		status, err := structpb.NewStruct(fields{"phase": "ready"})
		require.NoError(t, err)
		_, err = resources.UpdateResourceStatus(t.Context(), &resourcev1.UpdateResourceStatusRequest{
			Name:   relative,
			Status: status,
		})
		require.NoError(t, err)
		_, err = resources.SetBlockDeletion(t.Context(), &resourcev1.SetBlockDeletionRequest{
			Name:          relative,
			BlockDeletion: true,
		})
		require.NoError(t, err)
	}
	before := map[string]*resourcev1.Resource{target: f.get(target), owned: f.get(owned)}
	file := filepath.Join(t.TempDir(), "exported.yaml")
	var exported string
	for name := range before {
		out, err := run(t, "get", name, "-o", "yaml", "--context", f.Context)
		require.NoError(t, err, out)
		exported += "---\n" + out
	}
	require.NoError(t, os.WriteFile(file, []byte(exported), 0o600))
	out, err := run(t, "put", "-f", file, "--context", f.Context)
	require.NoError(t, err, "%s: the same again changes nothing", out)
	for name := range before {
		relative, resources := f.named(name)
		_, err := resources.SetBlockDeletion(t.Context(), &resourcev1.SetBlockDeletionRequest{
			Name:          relative,
			BlockDeletion: false,
		})
		require.NoError(t, err)
	}
	f.mustDelete(owner)
	f.mustDelete(target)
	f.gone(target, owner, owned)
	f.mustPut(owner, nil) // another one

	out, err = run(t, "put", "-f", file, "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out+err.Error(), "--create makes it anew")
	out, err = run(t, "put", "-f", file, "--create", "--context", f.Context)
	require.NoError(t, err, out)
	f.settled()
	for name, was := range before {
		is := f.get(name)
		require.NotNil(t, is, name)
		for fs, i := is.ProtoReflect().Descriptor().Fields(), 0; i < fs.Len(); i++ {
			field := fs.Get(i)
			switch field.Name() {
			case "uid", "revision", "generation", "status_generation", "create_time", "update_time":
				// of the incarnation
				continue
			case "owner_references":
				for _, o := range append(was.GetOwnerReferences(), is.GetOwnerReferences()...) {
					o.Uid = ""
				}
			}
			require.True(t, sameField(was, is, field), "%s: %s: %v, %v", name, field.Name(), was, is)
		}
	}
	out, err = run(t, "put", "-f", file, "--create", "--context", f.Context)
	require.Error(t, err)
	require.Contains(t, out+err.Error(), "without it a put replaces them")
}

// sameField compares one field of two resources.
func sameField(a, b *resourcev1.Resource, field protoreflect.FieldDescriptor) bool {
	of := func(r *resourcev1.Resource) *resourcev1.Resource {
		out := &resourcev1.Resource{}
		if r.ProtoReflect().Has(field) {
			out.ProtoReflect().Set(field, r.ProtoReflect().Get(field))
		}
		return out
	}
	return proto.Equal(of(a), of(b))
}
