package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/internal/budget"
)

// Any request is answered, or refused as the mistake of its sender.
func FuzzRequests(f *testing.F) {
	h, err := New(f.Context(), []grpc.ClientConnInterface{&server{}}, func(context.Context, string) (string, error) {
		return "user/ann", nil
	}, budget.DefaultTotal)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][3]string{
		{"GET", "/v1/resources/projects/acme", ""},
		{"GET", "/v1/resources?filter=a%3Db&page_size=x", ""},
		{"POST", "/v1/resources", `{"name":"projects/p","body":{"a":[1,null]}}`},
		{"PATCH", "/v1/resources/projects/acme?update_mask=body.a", `{"body":`},
		{"PATCH", "/v1/resources/projects/acme?update_mask=%00", `{"body":{}}`},
		{"DELETE", "/v1/resources/projects/acme?revision=99999999999999999999", ""},
		{"GET", "/", ""},
		{"GET", "/\x86", ""},
		{"GET", "/v1/resources/projects/\x86", ""},
		{"GET", "/v1/resources?filter=\x86", ""},
		{"GET", "/v1/resources?\x86=1&page_size=%86", ""},
		{"POST", "/v1/resources", "{\"\x86\":1}"},
		{"POST", "/v1/resources", "{\"name\":\"\x86\"}"},
		{"PUT", "/v1/resources/projects/a:b", "[" + strings.Repeat("[", 100)},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		if method == "" || strings.ContainsFunc(method, func(r rune) bool {
			return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			return // net/http refuses what is no token
		}
		path, query, _ := strings.Cut(target, "?")
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL.Path, r.URL.RawQuery = method, "/"+strings.TrimPrefix(path, "/"), query
		r.Header.Set("Authorization", "Bearer ann")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if code := w.Code; code == http.StatusInternalServerError || code < 200 || code > 599 {
			t.Fatalf("%q %q %q: %d %s", method, target, body, code, w.Body)
		}
	})
}
