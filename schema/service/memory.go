package service

import (
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Bytes that calls take beside their decoded request, which is there three times: decoded, as a Go value, and
// as JSON.
const (
	requestCopies = 3
	callBytes     = 64 << 10
	bodyBytes     = 2 << 20 // calls that read one body: as it is stored, or encoded
	pagesBytes    = 4 << 20 // calls that read several bodies, of which package costs lets four run at a time
)

// bodies has the bytes of methods that read bodies whose size the request does not tell.
var bodies = map[string]int64{
	resourcev1.ResourceService_GetResource_FullMethodName:          bodyBytes,
	resourcev1.ResourceService_UpdateResource_FullMethodName:       bodyBytes,
	resourcev1.ResourceService_SetBlockDeletion_FullMethodName:     bodyBytes,
	resourcev1.ResourceService_UndeleteResource_FullMethodName:     bodyBytes,
	resourcev1.ResourceService_DeleteResource_FullMethodName:       bodyBytes,
	resourcev1.ResourceService_BatchDeleteResources_FullMethodName: bodyBytes, // they have no bodies
	resourcev1.ResourceService_BatchWriteResources_FullMethodName:  bodyBytes,
	resourcev1.ResourceService_ListResources_FullMethodName:        pagesBytes,
	resourcev1.ResourceService_BatchGetResources_FullMethodName:    pagesBytes,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:         bodyBytes,
	resourcev1.ResourceService_RemoveFinalizer_FullMethodName:      bodyBytes,

	resourcev1.ResourceService_UpdateResourceStatus_FullMethodName: bodyBytes,

	resourcev1.ResourceService_MutateAndValidateResource_FullMethodName: bodyBytes,
}

// Weighed registers services whose requests are decoded when their caller has the memory for the whole call.
func Weighed(to grpc.ServiceRegistrar) grpc.ServiceRegistrar {
	return identity.Weighed(to, func(method string, request int64) int64 {
		return callBytes + requestCopies*request + bodies[method]
	})
}
