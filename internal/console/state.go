package console

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Deployments are the data of the console: the deployments of an environment, called with the identity of the
// person who looks. *client.Client implements it.
type Deployments interface {
	Environment(ctx context.Context) (*schema.Environment, error)
	Admin(ctx context.Context, id schema.DeploymentID) (adminv1.AdminServiceClient, error)
	Resources(ctx context.Context, id schema.DeploymentID) (resourcev1.ResourceServiceClient, error)
}

// State is a deployment at its last look.
type State struct {
	Deployment string `json:"deployment"`
	Service    string `json:"service"`
	Region     string `json:"region"`
	// Version is the version that the environment wants.
	Version string `json:"version,omitempty"`
	// Disabled: an operator has disabled it in the registry.
	Disabled bool `json:"disabled,omitempty"`
	// Ring is the number of shards that its processes share.
	Ring int `json:"ring"`
	// Imports are the services that its version imports.
	Imports []string `json:"imports,omitempty"`
	// Status is dbcontroller.admin.v1.StatusResponse as JSON; nothing when it did not answer.
	Status json.RawMessage `json:"status,omitempty"`
	Error  string          `json:"error,omitempty"`
	// SilentSince is when it did not answer first, of the looks without an answer until now; nothing when it
	// answered.
	SilentSince *time.Time `json:"silentSince,omitempty"`
	// Answered: it answered before that. Else it may have been silent for longer.
	Answered bool `json:"answered,omitempty"`
	// Asked is when it was asked.
	Asked time.Time `json:"asked"`
}

// changed reports whether there is anything new but the time.
func (s State) changed(from State) bool {
	return s.Error != from.Error || s.Version != from.Version || s.Disabled != from.Disabled ||
		string(s.Status) != string(from.Status) ||
		(s.SilentSince == nil) != (from.SilentSince == nil)
}

// after returns the state with the time of its silence, which goes on from the look before, if there was no
// break between the looks.
func (s State) after(before State, looked bool) State {
	if s.Status != nil {
		return s
	}
	s.SilentSince, s.Answered = &s.Asked, looked && before.Status != nil
	if looked && before.SilentSince != nil {
		s.SilentSince, s.Answered = before.SilentSince, before.Answered
	}
	return s
}

// look asks one deployment.
func look(ctx context.Context, of Deployments, env *schema.Environment, d schema.Deployment) State {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s := State{
		Deployment: d.String(), Service: d.Service, Region: d.Region, Version: d.Version, Disabled: d.Disabled,
		Asked: time.Now().UTC(),
		Ring:  schema.RingSize, Imports: importsOf(env, d),
	}
	admin, err := of.Admin(ctx, d.DeploymentID)
	if err == nil {
		var answer *adminv1.StatusResponse
		if answer, err = admin.Status(ctx, &adminv1.StatusRequest{}); err == nil {
			s.Status = message(answer)
		}
	}
	if err != nil {
		s.Error = plain(err)
	}
	return s
}

func importsOf(env *schema.Environment, d schema.Deployment) (services []string) {
	for _, described := range env.Services {
		if described.Service == d.Service && described.Version == d.Version {
			for _, i := range described.Imports {
				services = append(services, i.Service)
			}
		}
	}
	return services
}

// message is a message as JSON of one form: protojson adds spaces at random.
func message(m proto.Message) json.RawMessage {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil
	}
	var form any
	if json.Unmarshal(raw, &form) != nil {
		return nil
	}
	raw, _ = json.Marshal(form) // it was JSON
	return raw
}

// plain is the message of a gRPC status, or the error's own.
func plain(err error) string {
	if s, ok := status.FromError(err); ok {
		return strings.TrimSpace(s.Code().String() + ": " + s.Message())
	}
	return err.Error()
}
