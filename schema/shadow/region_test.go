package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

const regional = `
service: a.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - kind: Site
    patterns: ["projects/{project}/regions/{region}/sites/{site}"]
    parents: [{ kind: Project, behaviour: CASCADE_DELETE, region: us-west2 }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Fleet
    patterns: ["projects/{project}/regions/{region}/fleets/{fleet}"]
    parents: [{ kind: a.example.com/Project, behaviour: CASCADE_DELETE, region: { field: home } }]
    references: [{ path: site, targets: [a.example.com/Site], behaviour: UNSET }]
  - kind: Lock
    patterns: ["projects/{project}/locks/{lock}"]
    parents: [{ kind: a.example.com/Project, behaviour: BLOCK, region: us-west2 }]
`

// A regional child has its parent in another region, with all effects of a parent.
func TestAParentInAnotherRegion_I1_I3(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, regional, nil, aWest, aEast, bWest, bEast)
	const project, site = "//" + aWest + "/projects/p", "//" + aEast + "/projects/p/regions/eastus2/sites/s"
	const fleet, lock = "//" + bEast + "/projects/p/regions/eastus2/fleets/f", "//" + bEast + "/projects/p/locks/l"
	home := body{"home": "us-west2", "site": "projects/p/regions/eastus2/sites/s"}

	_, err := b.Put(site, nil)
	require.ErrorContains(t, err, project+" does not exist", "nothing lies below a parent that is not there")
	b.MustPut(project, nil)
	b.MustPut(site, nil)
	_, err = b.Put(fleet, body{})
	require.ErrorContains(t, err, "//"+aEast+"/projects/p does not exist", "without the field, in the child's region")
	b.MustPut(fleet, home)
	b.MustPut(lock, nil)
	b.Settle()
	_, err = b.Delete(project)
	require.ErrorContains(t, err, lock)
	require.NotNil(t, b.Get(fleet))
	b.Audit()

	// Deletes: a look-ahead that meets the lock, then a cascade over two services of another region.
	b.MustDelete(lock)
	b.Settle()
	b.MustDelete(project)
	b.Settle()
	for _, name := range []string{project, site, fleet} {
		b.Gone(name)
	}
	b.Audit()

	// Another parent, in another region: the reference moves.
	b.MustPut(project, nil)
	b.MustPut("//"+aEast+"/projects/p", nil)
	b.MustPut(fleet, body{"home": "us-west2"})
	b.MustPut(fleet, body{"home": "eastus2"})
	b.Settle()
	b.MustDelete(project)
	b.Settle()
	b.Gone(project)
	require.NotNil(t, b.Get(fleet))
	b.MustDelete("//" + aEast + "/projects/p")
	b.Settle()
	b.Gone(fleet)
	b.Audit()
}

func TestTheRegionInANameIsTheResourcesRegion(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, regional, nil, aWest, aEast, bWest, bEast)
	b.MustPut("//"+aWest+"/projects/p", nil)
	_, err := b.Put("//"+aWest+"/projects/p/regions/eastus2/sites/s", nil)
	require.ErrorAs(t, err, new(*peer.InvalidError))
	require.ErrorContains(t, err, "contains region eastus2, and this is "+aWest+": use the full name, //"+aEast+"/...")
	_, err = b.Stores[b.ID(aWest)].Write.Validate(t.Context(), peer.Write{Name: "projects/p/regions/mars/sites/s"})
	require.ErrorContains(t, err, "contains region mars")
	b.MustPut("//"+aWest+"/projects/p/regions/us-west2/sites/s", nil)

	// A relative name with a region refers to that region.
	b.MustPut("//"+aEast+"/projects/p/regions/eastus2/sites/s", nil)
	const fleet = "//" + bEast + "/projects/p/regions/eastus2/fleets/f"
	b.MustPut(fleet, body{"home": "us-west2", "site": "projects/p/regions/us-west2/sites/s"})
	b.Settle()
	b.MustDelete("//" + aEast + "/projects/p/regions/eastus2/sites/s")
	b.Settle()
	require.Contains(t, string(b.Get(fleet).Body), "site")
	b.MustDelete("//" + aWest + "/projects/p/regions/us-west2/sites/s")
	b.Settle()
	require.JSONEq(t, `{"home": "us-west2"}`, string(b.Get(fleet).Body))
	b.Audit()
}
