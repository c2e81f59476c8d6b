package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// waiting serves a resource in DELETING with one finalizer.
type waiting struct {
	resourcev1.UnimplementedResourceServiceServer
}

func (waiting) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	return &resourcev1.Resource{
		Name: req.GetName(), Uid: "u", Deployment: stub.Deployment.String(), State: resourcev1.Resource_STATE_DELETING,
		Finalizers: []string{"calendar"},
	}, nil
}

// The server takes a finalizer that the resource does not have for an already removed one.
func (w waiting) RemoveFinalizer(ctx context.Context,
	req *resourcev1.RemoveFinalizerRequest,
) (*resourcev1.Resource, error) {
	r, err := w.GetResource(ctx, &resourcev1.GetResourceRequest{Name: req.GetName()})
	if req.GetFinalizer() == "calendar" {
		r.Finalizers = nil
	}
	return r, err
}

// A wrong name is an error of a person, who gives no uid; a program that repeats its call gives one.
func TestRemoveFinalizerRefusesAWrongName(t *testing.T) {
	t.Parallel()
	name := "//" + stub.Deployment.String() + "/projects/p"
	at := []string{"--context", stub.New(t, stub.Services{Resources: waiting{}}).Context}
	got := command(t, append([]string{"remove-finalizer", name, "calender"}, at...)...)
	require.Equal(t, cli.Refused, got.code, got.errOut)
	require.Contains(t, got.errOut, name+" has no finalizer calender; those that it has: calendar")
	got = command(t, append([]string{"remove-finalizer", name, "calendar"}, at...)...)
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "has no finalizer left")
	got = command(t, append([]string{"remove-finalizer", name, "removed-before", "--uid", "u"}, at...)...)
	require.Zero(t, got.code, got.errOut)
}
