package access

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	authorizationv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/authorization/v1"
)

// outsideTimeout bounds a question to the authorization service. Silence denies.
const outsideTimeout = 2 * time.Second

// outside asks an AuthorizationService over gRPC.
type outside struct {
	client authorizationv1.AuthorizationServiceClient
}

// Outside returns the Authorizer that asks the service at the other end of a connection.
func Outside(conn grpc.ClientConnInterface) Authorizer {
	return outside{authorizationv1.NewAuthorizationServiceClient(conn)}
}

func (o outside) Authorize(ctx context.Context, who grant.Subject, verb schema.Verb,
	names []schema.FullName,
) ([]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	req := &authorizationv1.AuthorizeRequest{Subject: subjectProto(who), Verb: string(verb)}
	for _, n := range names {
		req.Names = append(req.Names, n.String())
	}
	answer, err := o.client.Authorize(ctx, req)
	if err == nil && len(answer.GetAllowed()) != len(names) {
		err = fmt.Errorf("%d answers to %d questions", len(answer.GetAllowed()), len(names))
	}
	return answer.GetAllowed(), err
}

func (o outside) Ranges(ctx context.Context, who grant.Subject, verb schema.Verb, of schema.DeploymentID,
	kind string,
) ([]grant.NameRange, error) {
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	answer, err := o.client.Ranges(ctx, &authorizationv1.RangesRequest{
		Subject: subjectProto(who), Verb: string(verb), Deployment: of.String(),
		Kind: schema.KindID{Service: of.Service, Kind: kind}.String(),
	})
	if err != nil {
		return nil, err
	}
	var out []grant.NameRange
	for _, name := range answer.GetNames() {
		out = append(out, grant.NameRanges(name)...)
	}
	return grant.JoinedRanges(out), nil
}

func subjectProto(who grant.Subject) *authorizationv1.Subject {
	return &authorizationv1.Subject{Identity: who.Identity, Groups: who.Groups}
}
