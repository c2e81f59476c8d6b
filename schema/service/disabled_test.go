package service

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/peers"
)

// A disabled deployment can be enabled again: its references, new ones and references that it establishes
// again after a failover, are unavailable and not refused for good.
func TestADisabledDeploymentIsNotRefusedForGood_I2_I15(t *testing.T) {
	target, holder := schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"},
		schema.DeploymentID{Service: "devices.example.com", Region: "eastus2"}
	p := peers.New(target, nil)
	devices := &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: "devices.example.com", Version: "v1"}}
	p.Update(&schema.Environment{
		Services: []*schema.Descriptor{devices},
		Deployments: []schema.Deployment{{DeploymentID: target, Version: "v1"}, {
			DeploymentID: holder, Version: "v1",
			Disabled: true,
		}},
	})
	s := &schemas{mayRefer: p.MayRefer, disabled: p.Disabled}
	attempt, uid := uuid.Must(uuid.NewV7()), uuid.New()
	for name, known := range map[string][]byte{"new": nil, "again": uid[:]} {
		_, err := s.attempt(holder, &schemav1.EstablishReferencesRequest_Attempt{
			Attempt: attempt[:], References: []*schemav1.EstablishReferencesRequest_Reference{{
				Holder: &schemav1.ResourceRef{Kind: "Device", Name: "devices/d", Uid: uid[:]}, Path: "owner",
				Target:    &schemav1.ResourceRef{Kind: "User", Name: "users/u", Uid: known},
				Behaviour: schemav1.Behaviour_BEHAVIOUR_BLOCK,
			}},
		})
		var unavailable *peer.UnavailableError
		require.ErrorAs(t, err, &unavailable, name)
		require.Equal(t, []schema.DeploymentID{holder}, unavailable.Deployments)
		require.ErrorContains(t, err, "disabled in the registry")
	}
}
