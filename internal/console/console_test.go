package console

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/test/wait"
)

var west = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

// events opens the stream of a console; next returns the next change.
func events(t *testing.T, server *httptest.Server) (next func() Change, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/events", nil)
	require.NoError(t, err)
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); _ = resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return func() (c Change) {
		for {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			if raw, ok := strings.CutPrefix(line, "data: "); ok {
				require.NoError(t, json.Unmarshal([]byte(raw), &c))
				return c
			}
		}
	}, cancel
}

func serve(t *testing.T, f *fleet) (*httptest.Server, *Handler) {
	t.Helper()
	h := NewHandler(f)
	h.poller.interval = 20 * time.Millisecond
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server, h
}

// A browser gets every deployment, then only the changes, also when the environment loses a deployment or
// cannot be read.
func TestEventsAreEverythingAndThenChanges(t *testing.T) {
	t.Parallel()
	f := newFleet(2, 2)
	server, _ := serve(t, f)
	next, _ := events(t, server)
	seen, whole := map[string]State{}, false
	for !whole {
		c := next()
		for _, s := range c.Deployments {
			seen[s.Deployment] = s
		}
		whole = c.Whole
	}
	require.Len(t, seen, 4)
	require.Empty(t, seen[west.String()].Error)
	require.Contains(t, string(seen[west.String()].Status), `"version":"v1"`)

	f.change(west, func(a *answers) { a.dark = true })
	c := next()
	require.Len(t, c.Deployments, 1, "only what has changed")
	require.Contains(t, c.Deployments[0].Error, "cannot be reached")

	f.mu.Lock()
	f.env = &schema.Environment{Deployments: f.env.Deployments[1:]}
	f.mu.Unlock()
	require.Equal(t, []string{west.String()}, next().Gone)

	f.mu.Lock()
	f.fails = context.DeadlineExceeded
	f.mu.Unlock()
	require.NotEmpty(t, *next().Problem)
}

// Deployments are asked once for all viewers, and not at all without viewers.
func TestNobodyIsAskedWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	f := newFleet(2, 2)
	server, h := serve(t, f)
	require.Zero(t, f.asked.Load())
	first, leaveFirst := events(t, server)
	second, leaveSecond := events(t, server)
	first()
	second()
	leaveFirst()
	leaveSecond()
	require.Eventually(t, func() bool {
		h.poller.mu.Lock()
		defer h.poller.mu.Unlock()
		return h.poller.stop == nil && len(h.poller.viewers) == 0
	}, wait.Limit, 5*time.Millisecond)
	h.poller.running.Wait()
}

// The console knows since when a deployment has not answered: for certain when it answered before, else since
// the first look at least. A time without viewers ends this knowledge. A change tells when all answers of the
// first look have arrived.
func TestTheConsoleKnowsSinceWhenADeploymentIsSilent(t *testing.T) {
	t.Parallel()
	f := newFleet(1, 2)
	east := schema.DeploymentID{Service: "iam.example.com", Region: "eastus2"}
	f.change(east, func(a *answers) { a.dark = true })
	p := NewPoller(f)
	p.interval = 5 * time.Millisecond
	v := p.join()
	states, whole := map[string]State{}, false
	until := func(enough func() bool) {
		require.Eventually(t, func() bool {
			c := p.take(v)
			for _, s := range c.Deployments {
				assert.False(t, whole && states[s.Deployment].Deployment == "", "it arrives after the whole")
				states[s.Deployment] = s
			}
			whole = whole || c.Whole
			return enough()
		}, wait.Limit, time.Millisecond)
	}
	until(func() bool { return whole })
	require.Len(t, states, 2)
	first := states[east.String()]
	require.NotNil(t, first.SilentSince)
	require.False(t, first.Answered, "it may have been silent before")
	require.Nil(t, states[west.String()].SilentSince)

	f.change(west, func(a *answers) { a.dark = true })
	until(func() bool { return states[west.String()].SilentSince != nil })
	require.True(t, states[west.String()].Answered)
	f.change(east, func(a *answers) { a.dark = false })
	until(func() bool { return states[east.String()].Status != nil })
	require.Nil(t, states[east.String()].SilentSince)

	silent := *states[west.String()].SilentSince
	p.leave(v)
	v = p.join()
	defer p.leave(v)
	whole, states = false, map[string]State{}
	until(func() bool { return whole && states[west.String()].SilentSince != nil })
	again := states[west.String()]
	require.True(t, again.SilentSince.After(silent), "it may have answered while nobody looked")
	require.False(t, again.Answered)
	asked := again.Asked
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		s := p.states[west.String()]
		return s.Asked.After(asked) && s.SilentSince.Equal(*again.SilentSince)
	}, wait.Limit, time.Millisecond, "the silence goes on")
}

// A browser that does not read keeps the newest state of each deployment waiting, not every change.
func TestASlowBrowserGetsTheNewestStates(t *testing.T) {
	t.Parallel()
	p := NewPoller(newFleet(1, 1))
	p.interval = time.Hour
	v := p.join()
	defer p.leave(v)
	for _, failure := range []string{"one", "two", "three"} {
		p.put(t.Context(), State{Deployment: "x", Error: failure})
	}
	ofX := func() (out []string) { // beside the states of the deployment that is polled
		for _, s := range p.take(v).Deployments {
			if s.Deployment == "x" {
				out = append(out, s.Error)
			}
		}
		return out
	}
	require.Equal(t, []string{"three"}, ofX())
	require.Empty(t, ofX())
}

// The page comes from this server alone, and no text of a deployment can become markup.
func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	server, _ := serve(t, newFleet(1, 1))
	require.NoError(t, fs.WalkDir(assets, "assets", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(assets, file)
		text := strings.ReplaceAll(string(raw), "http://www.w3.org/2000/svg", "")
		require.NoError(t, err)
		for _, never := range []string{
			"http:", "https:", "innerHTML =", "outerHTML", "insertAdjacentHTML", "eval(",
			"onclick", "<style", "@import",
		} {
			require.NotContains(t, text, never, file)
		}
		resp, err := server.Client().Get(server.URL + "/" + path.Base(file)) //nolint:noctx // a test
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		require.Contains(t, []int{http.StatusOK, http.StatusMovedPermanently}, resp.StatusCode, file)
		policy := resp.Header.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'")
		require.NotContains(t, policy, "unsafe")
		require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
		return nil
	}))
}

func get(t *testing.T, server *httptest.Server, path string) (code int, body string) {
	t.Helper()
	resp, err := server.Client().Get(server.URL + path) //nolint:noctx // a test
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(raw)
}

// Deployments that do not answer are named beside the answers of the others, and so are parts that the person
// may not see.
func TestLookupsShowWhatTheyGet(t *testing.T) {
	t.Parallel()
	f := newFleet(2, 2)
	f.block(west, 2)
	f.change(schema.DeploymentID{Service: "iam.example.com", Region: "eastus2"}, func(a *answers) { a.dark = true })
	server, _ := serve(t, f)

	code, body := get(t, server, "/api/stuck?longer=10s")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, root+"/serviceAccounts/robot-000")
	require.Contains(t, body, "cannot be reached")

	_, body = get(t, server, "/api/resource?name="+url.QueryEscape(root))
	var view resourceView
	require.NoError(t, json.Unmarshal([]byte(body), &view))
	require.Contains(t, string(view.Explain), "DELETING")
	require.Contains(t, view.Errors["removals"], "only operators")
	require.Contains(t, body, holder, "the holder in the other deployment")
	require.Equal(t, []reference{{"account", root + "/serviceAccounts/robot", "UNSET"}}, view.References)

	_, body = get(t, server, "/api/deletion?id=0193e0a0-0000-7000-8000-000000000001")
	require.Contains(t, body, "devices.example.com/eastus2")

	_, body = get(t, server, "/api/resources?deployment=iam.example.com/us-west2&prefix=projects/a&deleted=1")
	require.Contains(t, body, "projects/acme")
	require.Contains(t, body, `name = \"projects/a*\"`)
	_, body = get(t, server, "/api/plan?name="+url.QueryEscape(root))
	require.Contains(t, body, `"accepted":true`)

	for _, wrong := range []string{
		"/api/resources", "/api/resources?deployment=x",
		"/api/resources?deployment=iam.example.com/us-west2&prefix=%22", "/api/plan", "/api/plan?name=acme",
		"/api/stuck?longer=x", "/api/stuck?longer=-1s", "/api/resource?name=acme", "/api/resource", "/api/deletion",
	} {
		code, body := get(t, server, wrong)
		require.Equal(t, http.StatusBadRequest, code, wrong)
		require.Contains(t, body, "want", wrong)
	}
}

// A deletion waits for work that fails elsewhere: the pages of stuck resources and of one resource show the
// failure as the command line does.
func TestLookupsShowWhatFailsElsewhere(t *testing.T) {
	t.Parallel()
	f := newFleet(2, 2)
	f.block(west, 1)
	f.change(west, func(a *answers) {
		a.stuck.Work = append(a.stuck.Work, &adminv1.ListStuckResponse_Work{
			Group:      "acknowledge",
			Deployment: "devices.example.com/us-west2", Count: 1, Reason: "it has not acted",
		})
	})
	f.change(schema.DeploymentID{Service: "devices.example.com", Region: "us-west2"}, func(a *answers) {
		a.status.Failures = []*adminv1.Failure{{
			Handler: "subscribed_deleting", Deployment: west.String(),
			Error: "projects/acme: a key refuses it",
		}}
	})
	server, _ := serve(t, f)
	_, body := get(t, server, "/api/stuck?longer=10s")
	require.Contains(t, body, "there subscribed-deleting fails: projects/acme: a key refuses it")
	_, body = get(t, server, "/api/resource?name="+url.QueryEscape(root))
	require.Contains(t, body, "subscribed-deleting for iam.example.com/us-west2 at devices.example.com/us-west2")
}

// Only who has the printed address sees anything: not another user of the machine, and not a page of another
// name.
func TestTheKeyIsNeeded(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(nil)
	guard := NewKeyed(NewHandler(newFleet(1, 1)), server.Listener.Addr().String())
	server.Config.Handler = guard
	server.Start()
	defer server.Close()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	server.Client().Jar = jar

	for _, path := range []string{"/", "/api/events", "/api/stuck", "/?key=wrong"} {
		code, _ := get(t, server, path)
		require.Equal(t, http.StatusForbidden, code, path)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(guard.URL(), "http://"), ":")
	resp, err := server.Client().Get(guard.URL()) //nolint:noctx // a test
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, resp.Request.URL.Query(), "the key is not kept in the address")
	code, body := get(t, server, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "<title>db-controller</title>")

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/", nil)
	require.NoError(t, err)
	req.Host = "evil.example:" + strings.SplitN(port, "/", 2)[0]
	resp, err = server.Client().Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
}

// Who changed the environment is for consoles of operators, whose client has the registry.
func TestChangesAreThoseOfTheRegistry(t *testing.T) {
	t.Parallel()
	get := func(of Deployments) (int, string) {
		answer := httptest.NewRecorder()
		NewHandler(of).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/api/changes", nil))
		return answer.Code, answer.Body.String()
	}
	code, body := get(withRegistry{newFleet(1, 1)})
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `"actor":"operator/olga"`)
	require.Contains(t, body, `"nextPageToken":"1"`)
	code, body = get(newFleet(1, 1))
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, body, "operators see who changed the environment")
}
