package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	modernc "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// conn is one connection and its prepared statements, for one goroutine at a
// time. It talks to the driver without database/sql in between: this package
// has its own pool, and a writer that runs thousands of statements a second.
type conn struct {
	driver     connection
	statements map[string]statement
	args       []driver.NamedValue
}

type connection interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	IsReadOnly(schema string) (bool, error)
	RegisterCommitHook(modernc.CommitHookFn)
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// dialer is connect, or a test's.
type dialer func(ctx context.Context, path, settings string) (*conn, error)

// settings of every connection.
const settings = `
	PRAGMA trusted_schema = 0;
	PRAGMA synchronous = FULL;
	-- On macOS only F_FULLFSYNC reaches the disk itself.
	PRAGMA fullfsync = 1;
	PRAGMA checkpoint_fullfsync = 1;
	-- In pages, of 4 KiB. Fewer checkpoints than by default: a page that is
	-- written many times between two of them goes into the file once.
	PRAGMA wal_autocheckpoint = 4000;
	-- In bytes: a log that large results made longer is cut back.
	PRAGMA journal_size_limit = 67108864;`

// connect opens a connection to the file at path, which exists, and runs more
// settings. It does not write to the file.
func connect(ctx context.Context, path, more string) (*conn, error) {
	q := url.Values{
		"mode":       {"rw"},
		"_error_rc":  {"1"}, // error texts are those of their own code
		"_dqs":       {"0"}, // "x" is a name, never a string
		"_defensive": {"1"},
	}
	// A URI, because in it every path can be written, whatever it holds.
	uri := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}
	if !strings.HasPrefix(uri.Path, "/") {
		uri.Path = "/" + uri.Path // C:/x.db
	}
	connector, err := modernc.NewConnector(uri.String())
	if err != nil {
		return nil, err
	}
	raw, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	d, ok := raw.(connection)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's connection is an unexpected %T", raw), raw.Close())
	}
	c := &conn{driver: d, statements: make(map[string]statement)}
	if err := c.script(ctx, settings+more); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *conn) close() error {
	for _, s := range c.statements {
		_ = s.Close() // repeats the error of the statement's last run
	}
	return c.driver.Close()
}

// prepare returns the prepared statement of query, which is kept for the
// connection's life: only for a fixed set of queries.
func (c *conn) prepare(query string) (statement, error) {
	if s, ok := c.statements[query]; ok {
		return s, nil
	}
	raw, err := c.driver.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	s, ok := raw.(statement)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's statement is an unexpected %T", raw), raw.Close())
	}
	c.statements[query] = s
	return s, nil
}

func (c *conn) bind(args []driver.Value) []driver.NamedValue {
	clear(c.args) // of the last statement, which may have held a large result
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(ctx context.Context, query string, args ...driver.Value) (int64, error) {
	s, err := c.prepare(query)
	if err != nil {
		return 0, err
	}
	res, err := s.ExecContext(ctx, c.bind(args))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// query calls each with every row of a query.
func (c *conn) query(ctx context.Context, query string, each func(*row), args ...driver.Value) error {
	s, err := c.prepare(query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, c.bind(args))
	if err != nil {
		return err
	}
	return scan(rows, each)
}

// script runs statements that are not worth keeping prepared.
func (c *conn) script(ctx context.Context, statements string) error {
	_, err := c.driver.ExecContext(ctx, statements, nil)
	return err
}

// queryOnce is query for a query that is not worth keeping prepared.
func (c *conn) queryOnce(ctx context.Context, query string, each func(*row), args ...driver.Value) error {
	rows, err := c.driver.QueryContext(ctx, query, c.bind(args))
	if err != nil {
		return err
	}
	return scan(rows, each)
}

// snapshot runs fn, whose queries see one state of the file.
func (c *conn) snapshot(fn func() error) error {
	if _, err := c.exec(context.Background(), "BEGIN"); err != nil {
		return err
	}
	err := fn()
	_, end := c.exec(context.Background(), "ROLLBACK")
	return errors.Join(err, end)
}

func scan(rows driver.Rows, each func(*row)) error {
	r := row{values: make([]driver.Value, len(rows.Columns()))}
	for {
		err := rows.Next(r.values)
		if err == nil {
			r.next = 0
			each(&r)
			err = r.err
		}
		if errors.Is(err, io.EOF) {
			return rows.Close()
		}
		if err != nil {
			_ = rows.Close() // repeats err
			return err
		}
	}
}

// row reads the columns of a row from left to right. A column of another type
// than asked for is remembered as an error: the file is not what it should be.
type row struct {
	values []driver.Value
	next   int
	err    error
}

func column[T any](r *row) (v T, null bool) {
	i := r.next
	r.next++
	if r.values[i] == nil {
		return v, true
	}
	v, ok := r.values[i].(T)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("column %d holds an unexpected %T", i+1, r.values[i])
	}
	return v, false
}

func (r *row) int() int64   { v, _ := column[int64](r); return v }
func (r *row) text() string { v, _ := column[string](r); return v }
func (r *row) blob() []byte { v, _ := column[[]byte](r); return v }

// code returns SQLite's extended result code of err, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*modernc.Error](err); ok {
		return e.Code()
	}
	return 0
}

// isBusy reports whether err says that another connection is in the way and
// that trying again may help: a writer, a recovery after a crash, or a process
// that is opening or closing the file just now.
func isBusy(err error) bool {
	switch code(err) & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return false
}
