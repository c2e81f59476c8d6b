package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/test/wait"
)

// browser is a headless Chromium; errors has the reports of its pages: exceptions, refused content, failed
// requests.
type browser struct {
	*testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string // guarded by mu
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("chromium is not installed; make browser installs it and runs these tests")
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, wait.Limit)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx}
	chromedp.ListenTarget(ctx, b.hear)
	return b
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, e.ExceptionDetails.Error())
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.LevelError {
			b.errors = append(b.errors, e.Entry.Text)
		}
	}
}

func (b *browser) do(actions ...chromedp.Action) {
	b.Helper()
	require.NoError(b, chromedp.Run(b.ctx, actions...))
}

// is waits until an expression is true.
func (b *browser) is(expression string) {
	b.Helper()
	require.NoError(b, chromedp.Run(b.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(20*time.Second))),
		expression)
}

func (b *browser) number(expression string) (n float64) {
	b.Helper()
	b.do(chromedp.Evaluate(expression, &n))
	return n
}

// look opens a page of the console, keeps pictures of it, and checks the rules for every page.
func (b *browser) look(name, hash, says string) {
	b.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", hash), nil))
	b.is(fmt.Sprintf("document.querySelector('main').innerText.includes(%q)", says))
	for _, form := range []struct {
		name   string
		width  int64
		scheme string
	}{{"light", 1280, "light"}, {"dark", 1280, "dark"}, {"phone", 390, "light"}} {
		var picture []byte
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{
			Name:  "prefers-color-scheme",
			Value: form.scheme,
		}}),
			chromedp.EmulateViewport(form.width, 900), chromedp.Evaluate("scrollTo(0, 0)", nil),
			chromedp.Sleep(50*time.Millisecond), chromedp.FullScreenshot(&picture, 100))
		require.NoError(b, os.WriteFile(filepath.Join(b.ArtifactDir(), name+"-"+form.name+".png"), picture, 0o600))
		require.LessOrEqual(b, b.number("document.documentElement.scrollWidth - innerWidth"), 0.0,
			"%s %s: only the map scrolls to the side", name, form.name)
		// no column is cut off
		b.is("[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth)")
	}
	b.do(chromedp.EmulateViewport(1280, 900))
	require.Zero(b,
		b.number("[...document.querySelectorAll('[data-state] > i')].filter((e) => !e.textContent.trim()).length"),
		"%s: a state has a sign beside its colour", name)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b, b.errors, name)
}

func open(t *testing.T, f *fleet) *browser {
	t.Helper()
	return openConsole(t, NewHandler(f))
}

func openConsole(t *testing.T, h http.Handler) *browser {
	t.Helper()
	b := newBrowser(t)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(server.URL))
	b.is("document.getElementById('live').textContent.includes('live')")
	return b
}

// The kinds that run and their references, as a picture that scrolls by itself and as a table.
func TestKindsInABrowser(t *testing.T) {
	b := open(t, newFleet(2, 2))
	b.look("kinds", "#/kinds", "The versions that run.")
	b.is("document.querySelector('nav a[aria-current]').textContent === 'Kinds'")
	b.is("document.querySelector('.kinds img').naturalWidth > 200")
	b.is(
		"[...document.querySelectorAll('tbody tr')].some((r) => /devices.example.com.*iam.example.com/s.test(r.innerText))")
}

// Who changed the environment, for operators; others are told how to see it.
func TestChangesInABrowser(t *testing.T) {
	b := openConsole(t, NewHandler(withRegistry{newFleet(2, 2)}))
	b.look("changes", "#/changes", "operator/olga")
	b.is(
		"document.querySelector('main').innerText.includes('user/ann loses delete on devices.example.com/Device at and below projects/acme')")
	b.is("document.querySelector('nav a[aria-current]').textContent === 'Changes'")
	other := open(t, newFleet(1, 1))
	other.do(chromedp.Evaluate(`location.hash = "#/changes"`, nil))
	other.is("document.querySelector('main').innerText.includes('operators see who changed the environment')")
}

// Every page, when all is well, with a region away, and with 200 resources stuck.
func TestPagesInABrowser(t *testing.T) {
	resource := "#/resource/" + strings.ReplaceAll(root, "/", "%2F")
	deployment := "#/deployment/iam.example.com%2Fus-west2"
	dark, stuck := newFleet(3, 3), newFleet(3, 3)
	dark.darken("eastus2")
	stuck.block(west, 200)
	for _, state := range []struct {
		name  string
		fleet *fleet
		says  map[string]string // by page
	}{
		{"healthy", newFleet(3, 3), map[string]string{
			"#/": "at rest", "#/deletions": "No deletion has resources",
			"#/stuck": "Nothing waits for long.", deployment: "host-2:7001", resource: "It waits for nothing.",
		}},
		{"dark", dark, map[string]string{
			"#/": "no answer", "#/deletions": "No deletion is known to have resources",
			"#/stuck": "cannot be reached", deployment: "Late: the watch", resource: "cannot be reached",
		}},
		{"stuck", stuck, map[string]string{
			"#/":          "Running deletions",
			"#/deletions": "60 of 960 removed, 4 of 120 references unset", "#/stuck": "200 resources in DELETING",
			deployment: "about 1 min 35 s left", resource: "BLOCKED",
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			b := open(t, state.fleet)
			for page, says := range state.says {
				name, _, _ := strings.Cut(strings.TrimPrefix(page, "#/"), "/")
				if name == "" {
					name = "map"
				}
				b.look(state.name+"-"+name, page, says)
			}
		})
	}
}

// A region that cannot be reached is one note, in words that are right from the first second on. Who waits
// for it alone waits. Every other failure keeps its note: of another deployment, of another reason, and of a
// deployment that refuses to answer.
func TestADarkRegionHidesNoOtherFailure(t *testing.T) {
	f := newFleet(3, 3)
	f.darken("eastus2")
	failed := func(at schema.DeploymentID, of, text string) {
		f.change(at, func(a *answers) {
			a.status.Failures = append(a.status.Failures, &adminv1.Failure{
				Handler: "release", Deployment: of,
				Error: text, Time: timestamppb.New(time.Now().Add(time.Hour)),
			})
		})
	}
	third := schema.DeploymentID{Service: "service-2.example.com", Region: "us-west2"}
	failed(third, "iam.example.com/us-west2", "the disk is full")
	failed(west, "devices.example.com/eastus2", "it runs over another database")
	f.change(schema.DeploymentID{Service: "iam.example.com", Region: "region-2"}, func(a *answers) {
		a.status.Epoch.Unconfirmed = []string{"service-2.example.com/eastus2", "devices.example.com/eastus2"}
	})
	f.change(schema.DeploymentID{Service: "service-2.example.com", Region: "region-2"}, func(a *answers) {
		a.refuses = status.Error(codes.PermissionDenied, "user/ann may not call Status")
	})
	b := open(t, f)
	b.is("document.querySelectorAll('.cell').length === 9 && document.querySelectorAll('.notes li').length === 5")
	var notes []string
	b.do(chromedp.Evaluate(
		"[...document.querySelectorAll('.notes li')].map((e) => e.innerText.replaceAll(/\\s+/g, ' '))", &notes))
	require.Regexp(t,
		`^✕ ?eastus2 ?No deployment of this region can be reached: devices.example.com, iam.example.com, service-2.example.com. The region (does not answer|has not answered for at least \d+ s)\.$`, notes[0])
	require.Regexp(t,
		`service-2.example.com/region-2 ?It shows no status: PermissionDenied: user/ann may not call Status`, notes[1])
	require.Regexp(t,
		`iam.example.com/region-2 ?Nothing is deleted until devices.example.com/eastus2, service-2.example.com/eastus2 confirmed`, notes[2])
	require.Regexp(t,
		`iam.example.com/us-west2 ?release for devices.example.com/eastus2: it runs over another database`, notes[3])
	require.Regexp(t, `service-2.example.com/us-west2 ?release for iam.example.com/us-west2: the disk is full`,
		notes[4])
	state := func(of string) (s string) {
		b.do(chromedp.Evaluate(fmt.Sprintf("document.querySelector('[data-deployment=%q]').dataset.state", of), &s))
		return s
	}
	for of, want := range map[string]string{
		"devices.example.com/eastus2": "away", "service-2.example.com/region-2": "away",
		"iam.example.com/region-2": "recovering", "iam.example.com/us-west2": "failing",
		"service-2.example.com/us-west2": "failing", "devices.example.com/us-west2": "waits",
		"devices.example.com/region-2": "waits",
	} {
		require.Equal(t, want, state(of), of)
	}
	b.is("document.querySelector('.notes li').innerText.match(/has not answered for at least [2-9]/)")
	require.Zero(t,
		b.number(
			"[...document.querySelectorAll('.cell')].filter((e) => getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)').length"), "a line behind a cell is not seen through it")
	b.look("dark-others", "#/", "the disk is full")
	b.look("dark-waits", "#/deployment/devices.example.com%2Fus-west2", "waits")
	b.do(chromedp.Evaluate("location.hash = '#/'", nil))
	b.is("document.querySelector('.notes li b')")
	for id := range f.at {
		f.change(id, func(a *answers) { a.dark = false })
	}
	b.is("!document.querySelector('.notes li b')") // the region has answered
	for id := range f.at {
		f.change(id, func(a *answers) { a.dark = id.Region == "eastus2" })
	}
	b.is("document.querySelector('.notes li b')?.nextElementSibling.innerText.match(/has not answered for \\d+ s/)")
}

// A deployment that cannot work is not at rest: one that is not ready, one whose processes have lost their
// leases, and one in which a deletion does not come on. A pause is none of these.
func TestADeploymentThatCannotWorkIsNotAtRest(t *testing.T) {
	f := newFleet(2, 2)
	at := func(service, region string) schema.DeploymentID {
		return schema.DeploymentID{Service: service + ".example.com", Region: region}
	}
	f.change(at("iam", "us-west2"), func(a *answers) {
		a.status.NotReady = []*adminv1.StatusResponse_NotReady{{
			Check:  "schema",
			Reason: "its user lacks DELETE on dbcontroller.attachment",
		}}
	})
	f.change(at("iam", "eastus2"), func(a *answers) {
		a.status.Processes[0].ExpireTime = timestamppb.New(time.Now().Add(-39 * time.Second))
	})
	f.change(at("devices", "us-west2"), func(a *answers) {
		long := timestamppb.New(time.Now().Add(-11 * time.Minute))
		a.status.Deletions = []*adminv1.Deletion{{
			Id: "d", Root: root, Found: 9, Removed: 8, StartTime: long,
			UpdateTime: long,
		}}
	})
	f.change(at("devices", "eastus2"), func(a *answers) {
		a.status.Pauses = []*adminv1.Pause{{
			Of: "devices.example.com/eastus2", Handler: "SUBSCRIBED_DELETING",
			Reason: "maintenance", Actor: "operator/eve", Time: timestamppb.Now(),
		}}
	})
	b := open(t, f)
	b.is("document.querySelectorAll('.cell').length === 4 && document.querySelectorAll('.notes li').length === 4")
	for of, want := range map[string]string{
		"iam.example.com/us-west2": "failing", "iam.example.com/eastus2": "failing",
		"devices.example.com/us-west2": "overdue", "devices.example.com/eastus2": "paused",
	} {
		var state string
		b.do(chromedp.Evaluate(fmt.Sprintf("document.querySelector('[data-deployment=%q]').dataset.state", of), &state))
		require.Equal(t, want, state, of)
	}
	var notes string
	b.do(chromedp.Evaluate("document.querySelector('.notes').innerText.replaceAll(/\\s+/g, ' ')", &notes))
	require.Contains(t, notes, "It is not ready: schema: its user lacks DELETE on dbcontroller.attachment")
	require.Regexp(t, `The lease of its process host-1:7001 expired (39|4\d) s ago: nobody works on 32 shards`, notes)
	require.Regexp(t, `The deletion of //iam.example.com/us-west2/\S+ has run for 11 min`, notes)
	b.look("cannot-work", "#/", "deletion waits")
	b.look("cannot-work-deployment", "#/deployment/iam.example.com%2Feastus2", "32 shards without a process")
}

// The chart has no sample of a part of the deployments: it would look like growth.
func TestTheFirstSampleHasAllDeployments(t *testing.T) {
	f := newFleet(1, 3)
	for id := range f.at {
		f.change(id, func(a *answers) {
			a.status.Outstanding = []*adminv1.StatusResponse_Outstanding{{
				Group: "confirm", Deployment: west.String(),
				Count: 2, OldestTime: timestamppb.Now(),
			}}
		})
	}
	slow := make(chan struct{})
	f.change(west, func(a *answers) { a.slow = slow })
	b := open(t, f)
	b.is("document.querySelectorAll('.cell').length === 2")
	b.do(chromedp.Sleep(2500 * time.Millisecond)) // longer than the pause between two samples
	require.Zero(t, b.number("Number(document.querySelector('main').innerText.includes('Now: '))"))
	close(slow)
	b.is("document.querySelector('main').innerText.includes('Now: confirm 6.')")
}

// The letters of the chart are as large on a phone as elsewhere: it has fewer units there.
func TestTheChartCanBeReadOnAPhone(t *testing.T) {
	f := newFleet(1, 3)
	f.change(west, func(a *answers) {
		a.status.Outstanding = []*adminv1.StatusResponse_Outstanding{{
			Group: "confirm", Deployment: west.String(),
			Count: 2, OldestTime: timestamppb.Now(),
		}}
	})
	b := open(t, f)
	b.do(chromedp.EmulateViewport(390, 900))
	b.is("document.querySelectorAll('.chart text').length > 2")
	b.is(
		"Math.min(...[...document.querySelectorAll('.chart text')].map((l) => l.getBoundingClientRect().height)) >= 11")
	require.LessOrEqual(t,
		b.number(
			"Math.max(...[...document.querySelectorAll('.chart text')].map((l) => l.getBoundingClientRect().right))"), 390.0)
	b.do(chromedp.EmulateViewport(1280, 900))
}

// The reason of a blocked resource links to the page of the blocker that it names; the navigation marks the
// page that is shown, for screen readers too.
func TestBlockersAreLinks(t *testing.T) {
	f := newFleet(3, 3)
	f.block(west, 1)
	b := open(t, f)
	for _, page := range []string{"#/stuck", "#/resource/" + strings.ReplaceAll(root, "/", "%2F")} {
		b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", page), nil))
		b.is(fmt.Sprintf(
			"[...document.querySelectorAll('main a')].some((a) => decodeURIComponent(a.hash).startsWith('#/resource/%s') && a.closest('.why, .notes'))", holder))
		b.is(fmt.Sprintf("document.querySelector('nav a[aria-current=page]').hash === %q",
			map[bool]string{true: "#/stuck", false: "#/browse"}[page == "#/stuck"]))
		require.EqualValues(t, 1, b.number("document.querySelectorAll('nav a[aria-current]').length"))
	}
}

// Rows of attached tables that are not stored as they are belong to the page of their deployment.
func TestAttachedRowsAreShown(t *testing.T) {
	f := newFleet(2, 2)
	f.change(west, func(a *answers) { a.status.AttachedRows = &adminv1.StatusResponse_AttachedRows{Incomplete: 1204} })
	b := open(t, f)
	b.look("attached", "#/deployment/"+strings.ReplaceAll(west.String(), "/", "%2F"),
		"1,204 values without a target (attach --status)")
	b.is("!document.querySelector('main').innerText.includes('waiting for a right')")
	f.change(west, func(a *answers) {
		a.status = f.atRest(schema.Deployment{DeploymentID: west, Version: "v1"})
		a.status.AttachedRows = &adminv1.StatusResponse_AttachedRows{Waiting: 1}
	})
	b.is(
		"document.querySelector('main').innerText.includes('1 row waiting for a right or a deletion') && !document.querySelector('main').innerText.includes('without a target')")
}

// Many stuck resources are a few groups by reason, each with its oldest resources; the others are unfolded,
// and stay so. The page does not grow with them.
func TestManyStuckResourcesAreGroups(t *testing.T) {
	few, many := newFleet(3, 3), newFleet(3, 3)
	few.block(west, 400)
	many.block(west, 1000)
	var heights []float64
	for _, f := range []*fleet{few, many} {
		b := open(t, f)
		b.do(chromedp.Evaluate("location.hash = '#/stuck'", nil))
		b.is("document.querySelectorAll('.group').length === 3")
		b.is(
			"document.querySelector('.why').innerText.includes('BLOCKED by //devices.example.com/eastus2/fleets/*/devices/* (account)')")
		require.LessOrEqual(t,
			b.number("[...document.querySelectorAll('.group tr')].filter((r) => r.checkVisibility()).length"), 3.0*6)
		heights = append(heights, b.number("document.documentElement.scrollHeight"))
		if f == many {
			b.do(chromedp.Click(".group summary"))
			b.is("document.querySelector('.group .rest').checkVisibility()")
			f.change(west, func(a *answers) { a.stuck.Resources = a.stuck.Resources[:990] })
			b.do(chromedp.Sleep(4 * time.Second)) // the page is asked for again
			b.is("document.querySelector('.group .rest').checkVisibility()")
			b.look("stuck-unfolded", "#/stuck", "more")
			require.Less(t, b.number("document.documentElement.scrollHeight"), 3000.0)
		}
	}
	require.InDelta(t, heights[0], heights[1], 100)
}

// On a phone the rows of tables are lists, and the map of three regions is narrow: no column is cut off.
func TestTablesFitAPhone(t *testing.T) {
	f := newFleet(3, 3)
	f.block(west, 200)
	f.darken("eastus2")
	b := open(t, f)
	for page, says := range map[string]string{
		"#/": "Running deletions", "#/stuck": "resources in DELETING",
		"#/deployment/iam.example.com%2Fus-west2": "host-2:7001", "#/resource/" + strings.ReplaceAll(root, "/",
			"%2F"): "BLOCKED",
	} {
		b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", page), nil))
		b.is(fmt.Sprintf("document.querySelector('main').innerText.includes(%q)", says))
		for width := int64(390); width < 520; width += 8 {
			b.do(chromedp.EmulateViewport(width, 900))
			b.is("[...document.querySelectorAll('.scroll, .map')].every((e) => e.scrollWidth <= e.clientWidth)")
		}
		b.do(chromedp.EmulateViewport(1280, 900))
	}
}

// The page follows changes, and the focus stays where it was.
func TestChangesArriveAndTheFocusStays(t *testing.T) {
	f := newFleet(2, 2)
	b := open(t, f)
	b.is("document.querySelectorAll('.cell').length === 4")
	b.do(chromedp.Evaluate("document.querySelector('.cell').focus()", nil))
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.is("document.activeElement.dataset.deployment === 'devices.example.com/us-west2'")
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	b.is("document.activeElement.dataset.deployment === 'iam.example.com/us-west2'")
	b.is("document.querySelectorAll('.lines path.chosen').length > 0")
	f.change(west, func(a *answers) { a.dark = true })
	b.is("document.querySelector('[data-deployment=\"iam.example.com/us-west2\"]').dataset.state === 'away'")
	b.is("document.activeElement.dataset.deployment === 'iam.example.com/us-west2'")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.is("document.querySelector('h1').textContent === 'iam.example.com/us-west2'")
}

// Where actions are allowed, a person pauses a handler with a reason, and sees the pause; elsewhere the page
// has no forms.
func TestActionsInABrowser(t *testing.T) {
	f := newFleet(2, 2)
	b := openConsole(t, NewHandler(f).AllowActions())
	deployment, resource := "#/deployment/iam.example.com%2Fus-west2", "#/resource/"+strings.ReplaceAll(root,
		"/", "%2F")
	b.look("actions-resource", resource, "Retry its work")
	b.look("actions-deployment", deployment, "Pause, resume, retry")
	b.do(chromedp.SetValue("select[name=handler]", "OWNED_PENDING"), chromedp.SetValue("select[name=of]",
		"devices.example.com/eastus2"), chromedp.SendKeys("input[name=reason]", "ticket 4711"+kb.Enter))
	b.is("document.querySelector('.answer').textContent.includes('pause: done.')")
	b.is(
		"document.querySelector('main').innerText.includes('operator/eve has paused owned-pending for devices.example.com/eastus2: ticket 4711')")
	require.Equal(t, []string{"pause iam.example.com/us-west2 OWNED_PENDING devices.example.com/eastus2 ticket 4711"},
		f.did)
	b.look("actions-done", deployment, "owned-pending paused")

	b = open(t, newFleet(2, 2))
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", deployment), nil))
	b.is("document.querySelector('main').innerText.includes('host-2:7001')")
	require.Zero(t, b.number("document.querySelectorAll('.act').length"))
}

// People find a resource, see what its delete would do, delete it so that it can be undone, and find it
// hidden.
func TestBrowsingAndDeletingInABrowser(t *testing.T) {
	f := newFleet(2, 2)
	f.change(west, func(a *answers) {
		a.status.Scheduled = []*adminv1.StatusResponse_ScheduledDeletion{{
			Root: root, Resources: 2, DeleteTime: timestamppb.Now(),
			PurgeTime: timestamppb.New(time.Now().Add(time.Hour)), Actor: "user/ann",
			Reason: "a deployment does not answer",
		}}
	})
	b := openConsole(t, NewHandler(f).AllowActions())
	b.look("browse", "#/browse/"+url.QueryEscape("deployment=iam.example.com/us-west2&kind=Project"), "projects/acme")
	b.do(chromedp.Click(`//a[text()="Next page"]`))
	b.is("document.querySelector('main').innerText.includes('hidden until')")
	b.look("plan-blocked", "#/plan/"+url.QueryEscape("//iam.example.com/us-west2/projects/blocked"), "What blocks it")
	b.is("!document.querySelector('select[name=retention]')") // no delete
	b.do(chromedp.Click("form.act button"))
	b.is("document.querySelector('form.act [role=status]').textContent.includes('detach: done.')")
	require.Len(t, f.did, 1)
	require.Contains(t, f.did[0], "body without account")
	f.did = nil
	b.look("plan", "#/plan/"+url.QueryEscape(root), "1 Project removed in iam.example.com/us-west2")
	b.is("document.querySelector('main').innerText.includes('13 resources removed, 3 references unset')")
	b.do(chromedp.Click("form.act button"))
	b.is("document.querySelector('.answer').textContent.includes('delete: done.')")
	require.Equal(t, []string{"delete iam.example.com/us-west2 projects/acme 168h0m0s"}, f.did)
	b.look("deletions-scheduled", "#/deletions", "hidden until the purge time")
	f.darken("eastus2")
	b.is("document.querySelector('main').innerText.includes('did not answer: there may be more deletions')")
	b.look("hidden-here", "#/deployment/"+url.QueryEscape("iam.example.com/us-west2"), "Hidden until a purge time")
}

// A deletion that has ended is listed for a while, and its page shows when each deployment took part.
func TestEndedDeletionsInABrowser(t *testing.T) {
	f := newFleet(2, 2)
	b := open(t, f)
	b.look("deletions-ended", "#/deletions", "Ended within seven days")
	b.is("document.querySelector('[data-key=ended]').innerText.includes('1,400')")
	b.is("document.querySelector('[data-key=ended]').innerText.includes('1 min 30 s')")
	b.do(chromedp.Click("[data-key=ended] tbody a"))
	b.is("location.hash === '#/deletion/" + endedID + "'")
	b.look("deletion-ended", "#/deletion/"+endedID, "Deletion of "+root)
	b.is("document.querySelector('.tree').innerText.includes('began after 20 s, ended after 1 min 30 s')")
	require.Less(t,
		b.number(
			"document.querySelector('[data-key=\"iam.example.com/us-west2\"] rect').getBoundingClientRect().right"), b.number("document.querySelector('[data-key=\"devices.example.com/eastus2\"] rect').getBoundingClientRect().right"))
	f.darken("eastus2")
	b.is("document.querySelector('main').innerText.includes('did not answer')")
}

// A name from a deployment is text, and a body is not markup.
func TestTextOfOthersIsNotMarkup(t *testing.T) {
	b := open(t, newFleet(2, 2))
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", "#/resource/"+strings.ReplaceAll(root, "/", "%2F")), nil))
	b.is("document.querySelector('pre')?.textContent.includes('onerror')")
	require.Zero(t, b.number("document.querySelectorAll('main img').length"))
}

// A thousand deployments are shown within seconds, and drawn again quickly.
func TestAThousandDeployments(t *testing.T) {
	f := newFleet(40, 25)
	f.darken("region-7")
	b := open(t, f)
	b.is("document.querySelectorAll('.cell').length === 1000")
	b.look("thousand", "#/", "no answer")
	took := b.number(
		"(() => { const at = performance.now(); dispatchEvent(new HashChangeEvent('hashchange')); return performance.now() - at })()")
	require.Less(t, took, 1500.0, "milliseconds for a whole page, on a busy machine")
	t.Logf("drawn again in %.0f ms", took)
}

// The page of a deployment asks for a token, names the fault of a wrong one, and shows the deployment with a
// valid one, also after a reload.
func TestSigningInInABrowser(t *testing.T) {
	valid := "good"
	server := httptest.NewServer(NewSessions(SessionsConfig{
		Verify: func(_ context.Context, token string) (string, error) {
			if token != valid {
				return "", errors.New("the token is not valid")
			}
			return "user/ann", nil
		},
		Enter: func(context.Context, string, bool) (func(), error) { return func() {}, nil },
		Of:    func(string) Deployments { return newFleet(1, 1) },
	}))
	t.Cleanup(server.Close)
	b := newBrowser(t)
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(server.URL+"/console/"))
	b.is("document.querySelector('h1')?.textContent === 'Sign in'")
	b.look("sign-in", "#/", "Token")
	b.do(chromedp.SendKeys("#login input", "wrong"+kb.Enter))
	b.is("document.querySelector('main').innerText.includes('the token is not valid')")
	b.do(chromedp.SendKeys("#login input", "good"+kb.Enter))
	b.is("document.querySelectorAll('.cell').length === 1")
	b.do(chromedp.Reload())
	b.is("document.querySelectorAll('.cell').length === 1")
	require.Zero(t, b.number("document.cookie.length"), "scripts do not get the token")
}

// The references of a resource are a graph: holders on the left, targets on the right. It unfolds by a link,
// and the address lists the unfolded resources.
func TestAGraphOfReferencesUnfolds(t *testing.T) {
	b := open(t, newFleet(2, 2))
	b.look("graph", "#/graph/"+url.QueryEscape("name="+url.QueryEscape(root)), "References of "+root)
	b.is("document.querySelectorAll('#graph g.resource').length === 3")
	b.is("document.querySelector('#graph [data-behaviour=BLOCK]').textContent.includes('project BLOCK')")
	b.is("document.querySelector('#graph [data-behaviour=UNSET]').textContent.includes('account UNSET')")
	place := func(name string) string {
		return fmt.Sprintf("document.querySelector('#graph g.resource[data-key=%q]').getBoundingClientRect().x", name)
	}
	b.is(place(holder) + "<" + place(root) + "&&" + place(root) + "<" + place(root+"/serviceAccounts/robot"))
	b.do(chromedp.Evaluate(fmt.Sprintf("document.querySelector('a[aria-label=\"Unfold %s\"]').focus()", holder), nil),
		chromedp.KeyEvent(kb.Enter))
	b.is("document.querySelectorAll('#graph g.resource').length === 13")
	b.is("document.querySelector('#graph').textContent.includes('2 more')")
	b.is(fmt.Sprintf("document.activeElement.getAttribute('aria-label') === 'Fold %s'", holder))
	b.look("graph-unfolded", "#/graph/"+url.QueryEscape("name="+url.QueryEscape(root)+"&open="+url.QueryEscape(holder)),
		"device-3")
	b.do(chromedp.Evaluate("history.back()", nil))
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", "#/resource/"+url.QueryEscape(root)), nil),
		chromedp.Click(`//a[text()="All references as a graph"]`))
	b.is("document.querySelectorAll('#graph g.resource').length === 3")
}
