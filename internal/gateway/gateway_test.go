package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/budget"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// server is a connection to a double of the gRPC server, which keeps its calls.
type server struct {
	mu     sync.Mutex
	calls  []string      // guarded by mu; methods with the message of the request
	header []metadata.MD // guarded by mu
	refuse error
}

func (s *server) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.header = append(s.calls, method[strings.LastIndexByte(method, '/')+1:]), append(s.header, md)
	if s.refuse != nil {
		return s.refuse
	}
	if out, ok := reply.(*resourcev1.Resource); ok {
		named, _ := args.(interface{ GetName() string })
		if written, ok := args.(interface{ GetResource() *resourcev1.Resource }); ok {
			named = written.GetResource()
		}
		proto.Merge(out, &resourcev1.Resource{Name: named.GetName(), Uid: "u1", Revision: 7})
	}
	return nil
}

func (s *server) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unavailable, "no streams here")
}

// ask sends a request with a token, "ann" for ann; none for an empty one.
func ask(t *testing.T, h http.Handler, method, path, token string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Header.Set("X-Request-Id", "r1")
	r.Header.Set("Grpc-Metadata-Dbcontroller-On-Behalf-Of", "/operator/eve")
	r.Header.Set("Dbcontroller-On-Behalf-Of", "/operator/eve")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return w.Result(), string(body)
}

func handler(t *testing.T, conns ...grpc.ClientConnInterface) *Handler {
	t.Helper()
	h, err := New(t.Context(), conns, func(_ context.Context, token string) (string, error) {
		if token == "stolen" {
			return "", status.Error(codes.Unauthenticated, "the token is revoked")
		}
		return "user/" + token, nil
	}, budget.DefaultTotal)
	require.NoError(t, err)
	return h
}

// Nothing is called before the token is accepted; the answer says how to prove oneself.
func TestARequestWithoutAValidTokenCallsNothing(t *testing.T) {
	t.Parallel()
	s := &server{}
	h := handler(t, s)
	for token, says := range map[string]string{"": "want a token", "stolen": "the token is revoked"} {
		res, body := ask(t, h, http.MethodGet, "/v1/projects/acme", token)
		require.Equal(t, http.StatusUnauthorized, res.StatusCode)
		require.Equal(t, "Bearer", res.Header.Get("WWW-Authenticate"))
		require.Contains(t, body, says)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/projects/acme", http.NoBody)
	r.Header.Set("Authorization", "Basic YTpi")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusUnauthorized, w.Code)
	require.Empty(t, s.calls)
}

// The caller's token and its request id are passed on. The header by which deployments act for others is not.
func TestARequestIsACallWithTheCallersToken(t *testing.T) {
	t.Parallel()
	s := &server{}
	res, body := ask(t, handler(t, s), http.MethodGet, resourcePath(t), "ann")
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	require.Equal(t, []string{"GetResource"}, s.calls)
	md := s.header[0]
	require.Equal(t, []string{"Bearer ann"}, md.Get("authorization"))
	require.Equal(t, []string{"r1"}, md.Get("x-request-id"))
	require.Empty(t, md.Get("dbcontroller-on-behalf-of"), "a caller acts for itself alone")
	var r map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &r))
	require.Equal(t, "7", r["revision"])
	require.Equal(t, "nosniff", res.Header.Get("X-Content-Type-Options"))
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
}

// resourcePath returns a path of one resource, by the routes of the document.
func resourcePath(t *testing.T) string {
	t.Helper()
	var document struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	require.NoError(t, json.Unmarshal(openapi, &document))
	for path, methods := range document.Paths {
		if methods["get"].OperationID == "ResourceService_GetResource" {
			begin, end := strings.IndexByte(path, '{'), strings.LastIndexByte(path, '}')
			return path[:begin] + "projects/acme" + path[end+1:]
		}
	}
	t.Fatal("no route of GetResource")
	return ""
}

func TestErrorsHaveTheirHTTPCodes(t *testing.T) {
	t.Parallel()
	path := resourcePath(t)
	for code, want := range map[codes.Code]int{
		codes.NotFound: 404, codes.InvalidArgument: 400, codes.PermissionDenied: 403, codes.Unavailable: 503,
		codes.ResourceExhausted: 429, codes.Internal: 500,
	} {
		res, body := ask(t, handler(t, &server{refuse: status.Error(code, "the reason")}), http.MethodGet, path, "ann")
		require.Equal(t, want, res.StatusCode, code)
		require.Contains(t, body, "the reason")
	}
	s := &server{}
	for path, method := range map[string]string{
		"/elsewhere":                http.MethodGet,
		"/v1/resource/projects%2Fp": http.MethodDelete, path: http.MethodPost,
	} {
		res, body := ask(t, handler(t, s), method, path, "ann")
		require.Equal(t, http.StatusNotImplemented, res.StatusCode, "a misspelt path is no absent resource")
		require.Contains(t, body, "no call has this path with "+method+": GET /openapi.json")
	}
	require.Empty(t, s.calls)
}

// A misspelt parameter is no absent one: a delete without its retention would be for good.
func TestAnUnknownParameterIsRefused(t *testing.T) {
	t.Parallel()
	s := &server{}
	path := resourcePath(t)
	for _, wrong := range []string{"retentoin=3600s", "nwo=true", "retention.weeks=1", "now.deep=true"} {
		res, body := ask(t, handler(t, s), http.MethodDelete, path+"?"+wrong, "ann")
		require.Equal(t, http.StatusBadRequest, res.StatusCode, body)
		require.Contains(t, body, "unknown parameter")
	}
	require.Empty(t, s.calls)
	for _, right := range []string{"retention=3600s", "now=true", "maxRemovals=3", "max_removals=3"} {
		res, body := ask(t, handler(t, s), http.MethodDelete, path+"?"+right, "ann")
		require.Equal(t, http.StatusOK, res.StatusCode, body)
	}
}

// The document has a title, the credentials of callers and a sentence for each route; its tags have routes.
func TestTheDocumentDescribesItself(t *testing.T) {
	t.Parallel()
	var document struct {
		Info                struct{ Title, Version, Description string }
		Tags                []struct{ Name, Description string }
		Security            []map[string][]string
		SecurityDefinitions map[string]struct{ In, Name string }
		Paths               map[string]map[string]struct {
			Summary string
			Tags    []string
		}
	}
	require.NoError(t, json.Unmarshal(openapi, &document))
	require.Equal(t, "db-controller", document.Info.Title)
	require.Equal(t, "v1", document.Info.Version)
	require.NotEmpty(t, document.Info.Description)
	require.Len(t, document.Security, 1)
	require.Equal(t, "Authorization", document.SecurityDefinitions["bearer"].Name)
	used := map[string]bool{}
	for path, methods := range document.Paths {
		for method, o := range methods {
			require.NotEmpty(t, o.Summary, "%s %s", method, path)
			used[o.Tags[0]] = true
		}
	}
	require.Len(t, used, len(document.Tags))
	for _, tag := range document.Tags {
		require.NotEmpty(t, tag.Description)
		require.True(t, used[tag.Name], tag.Name)
	}
}

// The document is for programs that have no token yet.
func TestTheDocumentNeedsNoToken(t *testing.T) {
	t.Parallel()
	res, body := ask(t, handler(t, &server{}), http.MethodGet, "/openapi.json", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	require.True(t, json.Valid([]byte(body)))
	res, _ = ask(t, handler(t, &server{}), http.MethodPost, "/openapi.json", "")
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
}

// A caller stays on one connection, and callers are on several.
func TestCallersAreSpreadOverTheConnections(t *testing.T) {
	t.Parallel()
	all := []*server{{}, {}, {}, {}}
	h := handler(t, all[0], all[1], all[2], all[3])
	path := resourcePath(t)
	for range 5 {
		_, _ = ask(t, h, http.MethodGet, path, "ann")
	}
	used := 0
	for _, s := range all {
		require.Contains(t, []int{0, 5}, len(s.calls), "the calls of one caller share a connection")
	}
	for i := range 40 {
		_, _ = ask(t, h, http.MethodGet, path, "user"+strconv.Itoa(i))
	}
	for _, s := range all {
		if len(s.calls) > 0 {
			used++
		}
	}
	require.Greater(t, used, 2)
	require.Empty(t, h.slots.of, "slots end with their requests")
}

// Watches and verifications have other slots than calls.
func TestAnswersWithoutAnEndAreStreams(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/v1/resources:watch": true, "/v1/admin:verify": true,
		"/v1/projects/watch": false, "/v1/projects/acme": false,
	} {
		require.Equal(t, want, streams(httptest.NewRequest(http.MethodGet, path, http.NoBody)), path)
	}
}

// A change has a mask of its own. One that was made from the body would have the path of each value: a long
// key above many values is a terabyte.
func TestAChangeHasAMask_I20_I21(t *testing.T) {
	t.Parallel()
	s := &server{}
	h := handler(t, s)
	change := func(query string) (int, string) {
		values := ""
		for i := range 5000 {
			values += strconv.Quote(strconv.Itoa(i)) + ":1,"
		}
		body := `{"body":{"` + strings.Repeat("x", 100_000) + `":{` + strings.TrimSuffix(values, ",") + `}}}`
		r := httptest.NewRequest(http.MethodPatch, "/v1/resources/targets/t"+query, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer ann")
		w := httptest.NewRecorder()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		t.Logf("%q: %d, %d MB", query, w.Code, (after.TotalAlloc-before.TotalAlloc)>>20)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
		return w.Code, w.Body.String()
	}
	for _, query := range []string{"?updateMask=body", "?update_mask=body.a,body.b"} {
		code, body := change(query)
		require.Equal(t, http.StatusOK, code, body)
	}
	for _, query := range []string{"", "?updateMask=", "?validateOnly=true"} {
		code, body := change(query)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, body, "updateMask")
	}
	require.Equal(t, []string{"UpdateResource", "UpdateResource"}, s.calls)
}
