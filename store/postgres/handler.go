package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotYours reports that a handler tried to end the transaction of its claim.
// The store commits it together with the record, or rolls it back.
var ErrNotYours = errors.New("postgres: the transaction is the store's to commit or roll back")

// errHandlerEnded is the error of a claim whose handler ended the transaction,
// and of later statements of that handler.
var errHandlerEnded = errors.New("postgres: the handler ended its claim's transaction itself")

type (
	claimTxKey  struct{}
	joinedTxKey struct{}
)

// Tx returns the transaction in ctx, which is that of the handler's claim or of
// the message that it handles (see Inbox). The handler should make all of its
// changes in it. The transaction commits together with the record. The handler
// can neither commit it nor roll it back (ErrNotYours), but may nest
// transactions in it with Begin. After the claim has ended, its methods fail
// with pgx.ErrTxClosed. Do not send statements to its Conn, because they may be
// executed outside the transaction.
func Tx(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(claimTxKey{}).(pgx.Tx)
	return tx, ok
}

// WithTx returns a context in which claims join tx instead of beginning a
// transaction of their own. The record commits if and when the caller commits tx,
// so do not act on AnswerExecuted before that commit. If a claim is released,
// held or rolled back, the changes of its handler are undone with a savepoint,
// and tx remains usable. Do not use tx for anything else until the guard has
// returned.
//
// At repeatable read and above, tx may have begun too early to see a record that
// was committed since. Begin then fails with SQLSTATE 40001, and the caller has
// to roll back and start over.
//
// A guard does not return while the handler still uses tx. The returned context is
// not cancelled with ctx, and semel.Submit.Detached has no effect. The policy's
// deadline limits the wait.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), joinedTxKey{}, tx)
}

func joinedTx(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(joinedTxKey{}).(pgx.Tx)
	return tx, ok && tx != nil
}

// gate keeps a handler and the store apart on the one connection they share. A
// handler's calls pass it at the same time, as far as it is concerned; the
// store waits until none is inside.
type gate struct {
	mu     sync.Mutex
	inside int
	shut   bool          // for good: the claim is being settled
	store  chan struct{} // not nil while the store is inside; closed when it leaves
	idle   chan struct{} // not nil while the store waits; closed when inside is 0

	ended bool // the handler may have ended the transaction
}

// hear takes note of the answer to a handler's statement, and of the session's
// status after it: for when the session cannot be asked any more.
func (g *gate) hear(tag pgconn.CommandTag, status byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch tag.String() {
	case "BEGIN", "START TRANSACTION", "COMMIT":
		g.ended = true
	default:
		g.ended = g.ended || status == outside
	}
}

func (g *gate) mayHaveEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

// outside is the status of a session that is in no transaction.
const outside = 'I'

// enter lets a handler's call in.
func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.shut {
			g.mu.Unlock()
			return pgx.ErrTxClosed
		}
		wait := g.store
		if wait == nil {
			g.inside++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// try lets the store in if nobody is inside.
func (g *gate) try() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside > 0 || g.store != nil || g.shut {
		return false
	}
	g.store = make(chan struct{})
	return true
}

func (g *gate) storeLeaves() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.store)
	g.store = nil
}

// close shuts the gate to the handler for good and waits until nobody is inside.
// impatient is called once if that takes any time.
func (g *gate) close(ctx context.Context, impatient func()) error {
	for {
		g.mu.Lock()
		g.shut = true
		wait := g.store
		if wait == nil && g.inside > 0 {
			if g.idle == nil {
				g.idle = make(chan struct{})
			}
			wait = g.idle
		}
		g.mu.Unlock()
		if wait == nil {
			return nil
		}
		if impatient != nil {
			impatient()
			impatient = nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handlerTx is a claim's transaction in the hands of its handler.
type handlerTx struct {
	pgx.Tx // the claim's, or one nested in it
	claim  *txClaim
	gate   *gate
	sql    *sqlTxs
	nested bool
}

// endsTransaction reports whether a statement would end the transaction. It
// looks at the first of several and knows nothing of functions: it keeps
// accidents out, not malice. What slips through is found out when the claim is
// settled, because our savepoint is gone.
func endsTransaction(sql string) bool {
	first, rest := word(sql)
	switch {
	case is(first, "commit"), is(first, "end"), is(first, "abort"):
		return true
	case is(first, "prepare"):
		next, _ := word(rest)
		return is(next, "transaction")
	case is(first, "rollback"):
		for {
			first, rest = word(rest)
			if !is(first, "work") && !is(first, "transaction") {
				return !is(first, "to")
			}
		}
	}
	return false
}

func is(word, lower string) bool { return strings.EqualFold(word, lower) }

// word splits off the first word of a statement.
func word(sql string) (word, rest string) {
	sql = afterComments(sql)
	end := strings.IndexAny(sql, " \t\r\n\f\v;")
	for _, comment := range []string{"--", "/*"} {
		if at := strings.Index(sql, comment); at >= 0 && (end < 0 || at < end) {
			end = at
		}
	}
	switch {
	case end < 0:
		return sql, ""
	case end == 0: // a semicolon
		return sql[:1], sql[1:]
	}
	return sql[:end], sql[end:]
}

// afterComments returns sql from its first word on.
func afterComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			depth := 0 // they nest
			for {
				begin, end := strings.Index(sql, "/*"), strings.Index(sql, "*/")
				switch {
				case end < 0:
					return ""
				case begin >= 0 && begin < end:
					depth++
					sql = sql[begin+2:]
				default:
					depth--
					sql = sql[end+2:]
				}
				if depth == 0 {
					break
				}
			}
		default:
			return sql
		}
	}
}

// enter lets a statement in. After one that ended the transaction in spite of
// it, the next would be committed by itself.
func (t *handlerTx) enter(ctx context.Context, sql string) error {
	if endsTransaction(sql) {
		return ErrNotYours
	}
	if err := t.gate.enter(ctx); err != nil {
		return err
	}
	if pg := t.Conn().PgConn(); !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() == outside {
		t.gate.leave()
		return errHandlerEnded
	}
	return nil
}

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.enter(ctx, ""); err != nil {
		return nil, err
	}
	defer t.gate.leave()
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handlerTx{Tx: tx, claim: t.claim, gate: t.gate, sql: t.sql, nested: true}, nil
}

func (t *handlerTx) Commit(ctx context.Context) error {
	if !t.nested {
		return ErrNotYours
	}
	if err := t.gate.enter(ctx); err != nil {
		return err
	}
	defer t.gate.leave()
	return t.Tx.Commit(ctx)
}

func (t *handlerTx) Rollback(ctx context.Context) error {
	if !t.nested {
		return ErrNotYours
	}
	if err := t.gate.enter(ctx); err != nil {
		return err
	}
	defer t.gate.leave()
	return t.Tx.Rollback(ctx)
}

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.enter(ctx, ""); err != nil {
		return 0, err
	}
	defer t.gate.leave()
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.enter(ctx, sql); err != nil {
		return nil, err
	}
	defer t.gate.leave()
	return t.Tx.Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.enter(ctx, sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.gate.leave()
	tag, err := t.Tx.Exec(ctx, sql, args...)
	t.gate.hear(tag, t.Conn().PgConn().TxStatus())
	return tag, err
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.enter(ctx, sql); err != nil {
		return failedRows(err), err
	}
	defer t.gate.leave()
	rows, err := t.Tx.Query(ctx, sql, args...)
	return &handlerRows{Rows: rows, gate: t.gate}, err
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.enter(ctx, sql); err != nil {
		return failedRow{err}
	}
	defer t.gate.leave()
	return handlerRow{t.Tx.QueryRow(ctx, sql, args...), t.gate}
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if endsTransaction(q.SQL) {
			return pgx.FailedBatchResults(b, ErrNotYours)
		}
	}
	if err := t.enter(ctx, ""); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.gate.leave()
	return &handlerBatch{BatchResults: t.Tx.SendBatch(ctx, b), gate: t.gate}
}

// handlerRows passes the gate where rows are read from the connection.
type handlerRows struct {
	pgx.Rows
	gate *gate
}

func (r *handlerRows) Next() bool {
	if r.gate.enter(context.Background()) != nil {
		return false // the claim has been settled, and its connection is gone
	}
	defer r.gate.leave()
	return r.Rows.Next()
}

func (r *handlerRows) Err() error {
	if err := r.gate.enter(context.Background()); err != nil {
		return err
	}
	defer r.gate.leave()
	return r.Rows.Err()
}

func (r *handlerRows) Close() {
	if r.gate.enter(context.Background()) != nil {
		return
	}
	defer r.gate.leave()
	r.Rows.Close()
}

type handlerRow struct {
	row  pgx.Row
	gate *gate
}

func (r handlerRow) Scan(dest ...any) error {
	if err := r.gate.enter(context.Background()); err != nil {
		return err
	}
	defer r.gate.leave()
	return r.row.Scan(dest...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// failedRows are rows that have only an error.
func failedRows(err error) pgx.Rows {
	rows, _ := pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	return rows
}

type handlerBatch struct {
	pgx.BatchResults
	gate *gate
}

func (b *handlerBatch) Exec() (pgconn.CommandTag, error) {
	if err := b.gate.enter(context.Background()); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer b.gate.leave()
	return b.BatchResults.Exec()
}

func (b *handlerBatch) Query() (pgx.Rows, error) {
	if err := b.gate.enter(context.Background()); err != nil {
		return failedRows(err), err
	}
	defer b.gate.leave()
	rows, err := b.BatchResults.Query()
	return &handlerRows{Rows: rows, gate: b.gate}, err
}

func (b *handlerBatch) QueryRow() pgx.Row {
	if err := b.gate.enter(context.Background()); err != nil {
		return failedRow{err}
	}
	defer b.gate.leave()
	return handlerRow{b.BatchResults.QueryRow(), b.gate}
}

func (b *handlerBatch) Close() error {
	if err := b.gate.enter(context.Background()); err != nil {
		return err
	}
	defer b.gate.leave()
	return b.BatchResults.Close()
}
