package resources

import (
	"testing"

	"github.com/stretchr/testify/require"

	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// What list and an export write, put reads.
func TestAFileHasEachFieldOfAResource(t *testing.T) {
	t.Parallel()
	fields := (&resourcev1.Resource{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		require.Contains(t, fileFields, fields.Get(i).JSONName())
	}
}
