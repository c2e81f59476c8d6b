package console

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ask sends an action to a handler as a browser would.
func ask(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://here/api/action", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestActionsAreDoneByTheDeploymentWithTheirReason(t *testing.T) {
	t.Parallel()
	f := newFleet(2, 2)
	h := NewHandler(f).AllowActions()
	for _, c := range []struct{ body, did string }{
		{
			`{"do":"pause","deployment":"iam.example.com/us-west2","handler":"","of":"","reason":"r1"}`,
			"pause iam.example.com/us-west2   r1",
		},
		{`{"do":"resume","deployment":"iam.example.com/us-west2","handler":"OWNED_PENDING","of":"devices.example.com/eastus2","reason":"r2"}`, "resume iam.example.com/us-west2 OWNED_PENDING devices.example.com/eastus2 r2"},
		{`{"do":"retry","deployment":"iam.example.com/us-west2","reason":"r3"}`, "retry iam.example.com/us-west2   r3"},
		{`{"do":"retry","name":"` + root + `","reason":"r4"}`, "retry iam.example.com/us-west2 projects/acme  r4"},
		{
			`{"do":"delete","name":"` + root + `","retention":"7d"}`,
			"delete iam.example.com/us-west2 projects/acme 168h0m0s",
		},
		{`{"do":"delete","name":"` + root + `","retention":""}`, "delete iam.example.com/us-west2 projects/acme 0s"},
		{`{"do":"undelete","name":"` + root + `"}`, "undelete iam.example.com/us-west2 projects/acme"},
		{
			`{"do":"detach","name":"` + root + `","path":"account","target":"` + root + `/serviceAccounts/robot"}`,
			"update iam.example.com/us-west2 projects/acme body without account",
		},
	} {
		w := ask(h, c.body, "Sec-Fetch-Site", "same-origin", "Origin", "http://here")
		require.Equal(t, 200, w.Code, w.Body)
		require.Equal(t, c.did, f.did[len(f.did)-1])
	}
	for want, body := range map[string]string{
		"want pause, resume, retry, delete, detach or undelete": `{"do":"drop","deployment":"iam.example.com/us-west2","reason":"r"}`,
		"InvalidArgument: reason":                               `{"do":"pause","deployment":"iam.example.com/us-west2"}`,
		"cannot be reached":                                     `{"do":"pause","deployment":"elsewhere.example.com/mars","reason":"r"}`,
		"does not name the resource": `{"do":"detach","name":"` + root +
			`","path":"account","target":"` + root + `"}`,
		"unknown field":              `{"do":"pause","deployment":"iam.example.com/us-west2","reason":"r","force":true}`,
		"too large":                  `{"do":"` + strings.Repeat("x", maxActionBytes) + `"}`,
		"deployment":                 `{"do":"pause","deployment":"x","reason":"r"}`,
		"want //service/region/name": `{"do":"retry","name":"projects/acme","reason":"r"}`,
	} {
		w := ask(h, body)
		require.GreaterOrEqual(t, w.Code, 400, body)
		require.Contains(t, w.Body.String(), want)
	}
	require.Len(t, f.did, 8)
}

// Pages of other sites, forms and links change nothing, and neither does a page that only reads.
func TestActionsOfOtherPagesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(1, 1)
	const body = `{"do":"pause","deployment":"iam.example.com/us-west2","reason":"r"}`
	h := NewHandler(f).AllowActions()
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "none"},
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		{"Origin", "http://here:81"},
	} {
		require.Equal(t, http.StatusForbidden, ask(h, body, headers...).Code, headers)
	}
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"} {
		require.Equal(t, http.StatusUnsupportedMediaType, ask(h, body, "Content-Type", kind).Code, kind)
	}
	get := httptest.NewRecorder()
	h.ServeHTTP(get, httptest.NewRequest(http.MethodGet, "http://here/api/action", nil))
	require.Equal(t, http.StatusNotFound, get.Code)
	require.NotEqual(t, http.StatusOK, ask(NewHandler(f), body).Code, "without AllowActions")
	require.Equal(t, http.StatusForbidden, ask(NewKeyed(h, "here"), body).Code, "without the key")
	require.Empty(t, f.did)
}

// A session acts with the token of its person, and says whether it may; without a session nothing is done.
func TestActionsOfASessionNeedItsToken(t *testing.T) {
	t.Parallel()
	for _, actions := range []bool{true, false} {
		f := newFleet(1, 1)
		pages := NewSessions(SessionsConfig{
			Verify: func(_ context.Context, token string) (string, error) {
				if token != "ann" {
					return "", io.EOF
				}
				return "user/ann", nil
			},
			Enter: func(context.Context, string, bool) (func(), error) { return func() {}, nil },
			Of:    func(string) Deployments { return f }, Actions: actions,
		})
		do := func(method, path, body string, cookies ...*http.Cookie) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, "https://here/console/"+path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer ann")
			for _, c := range cookies {
				r.AddCookie(c)
			}
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, r)
			return w
		}
		cookie := do("POST", "session", "").Result().Cookies()[0]
		require.Equal(t, actions, strings.Contains(do("GET", "session", "", cookie).Body.String(), `"actions":true`))
		const body = `{"do":"retry","deployment":"iam.example.com/us-west2","reason":"r"}`
		require.Equal(t, http.StatusUnauthorized, do("POST", "api/action", body).Code, "the header alone is no session")
		require.Equal(t, actions, do("POST", "api/action", body, cookie).Code == http.StatusOK)
		require.Equal(t, actions, len(f.did) == 1)
	}
}
