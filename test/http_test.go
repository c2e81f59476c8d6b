package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/test/harness"
)

// httpAPI is a deployment with --http-api, as a caller with a token sees it.
type httpAPI struct {
	*fixture
	client     *http.Client
	url, token string
	issuer     *harness.Issuer
}

// newHTTPAPI starts services of which one deployment, by its names, has an API over HTTP.
func newHTTPAPI(t *testing.T, of, services string) *httpAPI {
	t.Helper()
	if testing.Short() {
		t.Skip("starts two processes")
	}
	issuer := harness.NewIssuer(t)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, at.Close())
	f := &fixture{t: t, Processes: harness.NewProcessesWith(t, services,
		playground.Config{Args: []string{"--tokens", issuer.Tokens("db")}})}
	id := f.id(of + "x/y")
	p := f.Deployments[id]
	require.NoError(t, p.Stop())
	p.Add("--http-api")
	p.Add(at.Addr().String())
	p.Add("--console")
	p.Add("--console-actions")
	require.NoError(t, p.Start())
	f.ready(id.String())
	raw, err := os.ReadFile(filepath.Join(f.ClientCerts(), "ca.crt"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(raw))
	token, err := os.ReadFile(string(issuer.File("ann", "db", time.Hour)))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:    roots,
		MinVersion: tls.VersionTLS13,
	}, ForceAttemptHTTP2: true}}
	t.Cleanup(client.CloseIdleConnections)
	return &httpAPI{f, client, "https://" + at.Addr().String(), strings.TrimSpace(string(token)), issuer}
}

// call returns the status and the answer.
func (a *httpAPI) call(method, path, token, body string) (int, map[string]any) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, strings.NewReader(body))
	require.NoError(a.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := a.client.Do(req)
	require.NoError(a.t, err)
	defer func() { _ = resp.Body.Close() }()
	var answer map[string]any
	require.NoError(a.t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

// The gateway returns the answers of gRPC to callers with a token, and refuses others.
func TestTheHTTPAPI(t *testing.T) {
	t.Parallel()
	a := newHTTPAPI(t, aWest, oneTarget)
	for _, token := range []string{"", "wrong", a.token + "x"} {
		code, answer := a.call("GET", "/v1/resources/targets/t1", token, "")
		require.Equal(t, http.StatusUnauthorized, code, "%v", answer)
	}
	code, answer := a.call("PUT", "/v1/resources/targets/a%2525b", a.token, `{"body": {"size": 5}}`)
	require.Equal(t, http.StatusOK, code, "%v", answer)
	require.Equal(t, "targets/a%25b", answer["name"], "decoded once")
	code, answer = a.call("GET", "/v1/resources/targets/a%2525b", a.token, "")
	require.Equal(t, http.StatusOK, code, "%v", answer)

	code, answer = a.call("GET", "/v1/resources/targets/none", a.token, "")
	require.Equal(t, http.StatusNotFound, code)
	require.InDelta(t, 5, answer["code"], 0)
	code, answer = a.call("PUT", "/v1/resources/targets/t1", a.token, `{"bdy": {}}`)
	require.Equal(t, http.StatusBadRequest, code, "%v", answer)
	code, answer = a.call("PUT", "/v1/resources/targets/t1", a.token, `{"body": {"text": "a\u0000"}}`)
	require.Equal(t, http.StatusBadRequest, code, "%v", answer)
	require.Contains(t, fmt.Sprint(answer["details"]), "field:resource.body]", "the path in the request of gRPC")
	code, _ = a.call("POST", "/v1/deployments:decommission", a.token,
		`{"deployment": "b.example.com/mars", "reason": "x"}`)
	require.Equal(t, http.StatusForbidden, code, "only operators")
	code, answer = a.call("PUT", "/v1/resources/targets/t1", a.token, `{"body": {"text": "`+strings.Repeat("x",
		1<<20)+`"}}`)
	require.Equal(t, http.StatusBadRequest, code, "%v", answer)
	require.Contains(t, answer["message"], "too large")
	code, answer = a.call("GET", "/v1/status", a.token, "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "a.example.com/us-west2", answer["deployment"])

	code, answer = a.call("GET", "/openapi.json", "", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, answer["paths"], "/v1/resources:planDeletion")
	a.consoleShowsThisDeployment()
}

// A watch over HTTP sends a line for each event, ends with its caller, and one too many is refused.
func TestWatchesOverHTTP(t *testing.T) {
	t.Parallel()
	a := newHTTPAPI(t, aWest, oneTarget)
	watch := func(more string) (code int, events io.Reader, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/v1/resources:watch?kind=Target"+more, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+a.token)
		resp, err := a.client.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { cancel(); _ = resp.Body.Close() })
		return resp.StatusCode, resp.Body, cancel
	}
	code, events, end := watch("")
	require.Equal(t, http.StatusOK, code)
	lines := bufio.NewScanner(events)
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("no line with %s: %v", text, lines.Err())
	}
	until("endOfSnapshot")
	a.mustPut(aWest+"targets/t1", nil)
	until(`"name":"targets/t1"`)
	a.mustPut(aWest+"targets/t2", nil)
	_, together, endTogether := watch("&allowBatches=true")
	snapshot := bufio.NewScanner(together)
	require.True(t, snapshot.Scan(), "%v", snapshot.Err())
	require.Regexp(t, `"changes":\[.*"targets/t1".*"targets/t2"`, snapshot.Text())
	endTogether()

	for range 7 {
		code, _, _ := watch("")
		require.Equal(t, http.StatusOK, code)
	}
	code, _, _ = watch("")
	require.Equal(t, http.StatusTooManyRequests, code)
	code, answer := a.call("GET", "/v1/resources/targets/t1", a.token, "")
	require.Equal(t, http.StatusOK, code, "calls go on beside watches: %v", answer)
	end()
	a.eventually("the place of a watch that has ended is free", func() bool {
		code, _, _ := watch("")
		return code == http.StatusOK
	})
}

// The example of docs/http.md, by curl.
func TestTheExampleForCurl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	a := newHTTPAPI(t, aWest, oneTarget)
	text, err := os.ReadFile("../docs/http.md")
	require.NoError(t, err)
	script := regexp.MustCompile("(?s)```sh\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, script)
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-c", string(script[1])) //nolint:gosec // the project's own document
	cmd.Env = append(os.Environ(), "API="+strings.Replace(a.url, "127.0.0.1", "localhost", 1), "TOKEN="+a.token,
		"CA="+filepath.Join(a.ClientCerts(), "ca.crt"))
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, failed.String())
	answers := json.NewDecoder(bytes.NewReader(out))
	var got []map[string]any
	for {
		var answer map[string]any
		if err := answers.Decode(&answer); err == io.EOF {
			break
		}
		got = append(got, answer)
	}
	require.Len(t, got, 10, "%s", out)
	require.Equal(t, "targets/t1", got[1]["name"])
	require.Len(t, got[2]["resources"], 1)
	require.Equal(t, map[string]any{"size": 7.0}, got[3]["body"])
	require.Equal(t, true, got[4]["accepted"])
	require.Contains(t, got[5]["resource"], "purgeTime")
	require.NotContains(t, got[6], "purgeTime")
	require.Equal(t, true, got[7]["removed"])
	require.InDelta(t, 5, got[8]["code"], 0, "NOT_FOUND")
	require.Equal(t, "v1", got[9]["version"])
}

// The console of a deployment is a page for every caller, and shows the resources that the person's token may
// read.
func (a *httpAPI) consoleShowsThisDeployment() {
	a.t.Helper()
	ask := func(method, path, token string, cookies ...*http.Cookie) (*http.Response, string) {
		req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, nil)
		require.NoError(a.t, err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		for _, c := range cookies {
			req.AddCookie(c)
		}
		resp, err := a.client.Do(req)
		require.NoError(a.t, err)
		defer func() { _ = resp.Body.Close() }()
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil {
			require.ErrorIs(a.t, err, io.EOF)
		}
		return resp, line
	}
	resp, text := ask(http.MethodGet, "/console/", "")
	require.Equal(a.t, http.StatusOK, resp.StatusCode, text)
	require.Contains(a.t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
	resp, _ = ask(http.MethodGet, "/console/api/events", a.token)
	require.Equal(a.t, http.StatusUnauthorized, resp.StatusCode)
	resp, _ = ask(http.MethodPost, "/console/session", "wrong")
	require.Equal(a.t, http.StatusUnauthorized, resp.StatusCode)
	resp, text = ask(http.MethodPost, "/console/session", a.token)
	require.Equal(a.t, http.StatusNoContent, resp.StatusCode, text)
	cookie := resp.Cookies()[0]
	_, text = ask(http.MethodGet, "/console/api/stuck", "", cookie)
	require.JSONEq(a.t, `[{"deployment": "a.example.com/us-west2", "answer": {}}]`, text)
	_, text = ask(http.MethodGet, "/console/api/resource?name="+aWest+"targets/t", "", cookie)
	require.Contains(a.t, text, "targets/t")
	_, text = ask(http.MethodGet, "/console/api/resource?name=//b.example.com/us-west2/holders/h", "", cookie)
	require.Contains(a.t, text, "this console shows a.example.com/us-west2 alone")
	a.consoleShowsAllDeployments(cookie)
}

// With --console-all the person's token goes to the other deployments, without the certificate of this one;
// actions have the rights of the person.
func (a *httpAPI) consoleShowsAllDeployments(cookie *http.Cookie) {
	a.t.Helper()
	p := a.Deployments[a.id(aWest+"x/y")]
	require.NoError(a.t, p.Stop())
	p.Add("--console-all")
	require.NoError(a.t, p.Start())
	a.ready("a.example.com/us-west2")
	ask := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+"/console/api/"+path,
			strings.NewReader(body))
		require.NoError(a.t, err)
		req.AddCookie(cookie)
		req.Header.Set("Content-Type", "application/json")
		resp, err := a.client.Do(req)
		require.NoError(a.t, err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(a.t, err)
		return resp.StatusCode, string(text)
	}
	a.eventually("every deployment answers", func() bool {
		_, text := ask(http.MethodGet, "stuck", "")
		return strings.Count(text, `"answer"`) == len(a.Deployments) && !strings.Contains(text, `"error"`)
	})
	for at := range a.Deployments {
		code, text := ask(http.MethodPost, "action", `{"do": "pause", "deployment": "`+at.String()+`", "reason": "r"}`)
		require.Equal(a.t, http.StatusConflict, code, text)
		require.Contains(a.t, text, "PermissionDenied", "ann is no operator at %s", at)
	}
}
