package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// The registry's history has parts. Each server that starts begins one, and so does each notice of an older
// copy or of another PostgreSQL server. Watches and answers name the part in which a revision was read, and
// deployments tell both again. An older copy that has gone on by itself, however many changes it has
// received, lacks the parts that began after it was made, or has ended a part at an earlier revision.

const (
	tokenKeysSQL = `SELECT token_keys FROM dbcontroller_registry.meta`

	beginHistorySQL = `
WITH began AS (
    INSERT INTO dbcontroller_registry.history (id, began) SELECT $1, revision FROM dbcontroller_registry.meta
)
UPDATE dbcontroller_registry.meta SET history = $1`

	// Known to be forked, or ended at an earlier revision: by the part after it.
	selectPartSQL = `
SELECT h.forked, EXISTS (SELECT FROM dbcontroller_registry.history n WHERE n.seq > h.seq AND n.began < $2)
FROM dbcontroller_registry.history h WHERE h.id = $1`

	forkSQL = `
INSERT INTO dbcontroller_registry.history (id, began, forked) SELECT $1, revision, true FROM dbcontroller_registry.meta
ON CONFLICT (id) DO UPDATE SET forked = true`
)

type queryRower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Begin begins a part of the history. Call it when a server starts, before it serves: the database may have
// been replaced while no server ran.
func (s *Server) Begin(ctx context.Context) error {
	if err := s.store.noticeServer(ctx); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, s.store.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockRevisionSQL); err != nil {
			return err
		}
		return beginHistory(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("begin a part of the registry's history: %w", err)
	}
	return nil
}

// beginHistory needs the lock of the revision.
func beginHistory(ctx context.Context, tx pgx.Tx) error {
	keys, err := tokenKeys(ctx, tx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, beginHistorySQL, newPart(keys[0]))
	return err
}

// tokenKeys reads the keys each time: another database may have taken this one's place. The first one makes
// ids and stamps.
func tokenKeys(ctx context.Context, q queryRower) (keys [][]byte, err error) {
	if err := q.QueryRow(ctx, tokenKeysSQL).Scan(&keys); err != nil {
		return nil, fmt.Errorf("read the keys of the history: %w", err)
	}
	return keys, nil
}

const partBytes = 16

// newPart makes the id of a part: random bytes, and their authentication code, so that no caller can invent
// an id.
func newPart(key []byte) string {
	id := make([]byte, partBytes)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(append(id, partMAC(key, id)...))
}

func partMAC(key, id []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte("history"))
	_, _ = h.Write(id)
	return h.Sum(nil)[:partBytes]
}

// isPart reports whether a registry with one of the keys has made the id: this database, or another copy of
// the same database.
func isPart(keys [][]byte, history string) bool {
	raw, err := hex.DecodeString(history)
	return err == nil && len(raw) == 2*partBytes && slices.ContainsFunc(keys, func(key []byte) bool {
		return hmac.Equal(raw[partBytes:], partMAC(key, raw[:partBytes]))
	})
}

// stamp identifies the answer to a caller: the part of the history, the revision that was read in it, and
// their authentication.
func stamp(key []byte, told seen) string {
	payload := told.history + "." + strconv.FormatInt(told.revision, 10)
	return payload + "." + hex.EncodeToString(stampMAC(key, payload))
}

func stampMAC(key []byte, payload string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte("seen" + payload))
	return h.Sum(nil)[:partBytes]
}

// stamped returns the content of a stamp that a registry with one of the keys has sent; zero for anything
// else.
func stamped(keys [][]byte, text string) seen {
	i := strings.LastIndexByte(text, '.')
	if i < 0 {
		return seen{}
	}
	mac, err := hex.DecodeString(text[i+1:])
	if err != nil || !slices.ContainsFunc(keys, func(key []byte) bool {
		return hmac.Equal(mac, stampMAC(key, text[:i]))
	}) {
		return seen{}
	}
	history, number, _ := strings.Cut(text[:i], ".")
	revision, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return seen{}
	}
	return seen{revision, history}
}

// isForked reports whether a part of the history went on in another copy of the database beyond this one, and
// that is not yet known.
func isForked(ctx context.Context, q queryRower, what seen) (bool, error) {
	keys, err := tokenKeys(ctx, q)
	if err != nil {
		return false, err
	}
	if !isPart(keys, what.history) {
		return false, nil // of another registry, or invented
	}
	var known, endedBefore bool
	err = q.QueryRow(ctx, selectPartSQL, what.history, what.revision).Scan(&known, &endedBefore)
	switch {
	case err == pgx.ErrNoRows: //nolint:errorlint // of Scan itself
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read the history: %w", err)
	}
	return endedBefore && !known, nil
}

// fork notes that a part of the history is known to have gone on elsewhere, and begins a new one. It needs
// the lock of the revision, and has to come before the revision moves: the part ends at the last revision
// that this database has of it.
func fork(ctx context.Context, tx pgx.Tx, what seen) error {
	if what.history != "" {
		if _, err := tx.Exec(ctx, forkSQL, what.history); err != nil {
			return err
		}
	}
	return beginHistory(ctx, tx)
}

// streamed is the state of a watch: the revision that it has sent, with the part of the history that is named
// at its tokens.
type streamed struct {
	server   *Server
	revision int64 // of the newest event; 0 before the first
	history  string
	moved    bool   // there were events since the last token
	told     seen   // by the caller, or with the last token
	stamp    string // of told
	// caller is the deployment that watches, if one does. listed is true when its entry has changed since the
	// caller was heard: an entry that is made after the watch was opened does not say that the deployment has
	// reported its revision.
	caller schema.DeploymentID
	listed bool
}

// stream checks the revision that the caller of a watch has seen. The part is read first: the caller is heard
// in this one, or in a later one.
func (s *Server) stream(ctx context.Context, told seen) (*streamed, error) {
	history, err := s.store.readHistory(ctx)
	if err != nil {
		return nil, err
	}
	told, err = s.check(ctx, told)
	w := &streamed{server: s, history: history, told: told}
	if who, unknown := identity.FromContext(ctx); unknown == nil {
		w.caller = who.Deployment
	}
	return w, err
}

func (w *streamed) take(change *registryv1.WatchEnvironmentResponse_Change) {
	w.revision, w.moved = max(w.revision, change.GetRevision()), true
	if d := change.GetDeployment(); d != nil &&
		w.caller == (schema.DeploymentID{Service: d.GetService(), Region: d.GetRegion()}) {
		w.listed = true
	}
}

// settle reads the part of the history that is named at the next token: after the events were read, so that
// it is not an earlier one than theirs. If another server has begun it, or the caller's entry has changed,
// the caller's revision is compared with the database again.
func (w *streamed) settle(ctx context.Context) error {
	history, err := w.server.store.recentHistory(ctx)
	if err == nil && (w.moved || history != w.history) {
		history, err = w.server.store.readHistory(ctx)
	}
	if err != nil {
		return err
	}
	if history != w.history || w.listed {
		if err := w.server.compare(ctx, w.told); err != nil {
			return err
		}
	}
	w.history, w.moved, w.listed = history, false, false
	if told := (seen{max(w.told.revision, w.revision), history}); told != w.told || w.stamp == "" {
		w.told = told
		w.stamp, err = w.server.store.stamp(ctx, told)
	}
	return err
}

func (s *store) stamp(ctx context.Context, told seen) (string, error) {
	keys, err := tokenKeys(ctx, s.pool)
	if err != nil {
		return "", err
	}
	return stamp(keys[0], told), nil
}

func (s *store) readHistory(ctx context.Context) (history string, err error) {
	if err := s.pool.QueryRow(ctx, selectHistorySQL).Scan(&history); err != nil {
		return "", fmt.Errorf("read the history: %w", err)
	}
	s.recent.Store(&recentHistory{history, time.Now()})
	return history, nil
}

// recentHistory is the part of the history of a moment ago, shared by idle watches.
type recentHistory struct {
	history string
	at      time.Time
}

func (s *store) recentHistory(ctx context.Context) (string, error) {
	if r := s.recent.Load(); r != nil && time.Since(r.at) < 2*time.Second {
		return r.history, nil
	}
	history, err, _ := s.reading.Do("", func() (any, error) { return s.readHistory(context.WithoutCancel(ctx)) })
	if err != nil {
		return "", err
	}
	return history.(string), nil
}
