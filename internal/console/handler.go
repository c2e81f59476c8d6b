// Package console serves a page that shows the deployments of an environment: a map of services and regions
// with the watches between them, outstanding work over time, running deletions, stuck resources and work with
// their reasons, single resources, the kinds and their references, and who changed the environment. The page
// only reads unless actions are allowed. It is embedded, loads nothing from elsewhere, and is kept up to date
// by server-sent events.
package console

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"time"
)

//go:embed assets
var assets embed.FS

// policyHeader: scripts, styles and data come from this server only, and no other page may frame it.
const policyHeader = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pingInterval is the pause between two lines that show a browser, and proxies on the way, that the stream
// lives.
const pingInterval = 10 * time.Second

// Handler serves the console for one person, with whose identity the deployments are called.
type Handler struct {
	mux    *http.ServeMux
	of     Deployments
	poller *Poller
	acts   bool // AllowActions
}

// NewHandler returns the console over deployments.
func NewHandler(of Deployments) *Handler {
	h := &Handler{mux: http.NewServeMux(), of: of, poller: NewPoller(of)}
	h.mux.Handle("GET /", files())
	h.mux.HandleFunc("GET /session", func(w http.ResponseWriter, _ *http.Request) { reply(w, signedIn{true, h.acts}) })
	h.mux.HandleFunc("GET /api/events", h.events)
	h.mux.HandleFunc("GET /api/stuck", h.stuck)
	h.mux.HandleFunc("GET /api/resource", h.resource)
	h.mux.HandleFunc("GET /api/resources", h.resources)
	h.mux.HandleFunc("GET /api/plan", h.plan)
	h.mux.HandleFunc("GET /api/deletion", h.deletion)
	h.mux.HandleFunc("GET /api/ended", h.ended)
	h.mux.HandleFunc("GET /api/changes", h.changes)
	h.mux.HandleFunc("GET /api/kinds", h.kinds)
	h.mux.HandleFunc("GET /api/kinds.svg", h.kindsPicture)
	return h
}

func files() http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) //nolint:forbidigo // the folder is embedded
	}
	return http.FileServerFS(files)
}

// newPage serves the files of the page alone.
func newPage() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", files())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		harden(w)
		mux.ServeHTTP(w, r)
	})
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	harden(w)
	h.mux.ServeHTTP(w, r)
}

// harden sets the headers of every answer.
func harden(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Security-Policy", policyHeader)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// events sends everything, then changes, as server-sent events.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	stream := http.NewResponseController(w)
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	changes := make(chan Change)
	go func() {
		defer close(changes)
		_ = h.poller.Watch(r.Context(), func(c Change) error {
			select {
			case changes <- c:
				return nil
			case <-r.Context().Done():
				return r.Context().Err()
			}
		})
	}()
	for {
		var text string
		select {
		case <-r.Context().Done():
			return
		case <-ping.C:
			text = ": ping\n\n"
		case c, ok := <-changes:
			if !ok {
				return
			}
			raw, err := json.Marshal(c)
			if err != nil {
				return
			}
			text = "data: " + string(raw) + "\n\n"
		}
		_ = stream.SetWriteDeadline(time.Now().Add(pingInterval)) // a browser that does not read is left
		if _, err := fmt.Fprint(w, text); err != nil || stream.Flush() != nil {
			return
		}
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the browser has gone
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}
