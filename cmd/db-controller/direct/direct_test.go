package direct_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// pages serves 25 resources, ten a page.
type pages struct {
	resourcev1.UnimplementedResourceServiceServer
	calls int
}

func (p *pages) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	p.calls++
	from := 0
	if token := req.GetPageToken(); token != "" {
		if _, err := fmt.Sscan(token, &from); err != nil {
			return nil, err
		}
	}
	answer := &resourcev1.ListResourcesResponse{}
	for i := from; i < min(from+10, 25); i++ {
		answer.Resources = append(answer.Resources, &resourcev1.Resource{Name: fmt.Sprintf("projects/p%d", i)})
	}
	if from+10 < 25 {
		answer.NextPageToken = fmt.Sprint(from + 10)
	}
	return answer, nil
}

func TestEachReadsAllPagesUntilAnError(t *testing.T) {
	t.Parallel()
	served := &pages{}
	c, err := client.Open(stub.New(t, stub.Services{Resources: served}).Context)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var names []string
	visit := func(r *resourcev1.Resource) error {
		names = append(names, r.GetName())
		return nil
	}
	require.NoError(t, direct.Each(t.Context(), c, stub.Deployment, client.Query{}, visit))
	require.Len(t, names, 25)
	require.Equal(t, "projects/p24", names[24])

	served.calls = 0
	enough := errors.New("enough")
	require.ErrorIs(t, direct.Each(t.Context(), c, stub.Deployment, client.Query{}, func(*resourcev1.Resource) error {
		return enough
	}), enough)
	require.Equal(t, 1, served.calls)
}

func TestNamedNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	c, err := client.Open(stub.New(t, stub.Services{Resources: &pages{}}).Context)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, _, err = direct.Named(t.Context(), c, "projects/p")
	require.ErrorContains(t, err, "want //service/region/name")
	_, _, err = direct.Named(t.Context(), c, "//iam.example.com/mars/projects/p")
	require.ErrorContains(t, err, "iam.example.com/mars is not registered")
	name, _, err := direct.Named(t.Context(), c, "//"+stub.Deployment.String()+"/projects/p")
	require.NoError(t, err)
	require.Equal(t, "projects/p", name.Name)
}
