package resources

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// incarnation is a resource as it was read before a delete.
type incarnation struct {
	uid      string
	revision int64
}

// hidden returns the resources that --now removes before their purge times: one that is undeleted meanwhile
// is refused. A resource that is not hidden, or that cannot be read, needs --yes, since somebody may have
// undeleted it.
func (d *deletion) hidden(ctx context.Context, resources resourcev1.ResourceServiceClient,
	names []schema.FullName,
) (map[schema.FullName]incarnation, error) {
	out := map[schema.FullName]incarnation{}
	for _, name := range names {
		r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{
			Name: name.Name, Latest: true,
			ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"uid", "revision", "delete_time"}},
		})
		switch code := status.Code(err); {
		case code == codes.NotFound: // the delete says it
		case err != nil && code != codes.PermissionDenied:
			return nil, cli.PlainOf(name, err)
		case r.GetDeleteTime() != nil:
			out[name] = incarnation{r.GetUid(), r.GetRevision()}
		case !d.releasing.yes:
			return nil, cli.Usage(
				"%s is not hidden: --now deletes it for good, without a retention; add --yes to go on", name)
		}
	}
	return out, nil
}
