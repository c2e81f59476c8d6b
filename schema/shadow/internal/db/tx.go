package db

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// FewRows is the number of rows up to which planning a statement for its values costs more than running it.
const FewRows = 32

// QueuePlans sets the plans of the following statements, in a transaction that concerns about so many rows.
// Few rows are found by their keys: a hash or a merge of a table that had some hundred rows when the
// statement was planned reads all its rows, each time and also when it has grown. For many rows, the nested
// loops of such a plan compare each row with each other. Transactions of the caller's keep their plans.
func QueuePlans(tx pgx.Tx, b *pgx.Batch, rows int) {
	m, _ := own(tx)
	if m == nil {
		return
	}
	m.rows += rows
	if rows <= FewRows {
		b.Queue(GenericPlansSQL)
	} else {
		b.Queue(OwnPlansSQL)
	}
}

// GenericPlansSQL plans statements once in a session, for any values.
const GenericPlansSQL = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

// OwnPlansSQL plans statements for their values. (By itself, PostgreSQL prefers a generic plan that it has:
// it estimates ten rows of an array.) Merges are off: one by the order of an index joins by its first column
// alone, such as the target that all rows of a batch have in common. The numbers of rows that the transaction
// writes are reported with its end, for RunStatistics: an idle session reports them after ten seconds.
const OwnPlansSQL = `SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'off', true), pg_stat_force_next_flush()`

// OneOf is the condition that a column has a value of an array, beside a condition that an index serves. It
// keeps this condition from an index, such as the index of targets, of which one can have very many rows. The
// array is hashed: the plan of '= ANY' for any values compares each row with each element. (IS TRUE keeps the
// planner from making a join of it.)
func OneOf(column, array string) string {
	return "(" + column + " IN (SELECT unnest(" + array + "))) IS TRUE"
}

// OfMany returns a statement about references of holders ($1) to targets ($2), for so many targets. Of few,
// the index of targets may serve it: a holder can have many references to others.
func OfMany(sql string, targets int) string {
	if targets <= FewRows {
		return sql
	}
	return strings.Replace(sql, "target_id = ANY ($2)", OneOf("target_id", "$2::bigint[]"), 1)
}

// own returns a transaction of InTx; nil for a transaction of another pool, or of the caller.
func own(tx pgx.Tx) (*Marked, *postgres.Tx) {
	if m, ok := tx.(*Marked); ok {
		if inner, ok := m.Tx.(*postgres.Tx); ok {
			return m, inner
		}
	}
	return nil, nil
}

// InTx runs fn in a transaction, and repeats it when PostgreSQL broke a deadlock. After the commit it wakes
// the watches of the feeds that the transaction has changed.
func (s *DB) InTx(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error {
	return s.inTx(ctx, func() (pgx.Tx, error) { return postgres.Begin(ctx, s.Pool) }, touches, fn)
}

// Beginner begins transactions: a pool.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTxOf is InTx with a transaction of another pool.
func (s *DB) InTxOf(ctx context.Context, pool Beginner, options pgx.TxOptions, touches feed.Topics,
	fn func(pgx.Tx) error,
) error {
	return s.inTx(ctx, func() (pgx.Tx, error) { return pool.BeginTx(ctx, options) }, touches, fn)
}

func (s *DB) inTx(ctx context.Context, begin func() (pgx.Tx, error), touches feed.Topics, fn func(pgx.Tx) error) error {
	const tries = 10
	for try := 1; ; try++ {
		err := s.once(ctx, begin, fn)
		if err == nil && touches != NoFeed {
			s.Touched(touches)
		}
		if !again(err) || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(rand.Int64N(int64(try) * int64(5*time.Millisecond)))):
		}
	}
}

func (s *DB) once(ctx context.Context, begin func() (pgx.Tx, error), fn func(pgx.Tx) error) error {
	tx, err := begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // without effect after the commit
	if err := enforce(ctx, tx); err != nil {
		return err
	}
	m := &Marked{Tx: tx}
	if err := fn(m); err != nil {
		return err
	}
	if !m.committed {
		if err := m.beforeCommit(ctx); err != nil {
			return err
		}
		if err := ofCommit(tx.Commit(ctx)); err != nil {
			return err
		}
	}
	if !m.redoable {
		s.Rollback.Observe(m.Mark)
		if m.xid != nil && m.epoch != nil {
			s.Feeds.Committed(*m.epoch, *m.xid)
		}
	}
	if m.rows > 0 {
		s.Written.Add(int64(m.rows))
		select {
		case s.Wrote <- struct{}{}:
		default:
		}
	}
	for _, fn := range m.after {
		fn()
	}
	return nil
}

// Kept returns the refusal by a constraint or a trigger of the application; nil for other errors. The table
// is the attached one, if it is known.
func Kept(table string, err error) error {
	constraint, text, ok := postgres.Objection(err, "dbcontroller")
	if !ok {
		if text, ok = postgres.InForeignCode(err, "dbcontroller"); !ok {
			return nil
		}
		text += " (its function runs with the search_path pg_catalog, and the rights of the role that changes rows: " +
			"ALTER FUNCTION … SECURITY DEFINER SET search_path = …)"
	}
	return &peer.KeptError{Table: table, Constraint: constraint, Text: text}
}

// ofCommit adds to an error of a commit that its outcome is unknown, unless the server reported a rollback,
// or nothing was sent.
func ofCommit(err error) error {
	var pg *pgconn.PgError
	if kept := Kept("", err); kept != nil { // a constraint that is checked at the commit
		return kept
	}
	if err == nil || errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return err
	}
	return fmt.Errorf("%w: %w", peer.ErrUnknown, err)
}

// Marked is a transaction with the last number that it has taken from the sequence mark.
type Marked struct {
	pgx.Tx
	Mark int64

	committed bool // with its last statements
	redoable  bool
	epoch     *string // of the database in the transaction, and its id, when it was asked for: see QueueOwn
	xid       *string
	rows      int // that QueuePlans was told of
	before    func(context.Context, pgx.Tx) error
	after     []func()
}

// beforeCommit runs the function of BeforeCommit.
func (m *Marked) beforeCommit(ctx context.Context) error {
	if m.before == nil {
		return nil
	}
	return m.before(ctx, m)
}

// Redoable lets a transaction of InTx commit without waiting for the disk. A crash of PostgreSQL may forget
// it, with all later commits that are not on disk either: it must then be done again, and no caller may rely
// on it for good. Its number from the sequence mark may be taken again, so it does not count.
func Redoable(tx pgx.Tx, b *pgx.Batch) {
	if m, _ := own(tx); m != nil {
		m.redoable = true
		b.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	}
}

// OwnSQL selects the id of a transaction that has written, and the epoch, when its commit waits for the disk.
const OwnSQL = `
SELECT pg_current_xact_id_if_assigned()::text, (` + feed.EpochSQL + `)::text FROM dbcontroller.meta m WHERE current_setting('synchronous_commit') <> 'off'`

// QueueOwn reads the id of a transaction of InTx behind its writes, so that the watches which its commit
// wakes need not wait until the log is on disk: the commit has waited. It is worth a statement where a caller
// waits for these watches.
func QueueOwn(tx pgx.Tx, b *pgx.Batch) {
	m, _ := own(tx)
	if m == nil {
		return
	}
	b.Queue(OwnSQL).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&m.xid, &m.epoch}, func() error { return nil })
		return err
	})
}

// BeforeCommit calls fn, once, before a transaction of InTx commits: there is one such function. It returns
// false for a transaction of the users' own.
func BeforeCommit(tx pgx.Tx, fn func(context.Context, pgx.Tx) error) bool {
	m, _ := own(tx)
	if m != nil {
		m.before = fn
	}
	return m != nil
}

// AfterCommit calls fn when a transaction of InTx is committed; not for a transaction of the users' own.
func AfterCommit(tx pgx.Tx, fn func()) {
	if m, ok := tx.(*Marked); ok {
		m.after = append(m.after, fn)
	}
}

// Sender sends statements of a transaction: Stay, or CommitWith, which also commits.
type Sender func(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error

// Stay is a Sender of a transaction that goes on, or is rolled back.
func Stay(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error { return tx.SendBatch(ctx, b).Close() }

// CommitWith sends the last statements of a transaction of InTx together with its commit. Their results must
// not decide whether it commits.
func CommitWith(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	m, inner := own(tx)
	if m == nil {
		return errors.New("the transaction is not one of InTx")
	}
	if err := m.beforeCommit(ctx); err != nil {
		return err
	}
	err := inner.CommitWith(ctx, b)
	m.committed = err == nil
	return ofCommit(err)
}

// Wake wakes all watches, and sends a notification to the other processes.
func (s *DB) Wake() { s.Touched(AllFeeds) }

// Touched wakes the watches of feeds, here and in the other processes, after a commit.
func (s *DB) Touched(t feed.Topics) {
	if t&(ConfirmFeed|WorkFeed) == ConfirmFeed {
		s.confirms.Ring()
	}
	if t &^= ConfirmFeed; t == NoFeed {
		return
	}
	s.watchers.Wake(t)
	s.committed.Wake(t)
}

// ErrStale means that stored rows changed after prepare had compared the write with them: Save prepares it
// again.
var ErrStale = errors.New("the resource changed while it was written")

// Querier is the pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const fenceSQL = `
SELECT set_config('idle_in_transaction_session_timeout', $2, true)
FROM dbcontroller.member WHERE id = $1 AND expires_at > clock_timestamp() FOR KEY SHARE`

// enforce checks the context's fence, if any. It is the first statement of a transaction.
func enforce(ctx context.Context, tx pgx.Tx) error {
	f, ok := ctx.Value(fenceKey{}).(fence)
	if !ok {
		return nil
	}
	ttl := strconv.FormatInt(f.ttl.Milliseconds(), 10)
	if tx, ok := tx.(*postgres.Tx); ok {
		tx.Open(holds, fenceSQL, f.member, ttl)
		return nil
	}
	return holds(tx.QueryRow(ctx, fenceSQL, f.member, ttl))
}

// holds checks the row of fenceSQL.
func holds(row pgx.Row) error {
	var set string
	err := row.Scan(&set)
	if errors.Is(err, pgx.ErrNoRows) {
		return schema.ErrFenced
	}
	return err
}

// rollbackDetector detects that the database was replaced by an older copy of itself. Every transaction that
// removes or decides takes a number from the sequence mark, which nothing else uses: it is greater than each
// number that this process has committed with or has read from disk. An older copy returns a smaller number,
// even if its server has the same system identifier and timeline; from then on nothing is decided until a new
// epoch has begun.
type rollbackDetector struct {
	looked
	// Seen only grows. Only numbers of committed transactions are included: a crash may lose the others.
	Seen atomic.Int64
	// EndedEpoch is the epoch in which a smaller number was taken. It counts as ended from then on, also when
	// later transactions take greater numbers: retries advance the copy's sequence.
	EndedEpoch atomic.Pointer[uuid.UUID]
}

func (m *rollbackDetector) Observe(n int64) {
	for {
		seen := m.Seen.Load()
		if n <= seen || m.Seen.CompareAndSwap(seen, n) {
			return
		}
	}
}

// SQLSTATE codes.
const (
	codeUniqueViolation      = "23505"
	codeNotNullViolation     = "23502"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	CodeLockNotAvailable     = "55P03"
	CodeInFailedTransaction  = "25P02"
	CodeUndefinedTable       = "42P01"
	CodeInvalidSchema        = "3F000"
	CodeDivisionByZero       = "22012"
	CodeNotSupported         = "0A000"
)

// HasCode reports whether an error of PostgreSQL has one of some SQLSTATE codes.
func HasCode(err error, codes ...string) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	for _, code := range codes {
		if pg.Code == code {
			return true
		}
	}
	return false
}

// again reports whether the transaction had no effect and can simply be run again.
func again(err error) bool {
	return HasCode(err, codeSerializationFailure, codeDeadlockDetected)
}

// OfData reports whether PostgreSQL refused a statement because of its values, or of a lock or a conflict
// with another transaction. The transaction had no effect.
func OfData(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") ||
		pg.Code == CodeLockNotAvailable || again(err))
}

// Violates reports whether a statement would have made two rows equal under a unique constraint.
func Violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}

// LacksValue reports whether a statement failed because a row of a table would have no value in a column.
func LacksValue(err error, table, column string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeNotNullViolation && pg.TableName == table && pg.ColumnName == column
}

// failsWholeBatch reports whether every part of a batch would fail with the error, so that halving the batch
// is useless.
func failsWholeBatch(err error) bool {
	return peer.HaltsAll(err) || errors.Is(err, peer.ErrStaleEpoch) || errors.Is(err, schema.ErrFenced) ||
		postgres.Unavailable(err)
}

// tokenAhead ends an epoch of which another deployment, or a client, has a token that the database has not
// reached: it is a copy of before, and this process began over it.
func (s *DB) tokenAhead(ctx context.Context, epoch string) {
	ended, err := uuid.Parse(epoch)
	if err != nil {
		return
	}
	if before := s.Rollback.EndedEpoch.Swap(&ended); before != nil && *before == ended {
		return
	}
	s.Log.Warn("a resume token is ahead of the database: an older copy has taken its place; a new epoch begins",
		zap.String("epoch", epoch), requestid.Field(ctx))
}
