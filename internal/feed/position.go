package feed

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Position in a feed is a PostgreSQL snapshot, not a number: all transactions committed before the snapshot
// lie before the position, in any order of their rows' numbers. The rows between two positions are visible to
// the newer snapshot and not to the older one; among these, the sequence numbers are in the order in which
// rows of one resource were written. A transaction that took its number early and commits late is not missed,
// as it would be by a cursor over the sequence, and a transaction that stays open delays no other.
type Position struct {
	// Text of pg_snapshot: xmin:xmax:xip,xip,...
	Text string
	xmin string
	xmax string
	xip  []string
}

var errPosition = errors.New("malformed position")

func parsePosition(text string) (Position, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return Position{}, errPosition
	}
	p := Position{Text: text, xmin: parts[0], xmax: parts[1]}
	if parts[2] != "" {
		p.xip = strings.Split(parts[2], ",")
	}
	for _, xid := range append([]string{p.xmin, p.xmax}, p.xip...) {
		if xid == "" || strings.Trim(xid, "0123456789") != "" {
			return Position{}, errPosition
		}
	}
	return p, nil
}

// ServerSQL is the identity of the server, for the state row m. It changes with a restored or copied database
// (which has another oid), another server and a promoted standby; a process that finds another identity than
// the stored one begins a new epoch. Two standbys of one primary that are promoted one after the other have
// the same identity, so that transaction ids and positions belong to an epoch, and never to a server. The
// timeline comes from the log that is written at present: the control file has the timeline of a promotion
// only after the next checkpoint.
//
// EpochSQL is the present epoch, or null when the server is not the one on which it began. Timeline and oid
// are cheap enough to be asked for in every read (the control file takes a quarter of a millisecond to read).
const (
	TimelineSQL = `left(pg_walfile_name(pg_current_wal_lsn()), 8)`
	oidSQL      = `(SELECT oid FROM pg_database WHERE datname = current_database())`
	// lsnSQL selects a place in the log that is not before the snapshot, and whether the log is on disk up to
	// there.
	lsnSQL    = `pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()`
	ServerSQL = `m.database_id::text || '.' || ` + oidSQL + ` || '.' ||
    (SELECT system_identifier FROM pg_control_system()) || '.' || ` + TimelineSQL
	EpochSQL = `CASE WHEN m.timeline = ` + TimelineSQL + ` AND split_part(m.server, '.', 2) = ` + oidSQL +
		`::text THEN m.epoch END`
)

// The statement that reads the state is StateBegin, a text, StateFrom, the table of one row, and StateEnd;
// WrittenBegin and WrittenFrom are of Config.WrittenSQL.
const (
	StateBegin = `
SELECT pg_current_snapshot()::text, ` + lsnSQL + `, COALESCE((` + EpochSQL + `)::text, ''), m.token_keys, m.compacted::text, `
	StateFrom = ` FROM `
	StateEnd  = ` AS m`

	WrittenBegin = `
SELECT pg_current_snapshot()::text, ` + lsnSQL + `, COALESCE((` + EpochSQL + `)::text, ''), (`
	WrittenFrom = `)::smallint FROM `
)

// state is the identity of a database and its server at a position.
type state struct {
	at        string
	lsn       string
	flushed   bool
	epoch     string   // empty until a new epoch has begun
	keys      [][]byte // the first one makes tokens
	compacted string
	present   string // the text that Config.Lost compares
}

// Querier is a pool or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (l *Log) state(ctx context.Context, q Querier) (st state, err error) {
	return readState(q.QueryRow(ctx, l.cfg.StateSQL))
}

func readState(row pgx.Row) (st state, err error) {
	if err = row.Scan(&st.at, &st.lsn, &st.flushed, &st.epoch, &st.keys, &st.compacted, &st.present); err != nil {
		return st, fmt.Errorf("read the database's epoch: %w", err)
	}
	if st.epoch == "" {
		return st, ErrUnnoticed
	}
	return st, nil
}

const macBytes = 16

// token writes a position down for a client, bound to the epoch and the filter, and authenticated.
func (l *Log) token(st state, p Position, filter string) string {
	key := st.keys[0]
	payload := strings.Join([]string{"3", keyID(key), st.epoch, filter, p.Text, l.cfg.Witness()}, "|")
	return base64.RawURLEncoding.EncodeToString(append(mac(key, payload), payload...))
}

func mac(key []byte, payload string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(payload))
	return h.Sum(nil)[:macBytes]
}

// keyID names a key in the tokens that it authenticates.
func keyID(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// authentic reports whether a key of the database has made a payload's code, and whether the database knows
// the key that the payload names.
func (st state) authentic(code []byte, payload, id string) (authentic, known bool) {
	for _, key := range st.keys {
		if keyID(key) == id {
			return hmac.Equal(code, mac(key, payload)), true
		}
	}
	return false, false
}

// QueueOpen reads a token back in a batch of statements. The position is set when the batch has been sent.
// Every way in which the token cannot be used is ErrReset, or ErrUnnoticed for now. The position is one of
// the database of the batch; a transaction that uses it has to be the one of the batch, since the next
// connection may be to a promoted standby.
func (l *Log) QueueOpen(ctx context.Context, b *pgx.Batch, token, filter string) *Position {
	p := &Position{}
	b.Queue(l.cfg.StateSQL).QueryRow(func(row pgx.Row) error {
		st, err := readState(row)
		if err == nil {
			*p, err = l.open(ctx, st, token, filter)
		}
		return err
	})
	return p
}

// OpenIn reads a token back in a transaction, of any watch whose filter begins with a text. Rows after its
// position are all still there; otherwise it is ErrReset, as in QueueOpen.
func (l *Log) OpenIn(ctx context.Context, tx Querier, token, prefix string) (Position, error) {
	st, err := l.state(ctx, tx)
	if err != nil {
		return Position{}, err
	}
	filter := filterOf(token)
	if !strings.HasPrefix(filter, prefix) {
		return Position{}, fmt.Errorf("%w: of another watch", ErrReset)
	}
	p, err := l.open(ctx, st, token, filter)
	if err == nil && st.compactedBeyond(p) {
		err = errCompacted
	}
	return p, err
}

// filterOf returns the filter that a token names, authentic or not; empty for a malformed one.
func filterOf(token string) string {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < macBytes {
		return ""
	}
	if parts := strings.Split(string(raw[macBytes:]), "|"); len(parts) > 3 {
		return parts[3]
	}
	return ""
}

var errCompacted = fmt.Errorf("%w: it is older than the retention of changes", ErrReset)

// CheckAhead fails, with ErrReset, when a stored token shows that the database is an older copy: the token is
// ahead of the database, or of a later epoch that the database has not begun. It fails with ErrUnknownKey for
// a token of a key that is not here: it was invented, or the copy is older than a rotation of the keys. Any
// other token shows nothing.
func (l *Log) CheckAhead(ctx context.Context, token, filter string) error {
	st, err := l.state(ctx, l.cfg.Pool)
	if err != nil {
		return err
	}
	var other otherEpochError
	switch _, err = l.open(ctx, st, token, filter); {
	case errors.As(err, &other):
		return l.checkLater(ctx, st, other, filter)
	case errors.Is(err, errAhead), errors.Is(err, ErrUnknownKey), !errors.Is(err, ErrReset):
		return err
	}
	return nil
}

// Issued reports whether this database has issued a token for a filter: in any epoch, also in an epoch that
// the database has lost.
func (l *Log) Issued(ctx context.Context, token, filter string) (bool, error) {
	st, err := l.state(ctx, l.cfg.Pool)
	if err != nil {
		return false, err
	}
	var other otherEpochError
	_, err = l.read(st, token, filter)
	return err == nil || errors.Is(err, errAhead) || errors.As(err, &other) && other.filter == filter, nil
}

const begunSQL = `SELECT EXISTS (SELECT FROM dbcontroller.epoch WHERE id = $1::text::uuid)`

// checkLater fails when an epoch is later than the present one, and was never begun here. One that was begun
// here is later only when the clock went back since.
func (l *Log) checkLater(ctx context.Context, st state, other otherEpochError, filter string) error {
	if other.epoch <= st.epoch || other.filter != filter {
		return nil
	}
	var begun bool
	if err := l.cfg.Pool.QueryRow(ctx, begunSQL, other.epoch).Scan(&begun); err != nil || begun {
		return err
	}
	if l.cfg.Ahead != nil {
		l.cfg.Ahead(ctx, st.epoch)
	}
	return errAhead
}

// otherEpochError is of an authentic token of another epoch.
type otherEpochError struct{ epoch, filter string }

func (otherEpochError) Error() string {
	return ErrReset.Error() + ": the database was restored, copied or failed over since"
}

func (otherEpochError) Unwrap() error { return ErrReset }

// open reads a token back, and reports a token that is ahead of the database.
func (l *Log) open(ctx context.Context, st state, token, filter string) (Position, error) {
	p, err := l.read(st, token, filter)
	if errors.Is(err, errAhead) && l.cfg.Ahead != nil {
		l.cfg.Ahead(ctx, st.epoch)
	}
	return p, err
}

// ErrUnknownKey is an ErrReset: the token names a key that the database does not have.
var ErrUnknownKey = fmt.Errorf("%w: it was not made by this database, or before its keys were rotated twice", ErrReset)

// errAhead: a position is sent only when the log is on disk up to it, so that no crash leads back to before
// it. Only an older copy of the database, whose server nothing distinguishes from the former one, has not
// reached it.
var errAhead = fmt.Errorf("%w: it is ahead of the database, which an older copy has replaced", ErrReset)

func (l *Log) read(st state, token, filter string) (Position, error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < macBytes {
		return Position{}, fmt.Errorf("%w: malformed", ErrReset)
	}
	payload := string(raw[macBytes:])
	parts := strings.Split(payload, "|")
	if len(parts) < 2 || parts[0] != "3" {
		return Position{}, fmt.Errorf("%w: of another format", ErrReset)
	}
	switch authentic, known := st.authentic(raw[:macBytes], payload, parts[1]); {
	case !known:
		return Position{}, ErrUnknownKey
	case !authentic, len(parts) != 6:
		return Position{}, fmt.Errorf("%w: it was not made by this database", ErrReset)
	case parts[2] != st.epoch:
		return Position{}, otherEpochError{parts[2], parts[3]}
	case parts[3] != filter:
		return Position{}, fmt.Errorf("%w: of another watch", ErrReset)
	}
	p, err := parsePosition(parts[4])
	if err != nil {
		return Position{}, fmt.Errorf("%w: %w", ErrReset, err)
	}
	if now, err := parsePosition(st.at); err != nil || p.ahead(now) || l.cfg.Lost(parts[5], st.present) {
		return Position{}, cmp.Or(err, errAhead)
	}
	return p, nil
}

// ahead reports whether a position knows of the end of a transaction with a number that a later snapshot q
// has not reached.
func (p Position) ahead(q Position) bool {
	return len(p.xmax) > len(q.xmax) || len(p.xmax) == len(q.xmax) && p.xmax > q.xmax
}

// compactedBeyond reports whether rows after the position may have been removed: all removed rows are visible
// in it only when its oldest running transaction is newer than they.
func (st state) compactedBeyond(p Position) bool {
	return len(p.xmin) < len(st.compacted) || len(p.xmin) == len(st.compacted) && p.xmin <= st.compacted
}

// after reports whether a position was taken later than another one of the same timeline.
func (p Position) after(q Position) bool {
	if p.xmax != q.xmax {
		return p.ahead(q)
	}
	return len(p.xip) < len(q.xip) // no transaction began, and some have ended
}
