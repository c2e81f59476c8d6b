package shadow

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/db-controller/db-controller/schema"
)

// A position in a feed is a PostgreSQL snapshot, not a number: what was committed before it was taken lies before it,
// whatever numbers the rows have. A row carries the id of the transaction that wrote it (xid8) and a sequence number.
// What a newer snapshot sees and an older one did not is exactly what was committed in between; within it, the
// sequence numbers are in the order in which rows of one resource were written. A transaction that took its number
// early and commits late is not missed, as it would be by a cursor over the sequence, and one that stays open holds
// nothing back.
type position struct {
	// text of pg_snapshot: xmin:xmax:xip,xip,...
	text string
	xmin string
	xmax string
	xip  []string
}

var errPosition = errors.New("malformed position")

func parsePosition(text string) (position, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return position{}, errPosition
	}
	p := position{text: text, xmin: parts[0], xmax: parts[1]}
	if parts[2] != "" {
		p.xip = strings.Split(parts[2], ",")
	}
	for _, xid := range append([]string{p.xmin, p.xmax}, p.xip...) {
		if xid == "" || strings.Trim(xid, "0123456789") != "" {
			return position{}, errPosition
		}
	}
	return p, nil
}

// epochSQL changes with a restored or cloned database, another server and a promoted standby: transaction ids of one
// epoch mean nothing in another. The timeline is that of the log that is written now: the control file learns of a
// promotion only at the next checkpoint.
const epochSQL = `
SELECT m.database_id::text || '.' || s.system_identifier || '.' || left(pg_walfile_name(pg_current_wal_lsn()), 8),
    m.token_key, m.compacted::text
FROM dbcontroller.meta m, pg_control_system() s`

type epoch struct {
	id        string
	key       []byte
	compacted string
}

func (s *Store) epoch(ctx context.Context) (e epoch, err error) {
	if err = s.pool.QueryRow(ctx, epochSQL).Scan(&e.id, &e.key, &e.compacted); err != nil {
		return e, fmt.Errorf("read the database's epoch: %w", err)
	}
	return e, nil
}

// noticesFilter binds a token to what was watched, and by whom.
func noticesFilter(d schema.DeploymentID) string { return "deletions for " + d.String() }

const macBytes = 16

// token writes a position down for a client, bound to the epoch and the filter, and authenticated.
func (e epoch) token(p position, filter string) string {
	payload := strings.Join([]string{"1", e.id, filter, p.text}, "|")
	return base64.RawURLEncoding.EncodeToString(append(e.mac(payload), payload...))
}

func (e epoch) mac(payload string) []byte {
	h := hmac.New(sha256.New, e.key)
	_, _ = h.Write([]byte(payload))
	return h.Sum(nil)[:macBytes]
}

// openToken reads a token back. Every way in which it cannot be used is ErrReset.
func (s *Store) openToken(ctx context.Context, token, filter string) (position, error) {
	e, err := s.epoch(ctx)
	if err != nil {
		return position{}, err
	}
	return e.open(token, filter)
}

func (e epoch) open(token, filter string) (position, error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < macBytes {
		return position{}, fmt.Errorf("%w: malformed", ErrReset)
	}
	payload := string(raw[macBytes:])
	if !hmac.Equal(raw[:macBytes], e.mac(payload)) {
		return position{}, fmt.Errorf("%w: it was not made by this database", ErrReset)
	}
	parts := strings.Split(payload, "|")
	switch {
	case len(parts) != 4 || parts[0] != "1":
		return position{}, fmt.Errorf("%w: of another format", ErrReset)
	case parts[1] != e.id:
		return position{}, fmt.Errorf("%w: the database was restored or failed over since", ErrReset)
	case parts[2] != filter:
		return position{}, fmt.Errorf("%w: of another watch", ErrReset)
	}
	p, err := parsePosition(parts[3])
	if err != nil {
		return position{}, fmt.Errorf("%w: %w", ErrReset, err)
	}
	return p, nil
}

// compactedBeyond tells whether rows that lie after the position may be gone: all that were removed are visible in it
// only when its oldest running transaction is newer than they.
func (e epoch) compactedBeyond(p position) bool {
	return len(p.xmin) < len(e.compacted) || len(p.xmin) == len(e.compacted) && p.xmin <= e.compacted
}
