package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/cmd/db-controller/resources"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// patience bounds each wait of a scenario, to end a wait that hangs. Slowness is no failure: each step shows
// its time, and a busy machine takes many times as long as an idle one.
const patience = playground.Patience

// step is one step of a scenario: one action, and the fields that belong to it.
type step struct {
	Say     string    `yaml:"say"`
	Put     *putStep  `yaml:"put"`
	Bulk    *bulkStep `yaml:"bulk"`
	Delete  string    `yaml:"delete"`
	Refused string    `yaml:"refused"` // with put and delete: a part of the expected error
	Gone    []string  `yaml:"gone"`
	Without *struct {
		Name  string `yaml:"name"`
		Field string `yaml:"field"`
	} `yaml:"without"`
	Stop   string      `yaml:"stop"`
	Start  string      `yaml:"start"`
	Kill   string      `yaml:"kill"`
	Switch *switchStep `yaml:"switch"`
	// with kill and switch: after a cascade has removed some resources of this kind, and not all
	Midway string `yaml:"midway"`
	Plan   string `yaml:"plan"`
	Check  string `yaml:"check"`
	// On the tables of applications (adopt.go).
	SQL     *sqlStep     `yaml:"sql"`
	Command *commandStep `yaml:"command"`
}

type putStep struct {
	Name   string         `yaml:"name"`
	Body   map[string]any `yaml:"body"`
	Owners []string       `yaml:"owners"` // KIND=NAME
}

type switchStep struct {
	Deployment string `yaml:"deployment"`
	Version    string `yaml:"version"`
}

type bulkStep struct {
	Name  string         `yaml:"name"` // followed by 1, 2, ...
	Count int            `yaml:"count"`
	Body  map[string]any `yaml:"body"`
}

type scenario struct {
	steps []step
	out   io.Writer
	p     *playground.Playground
	c     *client.Client
	// deleted is the time of the last delete, uids the uid of each deleted resource.
	deleted time.Time
	uids    map[string]string
}

func readScenario(name string) (*scenario, error) {
	raw, err := readExample(name)
	if err != nil {
		return nil, err
	}
	s := &scenario{uids: map[string]string{}}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&s.steps); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", name, err)
	}
	return s, nil
}

func (s *scenario) run(ctx context.Context, out io.Writer, p *playground.Playground, c *client.Client) error {
	s.out, s.p, s.c = out, p, c
	if _, err := c.Environment(ctx); err != nil { // cached for steps after the scenario stops the registry
		return err
	}
	for i, st := range s.steps {
		if err := s.step(ctx, st); err != nil {
			return fmt.Errorf("step %d failed: %w", i+1, err)
		}
	}
	return nil
}

func (s *scenario) print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *scenario) step(ctx context.Context, st step) error {
	switch {
	case st.Say != "":
		s.print("\n# %s", st.Say)
	case st.Put != nil:
		return s.expect(st.Refused, "put", st.Put.Name, repeated(ctx, func() error { return s.put(ctx, st.Put) }))
	case st.Bulk != nil:
		return s.bulk(ctx, st.Bulk)
	case st.Delete != "":
		return s.delete(ctx, st)
	case len(st.Gone) > 0:
		return s.gone(ctx, st.Gone)
	case st.Without != nil:
		return s.without(ctx, st.Without.Name, st.Without.Field)
	case st.Switch != nil:
		return s.switchVersion(ctx, st)
	case st.Plan != "":
		return s.plan(ctx, st.Plan)
	case st.Check == "settled":
		return s.settled(ctx)
	case st.Stop != "" || st.Start != "" || st.Kill != "":
		return s.process(ctx, st)
	case st.Check == "dangling":
		return s.dangling(ctx)
	case st.SQL != nil:
		return s.sql(ctx, st.SQL)
	case st.Command != nil:
		return s.command(ctx, st.Command)
	default:
		return errors.New("the step has no known field")
	}
	return nil
}

// repeated retries a call while it returns UNAVAILABLE, as clients should: deployments that have just started
// do not know one another's addresses yet, and on a busy machine one may answer too late.
func repeated(ctx context.Context, call func() error) error {
	for began := time.Now(); ; {
		err := call()
		if status.Code(err) != codes.Unavailable || time.Since(began) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// expect prints the result of a write, and returns an error when the scenario expects another one.
func (s *scenario) expect(refused, verb, name string, err error) error {
	switch {
	case refused == "" && err != nil:
		return fmt.Errorf("%s %s: %w", verb, name, cli.Plain(err))
	case refused == "":
		s.print("  %-7s %s", verb, name)
	case err == nil:
		return fmt.Errorf("%s %s: accepted, although the scenario expects a refusal (%s)", verb, name, refused)
	case !strings.Contains(err.Error(), refused):
		return fmt.Errorf("%s %s: the scenario expects a refusal with %q, but: %w", verb, name, refused, cli.Plain(err))
	default:
		s.print("  %-7s %s\n  refused %s", verb, name, cli.Plain(err))
	}
	return nil
}

func (s *scenario) put(ctx context.Context, p *putStep) error {
	name, calls, err := direct.Named(ctx, s.c, p.Name)
	if err != nil {
		return err
	}
	body, err := structpb.NewStruct(p.Body)
	if err != nil {
		return err
	}
	owners, err := resources.ReadOwners(p.Owners)
	if err != nil {
		return err
	}
	r, err := calls.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
		Name: name.Name,
		Body: body, OwnerReferences: owners,
	}})
	s.uids[p.Name] = r.GetUid()
	return err
}

func (s *scenario) bulk(ctx context.Context, b *bulkStep) error {
	began := time.Now()
	first, err := schema.ParseFullName(b.Name + "1")
	if err != nil {
		return err
	}
	if err := PutMany(ctx, s.c, first.Deployment, strings.TrimSuffix(first.Name, "1"), b.Count, b.Body); err != nil {
		return fmt.Errorf("put %s1 to %d: %w", b.Name, b.Count, cli.Plain(err))
	}
	s.print("  put     %s1 … %d   in %s", b.Name, b.Count, since(began))
	return nil
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Millisecond) }

func (s *scenario) delete(ctx context.Context, st step) error {
	name, resources, err := direct.Named(ctx, s.c, st.Delete)
	if err != nil {
		return err
	}
	req := &resourcev1.DeleteResourceRequest{Name: name.Name, Uid: s.uids[st.Delete], RequestId: uuid.NewString()}
	err = repeated(ctx, func() error {
		s.deleted = time.Now()
		_, err := resources.DeleteResource(ctx, req)
		return err
	})
	return s.expect(st.Refused, "delete", st.Delete, err)
}

func (s *scenario) gone(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, full := range names {
		if err := s.c.WaitGone(ctx, full, s.uidOf(ctx, full), nil); err != nil {
			return fmt.Errorf("%s still exists: %w", full, cli.Plain(err))
		}
		s.print("  gone    %s   after %s", full, since(s.deleted))
	}
	return nil
}

// uidOf returns the uid of the resource to wait for: from the last put of the name, else the current uid.
func (s *scenario) uidOf(ctx context.Context, full string) string {
	if uid := s.uids[full]; uid != "" {
		return uid
	}
	if name, resources, err := direct.Named(ctx, s.c, full); err == nil {
		if r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name}); err == nil {
			return r.GetUid()
		}
	}
	return ""
}

func (s *scenario) without(ctx context.Context, full, field string) error {
	name, resources, err := direct.Named(ctx, s.c, full)
	if err != nil {
		return err
	}
	path, err := schema.ParsePath(field)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		r, err := resources.GetResource(ctx, &resourcev1.GetResourceRequest{Name: name.Name})
		if err != nil {
			return cli.Plain(err)
		}
		values, err := path.Values(r.GetBody().AsMap())
		if err == nil && len(values) == 0 {
			s.print("  unset   %s: %s   after %s", full, field, since(s.deleted))
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s still has %s: %v", full, field, values)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (s *scenario) process(ctx context.Context, st step) error {
	name := st.Stop + st.Start + st.Kill
	process := s.p.Registry
	if name != "registry" {
		d, err := s.deployment(name)
		if err != nil {
			return err
		}
		process = d.Process
		if err := s.midway(ctx, d, st.Midway); err != nil {
			return err
		}
	}
	switch {
	case st.Stop != "":
		s.print("  stop    %s", name)
		return process.Stop()
	case st.Kill != "":
		s.print("  kill -9 %s", name)
		return process.Kill()
	}
	began := time.Now()
	if err := process.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := process.WaitReady(ctx)
	s.print("  start   %s   ready in %s", name, since(began))
	return err
}

func (s *scenario) deployment(name string) (*playground.Deployment, error) {
	id, err := schema.ParseDeploymentID(name)
	if err != nil {
		return nil, err
	}
	d := s.p.Deployments[id]
	if d == nil {
		return nil, fmt.Errorf("no deployment %s runs here", id)
	}
	return d, nil
}

const countKindSQL = `
SELECT count(*) FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id WHERE k.kind = $1`

// midway waits until a cascade has removed some resources of a kind and not all. It reads the database, since
// the moment is short.
func (s *scenario) midway(ctx context.Context, d *playground.Deployment, kind string) error {
	if kind == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, d.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	total := 0
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		var n int
		if err := conn.QueryRow(ctx, countKindSQL, kind).Scan(&n); err != nil {
			return err
		}
		if total = max(total, n); n < total {
			s.print("  midway  %d of %d are gone", total-n, total)
			return nil
		}
	}
	return fmt.Errorf("the cascade over %s did not begin", kind)
}

func (s *scenario) switchVersion(ctx context.Context, st step) error {
	d, err := s.deployment(st.Switch.Deployment)
	if err != nil {
		return err
	}
	if err := s.midway(ctx, d, st.Midway); err != nil {
		return err
	}
	id, err := schema.ParseDeploymentID(st.Switch.Deployment)
	if err != nil {
		return err
	}
	if _, err := direct.SetVersion(ctx, s.c, id, st.Switch.Version); err != nil {
		return cli.Plain(err)
	}
	s.print("  switch  %s to %s", st.Switch.Deployment, st.Switch.Version)
	return nil
}

func (s *scenario) plan(ctx context.Context, full string) error {
	name, calls, err := direct.Named(ctx, s.c, full)
	if err != nil {
		return err
	}
	plan, err := calls.PlanDeletion(ctx, &resourcev1.PlanDeletionRequest{Name: name.Name})
	if err != nil {
		return cli.Plain(err)
	}
	s.print("  plan    %s", full)
	resources.WritePlan(&indented{s.out}, plan)
	return nil
}

// indented indents lines like the steps of the scenario.
type indented struct{ out io.Writer }

func (w *indented) Write(line []byte) (int, error) {
	_, err := fmt.Fprintf(w.out, "          %s", line)
	return len(line), err
}

// settled waits until every deployment runs its registered version, and no work is outstanding.
func (s *scenario) settled(ctx context.Context) error {
	began := time.Now()
	answer, err := s.c.Registry().GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	if err != nil {
		return cli.Plain(err)
	}
	for _, d := range answer.GetEnvironment().GetDeployments() {
		admin, err := s.c.Admin(ctx, schema.DeploymentID{Service: d.GetService(), Region: d.GetRegion()})
		if err != nil {
			return err
		}
		for {
			status, err := admin.Status(ctx, &adminv1.StatusRequest{})
			if err == nil && status.GetVersion() == d.GetVersion() && len(status.GetOutstanding()) == 0 {
				break
			}
			if time.Since(began) > patience {
				return errors.Join(fmt.Errorf("%s/%s still has outstanding work: %v", d.GetService(), d.GetRegion(),
					status), err)
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	s.print("  settled everywhere, after %s", since(began))
	return nil
}

// dangling lists all resources of all deployments, and checks that the targets of their references exist.
func (s *scenario) dangling(ctx context.Context) error {
	// versions may have been switched
	answer, err := s.c.Registry().GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	if err != nil {
		return cli.Plain(err)
	}
	env := wire.Environment(answer.GetEnvironment())
	there := map[string]bool{}
	type reference struct{ holder, path, target string }
	var references []reference
	for _, d := range env.Deployments {
		model, err := env.Model(d.DeploymentID)
		if err != nil {
			return err
		}
		err = direct.Each(ctx, s.c, d.DeploymentID, client.Query{}, func(r *resourcev1.Resource) error {
			full := schema.FullName{Deployment: d.DeploymentID, Name: r.GetName()}.String()
			there[full] = true
			kind, err := model.Kind(r.GetKind())
			if err != nil {
				return err
			}
			found, err := kind.References(d.DeploymentID, r.GetName(), r.GetBody().AsMap())
			for _, f := range found {
				references = append(references, reference{full, f.Path, f.Target.String()})
			}
			return err
		})
		if err != nil {
			return cli.Plain(err)
		}
	}
	var lost []string
	for _, r := range references {
		if !there[r.target] {
			lost = append(lost, fmt.Sprintf("%s: %s refers to %s, which does not exist", r.holder, r.path, r.target))
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d references dangle:\n%s", len(lost), strings.Join(lost, "\n"))
	}
	s.print("  none    of %d references of %d resources in %d deployments", len(references), len(there),
		len(env.Deployments))
	return nil
}

func sortedKeys(p *playground.Playground) []schema.DeploymentID {
	var ids []schema.DeploymentID
	for id := range p.Deployments {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b schema.DeploymentID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}
