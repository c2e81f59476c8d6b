package test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/service"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// fleetResources is the number of resources: DBCONTROLLER_FLEET_RESOURCES, or few enough for every run of the
// tests.
func fleetResources(t *testing.T) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("DBCONTROLLER_FLEET_RESOURCES"), "6000"))
	require.NoError(t, err, "DBCONTROLLER_FLEET_RESOURCES")
	return n
}

const (
	fleetProjects = 6
	fleetSeed     = 3
	// shared takes the place of a project for resources without one.
	shared = -1
)

var fleetProject = schema.KindID{Service: "iam.fleet.example.com", Kind: "Project"}

// A company with seven services in three regions deletes one of its customers' projects. The expected
// deletions and unsets are computed from the bodies alone, by the rules of the behaviours, and compared with
// the deployments' lists afterwards.
//
// Not parallel: it takes all cores and 200 connections, and concurrent tests would exceed their time limits.
func TestFleetTearDownOfAProject(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each of 21 deployments")
	}
	text, files := readFleet(t)
	f := newFleet(t, files)
	f.populate()
	began := time.Now()
	p := harness.NewProcesses(t, text, "--connections", "6")
	t.Logf("%d deployments started in %s", len(p.Deployments), since(began))
	began = time.Now()
	f.load(p.Client)
	t.Logf("%d resources of %d kinds loaded in %s", len(f.all), len(f.kinds), since(began))
	victim := f.byID[fleetProject].resources[0][0]
	gone := f.closure(victim)

	pools := map[schema.DeploymentID]*pgxpool.Pool{}
	for id, d := range p.Deployments {
		pool, err := pgxpool.New(t.Context(), d.DSN)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		pools[id] = pool
	}
	before := sum(t, pools, allShadowsSQL)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // so that only the deletion is measured
		require.Zero(c, sum(c, pools, outstandingSQL))
	}, wait.Limit, 50*time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	resources, err := p.Client.Resources(ctx, victim.name.Deployment)
	require.NoError(t, err)
	project, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: victim.name.Name})
	require.NoError(t, err)
	began = time.Now()
	req := &resourcev1.DeleteResourceRequest{Name: victim.name.Name, Uid: project.GetUid(), RequestId: uuid.NewString()}
	var answer *resourcev1.DeleteResourceResponse
	require.NoError(t, patiently(ctx, func() (err error) {
		answer, err = resources.DeleteResource(ctx, req)
		return err
	}), "nothing outside of the project blocks it")
	require.Empty(t, answer.GetUnaskedDeployments())
	t.Logf("the delete was answered after %s", since(began))
	require.NoError(t, p.Client.WaitGone(ctx, victim.name.String(), project.GetUid(), nil))
	t.Logf("the project was gone after %s", since(began))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Equal(c, before-len(gone), sum(c, pools, allShadowsSQL))
	}, wait.Limit, 50*time.Millisecond)
	t.Logf("%d resources were gone after %s", len(gone), since(began))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Zero(c, sum(c, pools, outstandingSQL))
		require.Empty(c, harness.AuditDatabases(c, pools))
	}, wait.Limit, 50*time.Millisecond)
	f.check(p.Client, gone)
}

const (
	allShadowsSQL  = "SELECT count(*) FROM dbcontroller.shadow"
	outstandingSQL = `SELECT (SELECT count(*) FROM dbcontroller.work) + (SELECT count(*) FROM dbcontroller.notice)`
)

// sum adds the results of a query in all databases.
func sum(t require.TestingT, pools map[schema.DeploymentID]*pgxpool.Pool, sql string) (all int) {
	for _, pool := range pools {
		var n int
		require.NoError(t, pool.QueryRow(context.Background(), sql).Scan(&n))
		all += n
	}
	return all
}

func since(began time.Time) time.Duration { return time.Since(began).Round(10 * time.Millisecond) }

// readFleet reads the example as its README does: all files together.
func readFleet(t *testing.T) (string, *schema.File) {
	t.Helper()
	paths, err := filepath.Glob("../docs/examples/fleet/*.yaml")
	require.NoError(t, err)
	text := ""
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		text += "---\n" + string(raw)
	}
	files, err := schema.ParseFile("fleet", strings.NewReader(text))
	require.NoError(t, err)
	return text, files
}

// fleet is the example company: its kinds, and random resources of them. Project is the only kind that it
// treats specially.
type fleet struct {
	*require.Assertions
	t      *testing.T
	files  *schema.File
	byID   map[schema.KindID]*fleetKind
	kinds  []*fleetKind     // targets before holders
	all    []*fleetResource // of the kinds in their order
	random *rand.Rand
}

type fleetKind struct {
	*schema.Kind
	model      *schema.KindModel
	order      int        // from 1; 0 while it has none
	parent     *fleetKind // nil at the top
	references []fleetReference
	bound      bool                     // its resources belong to a project and are deleted with it
	resources  map[int][]*fleetResource // by project
}

type fleetReference struct {
	*schema.Reference
	targets []*fleetKind
}

type fleetResource struct {
	kind    *fleetKind
	name    schema.FullName
	project int
	number  int // among the resources of its kind
	body    map[string]any
}

func newFleet(t *testing.T, files *schema.File) *fleet {
	t.Helper()
	f := &fleet{
		Assertions: require.New(t), t: t, files: files, byID: map[schema.KindID]*fleetKind{},
		random: rand.New(rand.NewPCG(fleetSeed, 0)),
	}
	var kinds []*fleetKind
	for _, d := range files.Services {
		model, err := schema.NewModel(d.ServiceVersion, files.Services)
		f.NoError(err)
		for i := range d.Kinds {
			k := &fleetKind{Kind: &d.Kinds[i], resources: map[int][]*fleetResource{}}
			k.model, err = model.Kind(k.Name)
			f.NoError(err)
			f.byID[k.model.ID] = k
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		for _, p := range k.Parents {
			k.parent = f.kindOf(k, p.Kind)
		}
		for i := range k.References {
			r := fleetReference{Reference: &k.References[i]}
			for _, target := range r.Targets {
				r.targets = append(r.targets, f.kindOf(k, target))
			}
			k.references = append(k.references, r)
		}
	}
	f.sort(kinds)
	return f
}

// kindOf returns the kind of a name in a descriptor.
func (f *fleet) kindOf(holder *fleetKind, name string) *fleetKind {
	of, kind, foreign := strings.Cut(name, "/")
	if !foreign {
		of, kind = holder.model.ID.Service, name
	}
	k := f.byID[schema.KindID{Service: of, Kind: kind}]
	f.NotNil(k, name)
	return k
}

// sort puts targets before holders. In a cycle of kinds, the one with the fewest missing targets comes first,
// never before a required target; its other references are filled in late.
func (f *fleet) sort(kinds []*fleetKind) {
	for len(kinds) > 0 {
		best, fewest := -1, 0
		for i, k := range kinds {
			if needed, all := k.missing(); needed == 0 && (best < 0 || all < fewest) {
				best, fewest = i, all
			}
		}
		f.GreaterOrEqual(best, 0, "kinds that cannot be without one another")
		k := kinds[best]
		kinds = slices.Delete(kinds, best, best+1)
		f.kinds = append(f.kinds, k)
		k.order = len(f.kinds)
		k.bound = k.model.ID == fleetProject || k.parent != nil && k.parent.bound && k.Parents[0].Behaviour.Cascades()
		for _, r := range k.references {
			k.bound = k.bound || r.Behaviour.Cascades() && r.targets[0].bound
		}
	}
}

func (k *fleetKind) missing() (needed, all int) {
	if k.parent != nil && k.parent.order == 0 {
		needed++
	}
	for _, r := range k.references {
		for _, target := range r.targets {
			if target.order == 0 && target != k {
				all++
				if r.Behaviour.Cascades() {
					needed++
				}
			}
		}
	}
	return needed, all + needed
}

// populate creates resources, more of a kind the deeper it is, and links them.
func (f *fleet) populate() {
	weight := func(k *fleetKind) int { return []int{0, 1, 7, 12}[strings.Count(k.Patterns[0], "{")] }
	all, weights := fleetResources(f.t), 0
	for _, k := range f.kinds {
		weights += weight(k)
	}
	for i, k := range f.kinds {
		n := all * weight(k) / weights
		switch {
		case k.model.ID == fleetProject:
			n = fleetProjects
		case i == len(f.kinds)-1:
			n = all - len(f.all)
		}
		for number := range n {
			r := f.invent(k, number)
			k.resources[r.project] = append(k.resources[r.project], r)
			f.all = append(f.all, r)
		}
	}
	f.link(false)
}

// invent creates a resource below a random parent, or in a random region when it has none.
func (f *fleet) invent(k *fleetKind, number int) *fleetResource {
	r := &fleetResource{
		kind: k, project: shared, number: number,
		body: map[string]any{"displayName": fmt.Sprint(k.Name, " ", number)},
	}
	if k.bound {
		r.project = number % fleetProjects
	}
	segments := strings.Split(k.Patterns[0], "/")
	r.name = schema.FullName{
		Deployment: schema.DeploymentID{
			Service: k.model.ID.Service,
			Region:  f.files.Regions[f.random.IntN(len(f.files.Regions))],
		},
		Name: fmt.Sprint(segments[len(segments)-2], "/", strings.ToLower(k.Name), "-", number),
	}
	if k.parent != nil {
		parents := k.parent.resources[shared]
		if k.parent.bound {
			parents = k.parent.resources[r.project]
		}
		f.NotEmpty(parents, "parents of %s", k.model.ID)
		parent := parents[f.random.IntN(len(parents))]
		r.name.Deployment.Region = parent.name.Deployment.Region
		r.name.Name = parent.name.Name + "/" + r.name.Name
	}
	return r
}

// link fills in the fields, or the late ones, whose targets come after their holders. It returns the changed
// resources.
func (f *fleet) link(late bool) (linked []*fleetResource) {
	for _, r := range f.all {
		changed := false
		for _, ref := range r.kind.references {
			after := slices.ContainsFunc(ref.targets, func(k *fleetKind) bool { return k.order >= r.kind.order })
			// Some fields stay empty, but none by which a resource belongs to its project.
			if after == late && (ref.Behaviour.Cascades() || f.random.IntN(8) > 0) {
				f.fill(r.body, strings.Split(ref.Path, "."), "", func() any { return f.target(r, ref) })
				changed = true
			}
		}
		if changed {
			linked = append(linked, r)
		}
	}
	return linked
}

// target returns a resource that r may refer to, or nil when there is none. Blocking and cascading references
// stay inside the project; others leave it sometimes.
func (f *fleet) target(r *fleetResource, ref fleetReference) any {
	k := ref.targets[f.random.IntN(len(ref.targets))]
	project := shared
	if k.bound {
		project = r.project
		loose := ref.Behaviour.Unsets() || ref.Behaviour == schema.AllowDangling
		if loose && (project == shared || f.random.IntN(10) == 0) {
			project = f.random.IntN(fleetProjects)
		}
	}
	candidates := k.resources[project]
	if k == r.kind { // earlier ones alone, so that none is its own successor
		n, _ := slices.BinarySearchFunc(candidates, r.number, func(c *fleetResource, number int) int {
			return c.number - number
		})
		candidates = candidates[:n]
	}
	if len(candidates) == 0 {
		return nil
	}
	chosen := candidates[f.random.IntN(len(candidates))]
	if chosen.name.Deployment.Region != r.name.Deployment.Region { // the own region is the likelier one
		chosen = candidates[f.random.IntN(len(candidates))]
	}
	if chosen.name.Deployment == r.name.Deployment && f.random.IntN(2) == 0 {
		return chosen.name.Name
	}
	return chosen.name.String()
}

// fill sets values at a path, and keeps existing ones. A star of a path matches a list or a map; all
// resources use the same one.
func (f *fleet) fill(at any, path []string, above string, value func() any) any {
	if len(path) == 0 {
		return value()
	}
	fields := path[:1]
	if path[0] == "*" {
		n := 1 + f.random.IntN(3)
		if len(above)%2 == 0 {
			list, _ := at.([]any)
			list = append(list, make([]any, max(0, n-len(list)))...)
			for i := range n {
				list[i] = f.fill(list[i], path[1:], "*", value)
			}
			return slices.DeleteFunc(list, func(v any) bool { return v == nil })
		}
		fields = []string{"first", "second", "third"}[:n]
	}
	m, ok := at.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	for _, field := range fields {
		if v := f.fill(m[field], path[1:], path[0], value); v != nil {
			m[field] = v
		}
	}
	return m
}

// load puts all resources, kind by kind, and then once more those with references to later kinds.
func (f *fleet) load(c *client.Client) {
	for rest := f.all; len(rest) > 0; {
		n, _ := slices.BinarySearchFunc(rest, rest[0].kind.order+1, func(r *fleetResource, order int) int {
			return r.kind.order - order
		})
		f.put(c, rest[:n])
		rest = rest[n:]
	}
	f.put(c, f.link(true))
}

// put puts independent resources in batches, in all deployments concurrently.
func (f *fleet) put(c *client.Client, resources []*fleetResource) {
	by := map[schema.DeploymentID][]*fleetResource{}
	for _, r := range resources {
		by[r.name.Deployment] = append(by[r.name.Deployment], r)
	}
	g, ctx := errgroup.WithContext(f.t.Context())
	g.SetLimit(8)
	for id, of := range by {
		for batch := range slices.Chunk(of, service.MaxBatch) {
			request := uuid.NewString() // the same for each repetition, as docs/guarantees.md says
			g.Go(func() error { return patiently(ctx, func() error { return putBatch(ctx, c, id, batch, request) }) })
		}
	}
	f.NoError(g.Wait())
}

func putBatch(ctx context.Context, c *client.Client, id schema.DeploymentID, batch []*fleetResource,
	request string,
) error {
	resources, err := c.Resources(ctx, id)
	if err != nil {
		return err
	}
	req := &resourcev1.BatchWriteResourcesRequest{RequestId: request}
	for _, r := range batch {
		body, err := structpb.NewStruct(r.body)
		if err != nil {
			return err
		}
		req.Writes = append(req.Writes, client.PutOf(&resourcev1.Resource{Name: r.name.Name, Body: body}))
	}
	_, err = resources.BatchWriteResources(ctx, req)
	return err
}

// references derives the references of a body with the model, independent of fill.
func (f *fleet) references(r *fleetResource, body map[string]any) []schema.Found {
	found, err := r.kind.model.References(r.name.Deployment, r.name.Name, body)
	f.NoError(err)
	return found
}

// closure returns the resources that have to be deleted with a resource, and checks the example: they are
// exactly the project's resources, and include all blockers.
func (f *fleet) closure(victim *fleetResource) map[schema.FullName]bool {
	type holder struct {
		*fleetResource
		behaviour schema.Behaviour
	}
	holders, n := map[schema.FullName][]holder{}, 0
	for _, r := range f.all {
		for _, ref := range f.references(r, r.body) {
			holders[ref.Target] = append(holders[ref.Target], holder{r, ref.Behaviour})
			n++
		}
	}
	gone := map[schema.FullName]bool{victim.name: true}
	for queue := []schema.FullName{victim.name}; len(queue) > 0; queue = queue[1:] {
		for _, h := range holders[queue[0]] {
			if h.behaviour.Cascades() && !gone[h.name] {
				gone[h.name] = true
				queue = append(queue, h.name)
			}
		}
	}
	excused, outside, deployments := 0, 0, map[schema.DeploymentID]bool{}
	for name := range gone {
		deployments[name.Deployment] = true
		for _, h := range holders[name] {
			if !gone[h.name] {
				outside++
				f.NotEqual(schema.Block, h.behaviour, "%s blocks %s from outside", h.name, name)
			} else if h.behaviour == schema.Block {
				excused++
			}
		}
	}
	for _, r := range f.all {
		f.Equal(r.project == victim.project, gone[r.name], "%s is deleted with its project, and with no other", r.name)
	}
	f.NotZero(excused, "some deleted resources block others that are deleted")
	f.NotZero(outside, "some remaining resources refer to deleted ones")
	f.Greater(len(deployments), len(f.files.Deployments)*3/4, "a project has something nearly everywhere")
	f.t.Logf(
		"%d references; to the %d resources deleted in %d deployments, %d from outside, and %d blocking ones from inside",
		n, len(gone), len(deployments), outside, excused)
	return gone
}

// check verifies that exactly the expected resources are gone, and that exactly the expected values are unset
// in the others.
func (f *fleet) check(c *client.Client, gone map[schema.FullName]bool) {
	there := map[schema.FullName]map[string]any{}
	for _, d := range f.files.Deployments {
		f.NoError(direct.Each(f.t.Context(), c, d.DeploymentID, client.Query{}, func(r *resourcev1.Resource) error {
			there[schema.FullName{Deployment: d.DeploymentID, Name: r.GetName()}] = r.GetBody().AsMap()
			return nil
		}))
	}
	f.Len(there, len(f.all)-len(gone))
	unset := 0
	for _, r := range f.all {
		if gone[r.name] {
			f.Nil(there[r.name], "%s is still there", r.name)
			continue
		}
		for _, ref := range r.kind.references {
			if path, err := schema.ParsePath(ref.Path); ref.Behaviour.Unsets() && err == nil {
				unset += path.Unset(r.body, func(value string) bool {
					name, err := schema.ResolveName(r.name.Deployment, value)
					return err == nil && gone[name]
				})
			}
		}
		f.Equal(r.body, there[r.name], "%s of project %d", r.name, r.project)
		for _, ref := range f.references(r, there[r.name]) {
			f.True(!gone[ref.Target] || ref.Behaviour == schema.AllowDangling, r.name)
		}
	}
	f.NotZero(unset, "some remaining resources lost a reference")
	f.t.Logf("%d values were unset in the %d resources that stay", unset, len(there))
}
