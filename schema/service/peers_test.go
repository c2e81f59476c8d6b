package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestOnlyWhoImportsAServiceMayReferToIt(t *testing.T) {
	id := func(s string) schema.DeploymentID {
		d, err := schema.ParseDeploymentID(s)
		require.NoError(t, err)
		return d
	}
	version := func(service, version string, imports ...string) *schema.Descriptor {
		d := &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: service, Version: version}}
		for _, imported := range imports {
			d.Imports = append(d.Imports, schema.Import{ServiceVersion: schema.ServiceVersion{Service: imported, Version: "v1"}})
		}
		return d
	}
	p := NewPeers(id("iam.example.com/us-west2"), nil)
	_, err := p.MayRefer(id("devices.example.com/us-west2"), false)
	require.Error(t, err, "before the first environment nobody knows")
	p.Update(&schema.Environment{
		Services: []*schema.Descriptor{version("iam.example.com", "v1"), version("devices.example.com", "v1", "iam.example.com"), version("devices.example.com", "v2")},
		Deployments: []schema.Deployment{
			{DeploymentID: id("iam.example.com/eastus2"), Version: "v1"},
			{DeploymentID: id("devices.example.com/us-west2"), Version: "v1"},
			{DeploymentID: id("devices.example.com/eastus2"), Version: "v2"}, // its version imports nothing
			{DeploymentID: id("devices.example.com/asia1"), Version: "v1", Disabled: true},
		},
	})
	for holder, want := range map[string]bool{
		"iam.example.com/eastus2": true, "devices.example.com/us-west2": true, "devices.example.com/eastus2": false, "devices.example.com/asia1": false,
	} {
		got, err := p.MayRefer(id(holder), false)
		require.NoError(t, err)
		require.Equal(t, want, got, holder)
	}
	_, err = p.MayRefer(id("devices.example.com/mars"), false)
	require.Error(t, err, "unknown is not no")
}
