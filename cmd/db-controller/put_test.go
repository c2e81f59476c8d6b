package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// written keeps the last write.
type written struct {
	project
	update *resourcev1.UpdateResourceRequest
	writes []*resourcev1.BatchWriteResourcesRequest_Write
	exists bool // creates fail: the resource is there
	gone   []string
}

func (w *written) UpdateResource(_ context.Context,
	req *resourcev1.UpdateResourceRequest,
) (*resourcev1.Resource, error) {
	w.update = req
	return acme(), nil
}

func (w *written) BatchWriteResources(_ context.Context,
	req *resourcev1.BatchWriteResourcesRequest,
) (*resourcev1.BatchWriteResourcesResponse, error) {
	if w.exists {
		return nil, status.Error(codes.AlreadyExists, "projects/c: already exists")
	}
	w.writes = append(w.writes, req.GetWrites()...)
	return &resourcev1.BatchWriteResourcesResponse{Resources: []*resourcev1.Resource{acme()}}, nil
}

func (w *written) DeleteResource(_ context.Context,
	req *resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	w.gone = append(w.gone, req.GetName())
	return &resourcev1.DeleteResourceResponse{Removed: true}, nil
}

func (w *written) BatchDeleteResources(ctx context.Context,
	req *resourcev1.BatchDeleteResourcesRequest,
) (*resourcev1.BatchDeleteResourcesResponse, error) {
	out := &resourcev1.BatchDeleteResourcesResponse{}
	for _, one := range req.GetRequests() {
		answer, _ := w.DeleteResource(ctx, one)
		out.Responses = append(out.Responses, answer)
	}
	return out, nil
}

func TestFieldsOfABodyAreSet(t *testing.T) {
	t.Parallel()
	served := &written{project: project{put: make(chan *resourcev1.Resource, 1)}}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context}
	got := command(t, append(at, "put", acmeName, "{title: A, quota: {devices: 1}}", "--set", "quota.devices=5",
		"--set", "tags=[a, b]", "--set", "note=")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, map[string]any{
		"title": "A", "quota": map[string]any{"devices": 5.0}, "tags": []any{"a", "b"},
		"note": nil,
	}, (<-served.put).GetBody().AsMap())

	got = command(t, append(at, "patch", acmeName, "--set", "quota.devices=5", "--unset", "note", "--label",
		"team=blue", "--label", "stage=")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, []string{"body.quota.devices", "body.note", "labels.team", "labels.stage"},
		served.update.GetUpdateMask().GetPaths())
	require.Equal(t, map[string]any{"quota": map[string]any{"devices": 5.0}},
		served.update.GetResource().GetBody().AsMap())
	require.Equal(t, map[string]string{"team": "blue"}, served.update.GetResource().GetLabels())

	// With --set alone the body is a part: the resource that exists keeps its other fields.
	got = command(t, append(at, "put", acmeName, "--set", "title=B")...)
	require.Equal(t,
		ran{cli.Refused, "", "error: " + acmeName +
			" exists, and a put with --set alone would drop its other fields: change fields with patch " + acmeName +
			" --set …, or give its whole body\n"}, got)
	require.Empty(t, served.put)
	got = command(t, append(at, "put", acmeName, "{}", "--set", "title=B")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, map[string]any{"title": "B"}, (<-served.put).GetBody().AsMap())

	for says, args := range map[string][]string{
		"--set a: want PATH=VALUE":                               {"put", acmeName, "--set", "a"},
		"--set a.b=1: a is not a field with fields":              {"put", acmeName, "a: 1", "--set", "a.b=1"},
		"field body.n: 12345678901234567890 has more digits":     {"put", acmeName, "--set", "n=12345678901234567890"},
		"field body.d: YAML parses it as a date":                 {"patch", acmeName, "--set", "d=2020-01-01"},
		"nothing to change: give --set PATH=VALUE, --unset PATH": {"patch", acmeName},
		"--unset a=1: want the PATH of a field":                  {"patch", acmeName, "--unset", "a=1"},
		"--label team: want KEY=VALUE, or KEY= to remove":        {"patch", acmeName, "--label", "team"},
	} {
		got := command(t, append(at, args...)...)
		require.Equal(t, cli.WrongUsage, got.code, "%v", args)
		require.Contains(t, got.errOut, says)
	}
}

const severalResources = `name: //iam.example.com/us-west2/projects/a
body: { title: A }
---
- name: projects/b
  deployment: iam.example.com/us-west2
  revision: "7"
  uid: u1
  createTime: "2026-01-01T00:00:00Z"
  labels: { team: blue }
  body: {}
  ownerReferences: [{ name: projects/a, kind: Project, controller: true }]
- { name: //iam.example.com/us-west2/projects/c }
`

// A file has documents and arrays, as get and list print them; it is deleted in the reverse order, by one
// request.
func TestAFileHasSeveralResources(t *testing.T) {
	t.Parallel()
	served := &written{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context}
	file := write(t, severalResources)
	got := command(t, append(at, "put", "-f", file)...)
	require.Zero(t, got.code, got.errOut)
	require.Len(t, served.writes, 3)
	require.Equal(t, "projects/a", served.writes[0].GetPut().GetName())
	b := served.writes[1].GetPut()
	require.Equal(t, int64(7), b.GetRevision())
	require.Equal(t, map[string]string{"team": "blue"}, b.GetLabels())
	require.True(t, b.GetOwnerReferences()[0].GetController())
	require.NotNil(t, b.GetBody())
	require.Equal(t, "projects/c", served.writes[2].GetCreate().GetName(), "a missing body only creates")
	served.exists = true
	got = command(t, append(at, "put", "-f", file)...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut,
		"projects/c: already exists (AlreadyExists), and a put without a body would empty it")
	got = command(t, append(at, "delete", "-f", file)...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, []string{"projects/c", "projects/b", "projects/a"}, served.gone)
}

// The output of get and list is input of put.
func TestWhatIsPrintedCanBePut(t *testing.T) {
	t.Parallel()
	served := &written{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context}
	for _, args := range [][]string{{"get", acmeName}, {"list", "iam.example.com/us-west2"}} {
		for _, format := range []string{"json", "yaml"} {
			printed := command(t, append(append(at, args...), "-o", format)...)
			require.Zero(t, printed.code)
			served.writes = nil
			got := commandWith(t, printed.out, append(at, "put", "-f", "-")...)
			require.Zero(t, got.code, got.errOut)
			require.Equal(t, "Acme", served.writes[0].GetPut().GetBody().GetFields()["title"].GetStringValue())
		}
	}
}

// Documents are separated by a line, which may also be the first and the last one.
func TestEmptyDocumentsOfAFileAreIgnored(t *testing.T) {
	t.Parallel()
	served := &written{}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context}
	got := commandWith(t, "---\nname: "+acmeName+"\n---\n---\n# nothing\n", append(at, "put", "-f", "-")...)
	require.Zero(t, got.code, got.errOut)
	require.Len(t, served.writes, 1)
}

func TestMistakesInAFileOfResourcesAreNamedWithTheirLines(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"name: //iam.example.com/us-west2/projects/a\nbdy: {}\n":              `:1: line 2: unknown field "bdy": did you mean body?`,
		"- name: projects/a\n- name: //iam.example.com/us-west2/projects/a\n": `:1: name "projects/a": want //`,
		"- 5\n":  "want a resource with the fields name and body",
		"":       "there is no resource in it",
		"a: [\n": "neither JSON nor YAML",
		"name: //iam.example.com/us-west2/projects/a\nbody: { d: 2020-01-01 }\n": "field body.d: YAML parses it as a date",
	} {
		file := write(t, text)
		got := command(t, "put", "-f", file, "--context", stub.New(t, stub.Services{}).Context)
		require.Equal(t, cli.WrongUsage, got.code, text)
		require.Contains(t, got.errOut, says)
	}
}
