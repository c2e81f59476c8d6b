package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

const robots = `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
  - kind: Robot
    patterns: ["projects/{project}/robots/{robot}"]
    parents: [{ kind: Project, behaviour: CASCADE_DELETE }]
    references:
      - { path: spec.owner, targets: [Project], behaviour: BLOCK }
      - { path: friends.*, targets: [Robot], behaviour: ASYNC_UNSET }
`

type robot struct {
	Spec struct {
		Owner string `json:"owner,omitempty"`
		Size  int64  `json:"size,omitempty"`
	} `json:"spec"`
	Friends []string `json:"friends,omitempty"`
}

// shelf keeps the last put.
type shelf struct {
	resourcev1.UnimplementedResourceServiceServer
	last *resourcev1.Resource
}

func (s *shelf) PutResource(_ context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	full, err := schema.ParseFullName(req.GetResource().GetName())
	if err != nil {
		return nil, err
	}
	s.last = req.GetResource()
	s.last.Name, s.last.Deployment, s.last.Uid, s.last.Revision = full.Name, full.Deployment.String(), "u1", 7
	return s.last, nil
}

func (s *shelf) GetResource(context.Context, *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return s.last, nil
}

func (s *shelf) UpdateResourceStatus(_ context.Context,
	req *resourcev1.UpdateResourceStatusRequest,
) (*resourcev1.Resource, error) {
	if req.GetUid() != s.last.GetUid() || req.StatusGeneration != nil &&
		req.GetStatusGeneration() != s.last.GetStatusGeneration() {
		return nil, status.Error(codes.FailedPrecondition, "another one")
	}
	s.last.Status = req.GetStatus()
	s.last.StatusGeneration++
	return s.last, nil
}

func (s *shelf) ListResources(context.Context,
	*resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	return &resourcev1.ListResourcesResponse{Resources: []*resourcev1.Resource{s.last}}, nil
}

func withRobots(t *testing.T, resources resourcev1.ResourceServiceServer) *client.Client {
	t.Helper()
	file, err := schema.ParseFile("robots.yaml", strings.NewReader(robots))
	require.NoError(t, err)
	return open(t, stub.New(t, stub.Services{Resources: resources, Descriptors: file.Services}))
}

func TestAKindConvertsBodies(t *testing.T) {
	t.Parallel()
	c := withRobots(t, &shelf{})
	kind, err := client.KindOf[robot](t.Context(), c, "iam.example.com", "Robot")
	require.NoError(t, err)
	o := client.Object[robot]{Name: acme + "/robots/r", Labels: map[string]string{"team": "a"}}
	o.Body.Spec.Owner, o.Body.Spec.Size, o.Body.Friends = acme, 1<<53, []string{acme + "/robots/s"}
	stored, err := kind.Put(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, "u1", stored.UID)
	require.EqualValues(t, 7, stored.Revision)
	require.Equal(t, o.Name, stored.Name)
	require.Equal(t, o.Body, stored.Body)
	require.Equal(t, o.Labels, stored.Labels)

	read, err := kind.Get(t.Context(), o.Name)
	require.NoError(t, err)
	require.Equal(t, stored, read)
	for listed, err := range kind.List(t.Context(), "us-west2", "") {
		require.NoError(t, err)
		require.Equal(t, stored, listed)
	}

	reported, err := kind.UpdateStatus(t.Context(), read, map[string]int{"seen": 1})
	require.NoError(t, err)
	require.JSONEq(t, `{"seen": 1}`, string(reported.Status))
	require.Equal(t, []any{int64(1), stored.Body}, []any{reported.StatusGeneration, reported.Body})
	_, err = kind.UpdateStatus(t.Context(), read, nil)
	require.ErrorIs(t, err, client.ErrConflict, "a status that was not read")
	reported, err = kind.UpdateStatus(t.Context(), reported, nil)
	require.NoError(t, err)
	require.Nil(t, reported.Status)

	o.Body.Spec.Size++
	_, err = kind.Put(t.Context(), o)
	require.ErrorContains(t, err, "9007199254740993 has no exact value of double precision")
}

func TestATypeWithoutAReferenceFieldIsRefused(t *testing.T) {
	t.Parallel()
	c := withRobots(t, &shelf{})
	type typo struct {
		Spec struct {
			Owner string `json:"ownr"`
		} `json:"spec"`
		Friends []string `json:"friends"`
	}
	_, err := client.KindOf[typo](t.Context(), c, "iam.example.com", "Robot")
	require.ErrorContains(t, err, "Robot of iam.example.com@v1 refers to resources in spec.owner: struct")
	type number struct {
		Spec    map[string]any `json:"spec"`
		Friends []int          `json:"friends"`
	}
	_, err = client.KindOf[number](t.Context(), c, "iam.example.com", "Robot")
	require.ErrorContains(t, err, "in friends.*: want a string, the type has int")
	_, err = client.KindOf[robot](t.Context(), c, "iam.example.com", "Robbot")
	require.Error(t, err)
	_, err = client.KindOf[robot](t.Context(), c, "other.example.com", "Robot")
	require.ErrorContains(t, err, "no deployment of other.example.com")
}
