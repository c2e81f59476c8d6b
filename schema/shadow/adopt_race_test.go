package shadow_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// Two versions with the same references: their bodies need no derivation.
const alike = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    hide_while_deleting: true
    references: [{ path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }]
`

// before runs do once, before a statement with a text is sent.
type before struct {
	text string
	do   func()
	once sync.Once
}

func (w *before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, w.text) {
		w.once.Do(w.do)
	}
	return ctx
}

func (w *before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A process that adopts a version while another process switches to one with the same references does not
// take the generation of that one for its own.
func TestASwitchDuringAnAdoptionIsNoticed_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, alike, nil, aWest, bEast)
	id := b.ID(bEast)
	cfg := b.Pools[id].Config().Copy()
	w := &before{text: "FULL JOIN dbcontroller.derivation", do: func() { b.Switch(bEast, "v2") }}
	cfg.ConnConfig.Tracer = w
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	other, err := shadow.Open(t.Context(), shadow.Config{Pool: pool, Deployment: id, Peers: b.Peers(bEast)})
	require.NoError(t, err)
	v1 := modelOf(t, alike, "b.example.com", "v1")
	require.ErrorAs(t, other.Admin.Adopt(t.Context(), v1), new(*peer.UnavailableError), "the database runs v2")
	require.NoError(t, other.Admin.Adopt(t.Context(), modelOf(t, alike, "b.example.com", "v2")))
}
