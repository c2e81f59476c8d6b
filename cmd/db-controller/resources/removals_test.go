package resources

import (
	"testing"

	"github.com/stretchr/testify/require"

	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func TestARootOfAnotherDeploymentIsItsWord(t *testing.T) {
	t.Parallel()
	const here, there = "//a.example.com/us-west2/targets/t", "//b.example.com/us-west2/targets/t"
	for want, records := range map[string][2]*adminv1.Removal{
		"":                                    {{Name: here}, {Name: here}},
		", as told by b.example.com/us-west2": {{Name: here}, {Name: there}},
		", as told by c.example.com/us-west2": {{Name: here}, {Name: there, ToldBy: "c.example.com/us-west2"}},
		", as told by b.example.com/eastus2":  {{Name: here}, {Name: here, ToldBy: "b.example.com/eastus2"}},
	} {
		require.Equal(t, want, asTold(records[0], records[1]))
	}
}
