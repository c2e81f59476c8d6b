package console

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// SessionsPath is where sessions serve the page.
	SessionsPath = "/console/"
	// sessionCookie has the token of the person. Browsers take a name with this prefix by HTTPS alone.
	sessionCookie = "__Secure-db-controller-console"
	// maxTokenBytes bounds a token, which has to fit into a cookie.
	maxTokenBytes = 2800
	// readTimeout is the patience with a browser that does not read its answer.
	readTimeout = 30 * time.Second
	// streamTime is how long one stream of events lasts: its token is verified when it begins, and the
	// browser opens it again.
	streamTime = 5 * time.Minute
)

// Sessions serve the console to people who prove who they are by a token. The page itself has no secrets, and
// is served to every caller; its data are read with the token of the person, whose rights decide. The token
// is in a cookie that scripts and other sites do not get; it is verified with every request, and nothing of a
// session is stored here between requests.
type Sessions struct {
	cfg  SessionsConfig
	page http.Handler // files alone

	mu   sync.Mutex
	open map[[sha256.Size]byte]*session // guarded by mu; of tokens with requests under way
}

// SessionsConfig of Sessions. All functions are needed.
type SessionsConfig struct {
	// Verify returns the identity of a token.
	Verify func(ctx context.Context, token string) (who string, err error)
	// Enter waits for a slot of the identity, and returns a function that frees it.
	Enter func(ctx context.Context, who string, stream bool) (leave func(), err error)
	// Of returns the deployments as a token sees them.
	Of func(token string) Deployments
	// Actions allows actions (AllowActions).
	Actions bool
}

// session is a console for one token: the open pages share its looks.
type session struct {
	handler http.Handler
	users   int // guarded by Sessions.mu
}

// NewSessions returns the console below SessionsPath.
func NewSessions(cfg SessionsConfig) *Sessions {
	return &Sessions{
		cfg: cfg, page: http.StripPrefix(strings.TrimSuffix(SessionsPath, "/"), newPage()),
		open: map[[sha256.Size]byte]*session{},
	}
}

// ServeHTTP implements http.Handler.
func (s *Sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// a stream of events sets later ones
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout))
	switch path := strings.TrimPrefix(r.URL.Path, SessionsPath); {
	case foreign(r):
		harden(w)
		refuse(w, http.StatusForbidden, "a page of another site may not ask this")
	case path == "session":
		harden(w)
		s.session(w, r)
	case strings.HasPrefix(path, "api/"):
		harden(w)
		s.api(w, r, path == "api/events")
	default:
		s.page.ServeHTTP(w, r)
	}
}

// foreign reports whether a browser says that another site asks, beyond a link to the page.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}

// session begins a session with the token of the header (POST), ends it (DELETE), or reports whether there is
// one (GET).
func (s *Sessions) session(w http.ResponseWriter, r *http.Request) {
	cookie := &http.Cookie{
		Name: sessionCookie, Path: SessionsPath, HttpOnly: true, Secure: true,
		SameSite: http.SameSiteStrictMode,
	}
	switch r.Method {
	case http.MethodGet:
		_, err := s.cfg.Verify(r.Context(), tokenOf(r))
		reply(w, signedIn{err == nil, s.cfg.Actions})
		return
	case http.MethodPost:
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > maxTokenBytes {
			refuse(w, http.StatusUnauthorized, "want a token of at most 2,800 bytes")
			return
		}
		if _, err := s.cfg.Verify(r.Context(), token); err != nil {
			refuse(w, http.StatusUnauthorized, plain(err))
			return
		}
		cookie.Value = base64.RawURLEncoding.EncodeToString([]byte(token))
		http.SetCookie(w, cookie)
	case http.MethodDelete:
		cookie.MaxAge = -1
		http.SetCookie(w, cookie)
	default:
		refuse(w, http.StatusMethodNotAllowed, "want GET, POST or DELETE")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// signedIn reports to the page whether it has to ask for a token.
type signedIn struct {
	SignedIn bool `json:"signed_in"`
	// Actions are allowed.
	Actions bool `json:"actions,omitempty"`
}

func tokenOf(r *http.Request) string {
	c, err := r.Cookie(sessionCookie)
	if err != nil || len(c.Value) > 2*maxTokenBytes {
		return ""
	}
	token, _ := base64.RawURLEncoding.DecodeString(c.Value)
	return string(token)
}

func (s *Sessions) api(w http.ResponseWriter, r *http.Request, stream bool) {
	token := tokenOf(r)
	who, err := s.cfg.Verify(r.Context(), token)
	if err != nil {
		refuse(w, http.StatusUnauthorized, plain(err))
		return
	}
	leave, err := s.cfg.Enter(r.Context(), who, stream)
	if err != nil {
		refuse(w, http.StatusTooManyRequests, plain(err))
		return
	}
	defer leave()
	handler, done := s.of(token)
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), streamTime)
	defer cancel()
	http.StripPrefix(strings.TrimSuffix(SessionsPath, "/"), handler).ServeHTTP(w, r.WithContext(ctx))
}

// of returns the console of a token, which requests that are under way share.
func (s *Sessions) of(token string) (http.Handler, func()) {
	key := sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[key]
	if o == nil {
		console := NewHandler(s.cfg.Of(token))
		if s.cfg.Actions {
			console.AllowActions()
		}
		o = &session{handler: console}
		s.open[key] = o
	}
	o.users++
	return o.handler, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(s.open, key)
		}
	}
}
