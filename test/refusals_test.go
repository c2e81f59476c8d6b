package test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
)

// Each of these calls is refused for more reasons than an error can list. The program prints the reasons that
// a client receives, and asks for the others.
const refusedClient = `
import sys, json
import grpc
from google.protobuf import json_format
from dbcontroller.resource.v1 import resource_pb2 as r, resource_pb2_grpc
from dbcontroller.schema.v1 import schema_pb2

address, certs, body, target = sys.argv[1:]
read = lambda name: open(certs + "/" + name, "rb").read()

def varint(b, i):
    n = shift = 0
    while True:
        n |= (b[i] & 127) << shift
        i, shift = i + 1, shift + 7
        if b[i - 1] < 128: return n, i

def fields(b): # of a message whose module is not installed: those with a length
    i = 0
    while i < len(b):
        tag, i = varint(b, i)
        if tag & 7 == 2:
            n, i = varint(b, i)
            yield tag >> 3, b[i:i + n]
            i += n
        else:
            _, i = varint(b, i)

def seen(call):
    try:
        call()
        return {"code": "OK"}
    except grpc.RpcError as e:
        out = {"code": e.code().name, "message": len(e.details().encode()), "details": 0, "names": [], "metadata": {}, "headers": 0}
        for key, value in e.trailing_metadata():
            out["headers"] += len(key) + len(value) + 32
            if key != "grpc-status-details-bin": continue
            for field, detail in fields(value):
                if field != 3: continue
                out["details"] += len(detail)
                any = dict(fields(detail))
                kind = any[1].decode().split(".")[-1]
                if kind == "ReferencesRefused":
                    out["names"] = [x.target for x in schema_pb2.ReferencesRefused.FromString(any[2]).refusals]
                if kind == "PreconditionFailure":
                    out["names"] = [dict(fields(v))[2].decode() for f, v in fields(any[2]) if f == 1]
                if kind == "ErrorInfo":
                    info = list(fields(any[2]))
                    out["reason"] = dict(info)[1].decode()
                    out["metadata"] = {dict(fields(v))[1].decode(): dict(fields(v))[2].decode() for f, v in info if f == 3}
        return out

with grpc.secure_channel(address, grpc.ssl_channel_credentials(read("ca.crt"), read("tls.key"), read("tls.crt"))) as channel:
    api = resource_pb2_grpc.ResourceServiceStub(channel)
    holder = r.Resource(name="targets/many")
    json_format.Parse(body, holder.body)
    write = r.BatchWriteResourcesRequest.Write(put=holder)
    out = {"put": seen(lambda: api.PutResource(r.PutResourceRequest(resource=holder), timeout=20))}
    names, token = [], ""
    for _ in range(50):
        page = seen(lambda: api.MutateAndValidateResource(r.MutateAndValidateResourceRequest(write=write, page_token=token), timeout=20))
        names += page["names"]
        token = page["metadata"].get("page_token", "")
        if not token: break
    out["pages"] = {"code": page["code"], "names": names}
    out["delete"] = seen(lambda: api.DeleteResource(r.DeleteResourceRequest(name=target), timeout=20))
    names, token = [], ""
    while True:
        plan = api.PlanDeletion(r.PlanDeletionRequest(name=target, page_size=30, page_token=token), timeout=20)
        names += [b.holder for b in plan.blockers]
        token = plan.next_page_token
        if not token: break
    out["plan"] = {"code": "OK", "names": names}
    out["invalid"] = seen(lambda: api.GetResource(r.GetResourceRequest(name="\u00fc" * 100000), timeout=20))
    out["filter"] = seen(lambda: api.ListResources(r.ListResourcesRequest(filter="x = \"" + "y" * 60000), timeout=20))
print(json.dumps(out))
`

// A client in another language receives refusals of any size, not a broken stream, and can ask for the
// refusals that the error does not list.
func TestStockClientsGetLongRefusals(t *testing.T) {
	t.Parallel()
	python := harness.NewPython(t)
	f := newFixture(t)
	const n = 200
	f.mustPut(aWest+"targets/blocked", nil)
	resources, err := f.Client.Resources(t.Context(), f.id(bEast+"holders/h"))
	require.NoError(t, err)
	block, err := structpb.NewStruct(fields{"block": aWest + "targets/blocked"})
	require.NoError(t, err)
	req := &resourcev1.BatchWriteResourcesRequest{}
	refused := []any{}
	for i := range n {
		req.Writes = append(req.Writes, client.PutOf(&resourcev1.Resource{
			Name: fmt.Sprintf("holders/with-a-name-of-some-length-%03d", i), Body: block,
		}))
		refused = append(refused, fmt.Sprintf("%stargets/missing-with-a-name-of-some-length-%03d", aEast, i))
	}
	require.NoError(t, patiently(t.Context(), func() error {
		_, err := resources.BatchWriteResources(t.Context(), req)
		return err
	}))
	body, err := json.Marshal(fields{"needs": refused})
	require.NoError(t, err)

	var got map[string]struct {
		Code, Reason              string
		Message, Details, Headers int
		Names                     []string
		Metadata                  map[string]string
	}
	out := python.Run(t, refusedClient, f.Deployments[f.id(aWest+"targets/many")].Address,
		filepath.Clean(f.ClientCerts()), string(body), "targets/blocked")
	require.NoError(t, json.Unmarshal([]byte(out), &got), out)
	for call, code := range map[string]string{
		"put": "FAILED_PRECONDITION", "pages": "FAILED_PRECONDITION", "delete": "FAILED_PRECONDITION", "plan": "OK",
		"invalid": "INVALID_ARGUMENT", "filter": "INVALID_ARGUMENT",
	} {
		require.Equal(t, code, got[call].Code, "%s: %+v", call, got[call])
		require.LessOrEqual(t, got[call].Message, 1<<10, call)
		require.LessOrEqual(t, got[call].Details, 4<<10, call)
	}
	for _, call := range []string{"put", "delete"} {
		require.Equal(t, "200", got[call].Metadata["total"], call)
		require.NotEmpty(t, got[call].Names, call)
		require.Less(t, len(got[call].Names), n, call)
		t.Logf("%s: %d named in %d bytes of details, %d of headers", call, len(got[call].Names), got[call].Details,
			got[call].Headers)
	}
	require.ElementsMatch(t, refused, anys(got["pages"].Names), "page by page")
	require.Len(t, got["plan"].Names, n)
	require.True(t, strings.HasSuffix(got["plan"].Names[n-1], "-199"))
}

func anys(in []string) (out []any) {
	for _, s := range in {
		out = append(out, s)
	}
	return out
}
