package console

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// seenBy is a fleet that records the tokens with which it is asked.
type seenBy struct {
	Deployments
	token string
	asked *[]string
}

func (s seenBy) Environment(ctx context.Context) (*schema.Environment, error) {
	*s.asked = append(*s.asked, s.token)
	return s.Deployments.Environment(ctx)
}

// hasty is an answer whose reader has until a time.
type hasty struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (h *hasty) SetWriteDeadline(until time.Time) error { h.until = until; return nil }

// A client that reads nothing does not keep its connection, with or without a token.
func TestAnAnswerThatIsNotReadEnds_I20(t *testing.T) {
	t.Parallel()
	pages := NewSessions(SessionsConfig{Verify: func(context.Context, string) (string, error) {
		return "", errors.New("no token")
	}})
	for _, path := range []string{"", "app.js", "session", "api/stuck", "api/events"} {
		w := &hasty{ResponseRecorder: httptest.NewRecorder()}
		pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "https://here"+SessionsPath+path, nil))
		require.WithinDuration(t, time.Now().Add(readTimeout), w.until, time.Minute, path)
	}
}

// The page is served to every caller; its data are read with the person's token, while that is valid, and
// never for another site.
func TestAConsoleOfSessionsAsksWithTheTokenOfWhoLooks(t *testing.T) {
	t.Parallel()
	valid, streams, entered := map[string]bool{"ann": true, "bob": true}, 0, 0
	var asked []string
	pages := NewSessions(SessionsConfig{
		Verify: func(_ context.Context, token string) (string, error) {
			if !valid[token] {
				return "", errors.New("the token is not valid")
			}
			return "user/" + token, nil
		},
		Enter: func(_ context.Context, who string, stream bool) (func(), error) {
			if entered++; stream {
				streams++
			}
			if who == "user/bob" {
				return nil, errors.New("too many")
			}
			return func() { entered-- }, nil
		},
		Of: func(token string) Deployments { return seenBy{newFleet(1, 1), token, &asked} },
	})
	do := func(method, path, token string, cookie *http.Cookie, headers ...string) *http.Response {
		t.Helper()
		req := httptest.NewRequest(method, "https://here"+path, nil)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if cookie != nil {
			req.AddCookie(cookie)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, req)
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'", path)
		return w.Result()
	}
	code := func(method, path, token string) int {
		t.Helper()
		answer := do(method, path, token, nil)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	get := func(path, token string) int { return code("GET", path, token) }
	require.Equal(t, 200, get("/console/", ""))
	require.Equal(t, 200, get("/console/main.js", ""))
	for _, path := range []string{"api/stuck", "api/events", "api/resource?name=x", "api/deletion?id=x"} {
		require.Equal(t, 401, get("/console/"+path, ""), path)
		require.Equal(t, 401, get("/console/"+path, "ann"), "a session alone counts: %s", path)
	}
	require.Equal(t, 401, code("POST", "/console/session", "eve"))
	require.Equal(t, 401, code("POST", "/console/session", strings.Repeat("x", 3000)))
	began := do("POST", "/console/session", "ann", nil)
	require.NoError(t, began.Body.Close())
	require.Equal(t, 204, began.StatusCode)
	cookie := began.Cookies()[0]
	require.True(t, cookie.HttpOnly && cookie.Secure && cookie.SameSite == http.SameSiteStrictMode &&
		cookie.Path == "/console/", cookie.String())
	require.Empty(t, asked)
	for want, c := range map[string]*http.Cookie{"{\"signed_in\":true}\n": cookie, "{\"signed_in\":false}\n": nil} {
		body, err := io.ReadAll(do("GET", "/console/session", "", c).Body)
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	}
	require.Equal(t, 200, do("GET", "/console/api/stuck", "", cookie).StatusCode)
	require.Equal(t, []string{"ann"}, asked)
	require.Equal(t, 403, do("GET", "/console/api/stuck", "", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
		"cors").StatusCode)
	require.Equal(t, 403, do("POST", "/console/session", "ann", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode",
		"cors").StatusCode)
	require.Equal(t, 200, do("GET", "/console/", "", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
		"navigate").StatusCode, "a link")
	require.Equal(t, 429, do("GET", "/console/api/stuck", "", do("POST", "/console/session", "bob",
		nil).Cookies()[0]).StatusCode)
	require.Equal(t, 405, do("PUT", "/console/session", "ann", cookie).StatusCode)
	require.Equal(t, 405, do("POST", "/console/api/stuck", "", cookie).StatusCode, "it only reads")
	require.Equal(t, 405, do("POST", "/console/api/action", "", cookie).StatusCode, "it only reads")

	server := httptest.NewServer(pages)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/console/api/events", nil)
	require.NoError(t, err)
	req.AddCookie(cookie)
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "data: {"), line)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 1, streams)

	require.Negative(t, do("DELETE", "/console/session", "", cookie).Cookies()[0].MaxAge)
	valid["ann"] = false
	require.Equal(t, 401, do("GET", "/console/api/stuck", "", cookie).StatusCode, "the token has expired")
}
