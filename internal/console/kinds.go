package console

import (
	"bytes"
	"net/http"

	"github.com/db-controller/db-controller/internal/kindgraph"
)

// graphOf returns the graph of the kinds that run; it has answered the request when ok is false.
func (h *Handler) graphOf(w http.ResponseWriter, r *http.Request) (g *kindgraph.Graph, ok bool) {
	env, err := h.of.Environment(r.Context())
	if err != nil {
		refuse(w, http.StatusBadGateway, plain(err))
		return nil, false
	}
	return kindgraph.Of(kindgraph.Running(env)), true
}

// kinds answers with the kinds and their references, for people who read a table.
func (h *Handler) kinds(w http.ResponseWriter, r *http.Request) {
	if g, ok := h.graphOf(w, r); ok {
		reply(w, g)
	}
}

// kindsPicture answers with the same as a picture.
func (h *Handler) kindsPicture(w http.ResponseWriter, r *http.Request) {
	g, ok := h.graphOf(w, r)
	if !ok {
		return
	}
	var picture bytes.Buffer
	_ = g.SVG(&picture) // a buffer takes everything
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(picture.Bytes()) // the browser has gone
}
