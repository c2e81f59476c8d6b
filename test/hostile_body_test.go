package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

func manyFields(n int, prefix string) *structpb.Value {
	fields := map[string]*structpb.Value{}
	for i := range n {
		fields[fmt.Sprintf("%s%d", prefix, i)] = structpb.NewNullValue()
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

func message(field string, v *structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{field: v}}
}

func nested(levels int, field string) *structpb.Value {
	v := structpb.NewNullValue()
	for range levels {
		v = structpb.NewStructValue(message(field, v))
	}
	return v
}

func texts(n int, text string) *structpb.Value {
	list := &structpb.ListValue{}
	for i := range n {
		list.Values = append(list.Values, structpb.NewStringValue(fmt.Sprintf(text, i)))
	}
	return structpb.NewListValue(list)
}

// One request of a few megabytes costs the process little, in any shape and by any method.
func TestACostlyBodyCostsLittle_I20_I21(t *testing.T) {
	hostile(t)
	t.Parallel()
	const deployment = "a.example.com/us-west2"
	f := newFixture(t)
	f.mustPut(aWest+"targets/t", fields{"x": 1})
	user, ctx := resourcev1.NewResourceServiceClient(f.asUser(deployment)), t.Context()
	elsewhere := resourcev1.NewResourceServiceClient(f.asUser("a.example.com/eastus2"))
	longKey := strings.Repeat("k", 1_400_000)
	bodies := map[string]*structpb.Struct{
		"a long key above many fields":   message(longKey, manyFields(100_000, "f")),
		"a long key above a long list":   message(longKey, texts(100_000, "%d")),
		"long keys above one another":    message("x", nested(90, longKey[:40_000])),
		"thousands of levels":            message("x", nested(3000, longKey[:400])),
		"many different references":      message("needs", texts(120_000, "t%06d")),
		"many different good references": message("needs", texts(40_000, "targets/%d")),
		"a long key above a wrong reference": message("needs",
			structpb.NewStructValue(message(longKey[:900_000], manyFields(8_000, "f")))),
		"long keys in a map of references": message("needs",
			structpb.NewStructValue(
				&structpb.Struct{Fields: manyFields(900, longKey[:1_000]).GetStructValue().GetFields()})),
		"many empty messages": message("x", texts(500_000, "")),
		"a NUL at the end of many characters": message("x",
			structpb.NewStringValue(strings.Repeat("\x01", 1_000_000)+"\x00")),
	}
	type door func(context.Context, *resourcev1.Resource) error
	write := func(r *resourcev1.Resource) *resourcev1.BatchWriteResourcesRequest_Write {
		return &resourcev1.BatchWriteResourcesRequest_Write{
			Write: &resourcev1.BatchWriteResourcesRequest_Write_Put{Put: r},
		}
	}
	doors := map[string]door{
		"put": func(ctx context.Context, r *resourcev1.Resource) error {
			_, err := user.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
			return err
		},
		"masked update": func(ctx context.Context, r *resourcev1.Resource) error {
			_, err := user.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
				Resource:   r,
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"body"}},
			})
			return err
		},
		"batch": func(ctx context.Context, r *resourcev1.Resource) error {
			_, err := user.BatchWriteResources(ctx,
				&resourcev1.BatchWriteResourcesRequest{
					Writes: []*resourcev1.BatchWriteResourcesRequest_Write{write(r)},
				})
			return err
		},
		"validate": func(ctx context.Context, r *resourcev1.Resource) error {
			_, err := user.MutateAndValidateResource(ctx, &resourcev1.MutateAndValidateResourceRequest{Write: write(r)})
			return err
		},
		"another region": func(ctx context.Context, r *resourcev1.Resource) error {
			r.Name = aWest + r.GetName()
			_, err := elsewhere.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: r})
			return err
		},
	}
	for what, content := range bodies {
		body := encodedBody(t, content)
		for door, call := range doors {
			f.costsLittle(deployment, what+" by "+door, func() error {
				r := &resourcev1.Resource{Name: "targets/t"}
				r.ProtoReflect().SetUnknown(body)
				return call(ctx, r)
			})
		}
	}
	f.costsLittle(deployment, "an update with one long path in its mask", func() error {
		_, err := user.UpdateResource(ctx, &resourcev1.UpdateResourceRequest{
			Resource:   &resourcev1.Resource{Name: "targets/t"},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"body" + strings.Repeat(".a", 6_000_000)}},
		})
		return err
	})
	paths := make([]string, 400_000)
	for i := range paths {
		paths[i] = fmt.Sprintf("body.a%d", i)
	}
	f.costsLittle(deployment, "an update with a long mask", func() error {
		_, err := user.UpdateResource(ctx,
			&resourcev1.UpdateResourceRequest{
				Resource:   &resourcev1.Resource{Name: "targets/t"},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
			})
		return err
	})
	f.costsLittle(deployment, "a read with a long mask", func() error {
		_, err := user.GetResource(ctx, &resourcev1.GetResourceRequest{
			Name:     "targets/t",
			ReadMask: &fieldmaskpb.FieldMask{Paths: paths},
		})
		return err
	})
}

// encodedBody returns the field body of a resource as it is sent. A resource with it as an unknown field is
// the same message, and is encoded by a copy: each body is encoded once, and not for each method.
func encodedBody(t *testing.T, content *structpb.Struct) []byte {
	t.Helper()
	raw, err := proto.Marshal(&resourcev1.Resource{Body: content})
	require.NoError(t, err)
	return raw
}

// costsLittle makes a call that is accepted, or refused as the caller's mistake, and compares its cost for
// the process with the limit for one call.
func (f *fixture) costsLittle(deployment, what string, call func() error) {
	f.t.Helper()
	const cpu = "process_cpu_seconds_total"
	before, memory := f.metric("//"+deployment+"/x/y", cpu), f.memory(deployment)
	err := call()
	require.Contains(f.t, []codes.Code{codes.OK, codes.InvalidArgument, codes.ResourceExhausted}, status.Code(err),
		"%s: %.300v", what, err)
	require.Less(f.t, len(status.Convert(err).Message()), 1000, what)
	took, grown := f.metric("//"+deployment+"/x/y", cpu)-before, f.memory(deployment)-memory
	f.t.Logf("%-60s %.2f s CPU, memory %+.0f MB", what, took, grown/1e6)
	require.Less(f.t, took, 1.0, what)
	require.Less(f.t, grown, 100e6, what)
}
