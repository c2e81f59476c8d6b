package peers

import (
	"context"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
)

var (
	self    = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	sibling = schema.DeploymentID{Service: self.Service, Region: "eastus2"}
	other   = schema.DeploymentID{Service: "b.example.com", Region: "us-west2"}
)

const (
	confirmMethod = schemav1.SchemaService_ConfirmBlockades_FullMethodName
	getMethod     = resourcev1.ResourceService_GetResource_FullMethodName
)

// uid returns a uid that is recognised in a failed comparison.
func uid(n byte) uuid.UUID {
	return uuid.UUID{0: n, 6: 0x40, 8: 0x80, 15: n}
}

func bytesOf(id uuid.UUID) []byte { return id[:] }

// databaseDouble is a deployment's knowledge of databases.
type databaseDouble struct {
	database uuid.UUID
	check    func(with schema.DeploymentID, database uuid.UUID) error
	// refusedBy are the deployments that refused this one as decommissioned.
	refusedBy []schema.DeploymentID
}

func (d *databaseDouble) Database() uuid.UUID { return d.database }

func (d *databaseDouble) DecommissionedBy(_ context.Context, by schema.DeploymentID) error {
	d.refusedBy = append(d.refusedBy, by)
	return nil
}

func (d *databaseDouble) Logger() *zap.Logger { return zap.NewNop() }

func (d *databaseDouble) CheckCaller(context.Context, schema.DeploymentID) error { return nil }

func (d *databaseDouble) CheckDatabase(_ context.Context, with schema.DeploymentID, database uuid.UUID) error {
	if d.check == nil {
		return nil
	}
	return d.check(with, database)
}
