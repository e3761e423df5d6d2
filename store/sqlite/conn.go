package sqlite

import (
	"bytes"
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
// time: by SQLite's own functions or, where handlers share it, by the driver for
// database/sql.
type conn struct {
	database   *database
	statements map[string]*native

	driver   connection
	prepared map[string]statement
	args     []driver.NamedValue

	// fault is set by tests. It is called for each statement, and can fail it
	// before or after it is executed.
	fault func(query string, args []driver.Value) (before, after error)
}

// connection and statement are what the driver's are.
type connection interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	RegisterCommitHook(modernc.CommitHookFn)
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// dialer is connect, or a test's. A shared connection is by the driver.
type dialer func(ctx context.Context, path, settings string, shared bool) (*conn, error)

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
func connect(ctx context.Context, path, more string, shared bool) (*conn, error) {
	c := &conn{}
	var err error
	if shared {
		c.prepared = make(map[string]statement)
		c.driver, err = connectDriver(ctx, path)
	} else {
		c.statements = make(map[string]*native)
		c.database, err = openDatabase(path)
	}
	if err != nil {
		return nil, err
	}
	if err := c.script(settings + more); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func connectDriver(ctx context.Context, path string) (connection, error) {
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
	return d, nil
}

func (c *conn) close() error {
	if c.driver != nil {
		for _, s := range c.prepared {
			_ = s.Close() // repeats the error of the statement's last run
		}
		return c.driver.Close()
	}
	for _, s := range c.statements {
		s.close()
	}
	return c.database.close()
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(query string, args ...driver.Value) (int64, error) {
	return c.run(query, true, nil, args)
}

// query calls each with every row of a query.
func (c *conn) query(query string, each func(*row), args ...driver.Value) error {
	_, err := c.run(query, true, each, args)
	return err
}

// queryOnce is query for a query that is not worth keeping prepared, and that
// may take long: it is interrupted when ctx ends.
func (c *conn) queryOnce(ctx context.Context, query string, each func(*row), args ...driver.Value) error {
	if ctx.Done() != nil && c.database != nil {
		interrupted := make(chan none)
		stop := context.AfterFunc(ctx, func() {
			c.database.interrupt()
			close(interrupted)
		})
		defer func() {
			if !stop() {
				<-interrupted
			}
		}()
	}
	_, err := c.run(query, false, each, args)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// run runs a statement, which is prepared once if it is to be kept: only for a
// fixed set of them.
func (c *conn) run(query string, keep bool, each func(*row), args []driver.Value) (changes int64, err error) {
	if c.fault != nil {
		before, after := c.fault(query, clone(args))
		if before != nil {
			return 0, before
		}
		if after != nil {
			defer func() {
				if err == nil {
					err = after
				}
			}()
		}
	}
	if c.driver != nil {
		return c.runDriver(query, keep, each, clone(args))
	}
	s, ok := c.statements[query]
	if !ok {
		if s, err = c.database.prepare(query); err != nil {
			return 0, err
		}
		if keep {
			c.statements[query] = s
		} else {
			defer s.close()
		}
	}
	return s.run(each, args)
}

// clone copies parameters with all they hold. So those of SQLite's own functions
// need not be allocated: nobody keeps them.
func clone(args []driver.Value) []driver.Value {
	all := make([]driver.Value, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case int64:
			all[i] = v
		case string:
			all[i] = strings.Clone(v)
		case []byte:
			all[i] = bytes.Clone(v)
		}
	}
	return all
}

// script runs statements without parameters.
func (c *conn) script(statements string) error {
	if c.driver != nil {
		_, err := c.driver.ExecContext(context.Background(), statements, nil)
		return err
	}
	if c.fault != nil {
		before, after := c.fault(statements, nil)
		if before != nil {
			return before
		}
		return errors.Join(c.database.script(statements), after)
	}
	return c.database.script(statements)
}

// snapshot runs fn, whose queries see one state of the file.
func (c *conn) snapshot(fn func() error) error {
	if _, err := c.exec("BEGIN"); err != nil {
		return err
	}
	err := fn()
	_, end := c.exec("ROLLBACK")
	return errors.Join(err, end)
}

// runDriver is run by the driver, whose connection handlers share.
func (c *conn) runDriver(query string, keep bool, each func(*row), args []driver.Value) (int64, error) {
	s, ok := c.prepared[query]
	if !ok {
		raw, err := c.driver.PrepareContext(context.Background(), query)
		if err != nil {
			return 0, err
		}
		if s, ok = raw.(statement); !ok {
			return 0, errors.Join(fmt.Errorf("the driver's statement is an unexpected %T", raw), raw.Close())
		}
		if keep {
			c.prepared[query] = s
		} else {
			defer s.Close()
		}
	}
	clear(c.args) // of the last statement, which may have held a large result
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	if each == nil {
		res, err := s.ExecContext(context.Background(), c.args)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	rows, err := s.QueryContext(context.Background(), c.args)
	if err != nil {
		return 0, err
	}
	return 0, scan(rows, each)
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

// row reads the columns of a row from left to right. A column of an unexpected
// type is remembered as an error: the file is damaged or not ours.
type row struct {
	native *native        // where it is read from, or
	values []driver.Value // by the driver
	next   int32
	err    error
}

// is reports whether the next column is of a type. It is not if it is NULL.
func (r *row) is(kind int32) bool {
	found := r.native.kind(r.next)
	if found != kind && found != sqlite3.SQLITE_NULL && r.err == nil {
		r.err = fmt.Errorf("column %d holds an unexpected value of type %d", r.next+1, found)
	}
	return found == kind
}

func (r *row) int() int64 { n, _ := r.number(); return n }

// number is int for a column that may be NULL.
func (r *row) number() (n int64, ok bool) {
	if r.native == nil {
		return column[int64](r)
	}
	if ok = r.is(sqlite3.SQLITE_INTEGER); ok {
		n = r.native.int(r.next)
	}
	r.next++
	return n, ok
}

func (r *row) text() string { return r.textLike("") }

// textLike is text, and like itself where that is what the column holds.
func (r *row) textLike(like string) (s string) {
	if r.native == nil {
		s, _ = column[string](r)
		return s
	}
	if r.is(sqlite3.SQLITE_TEXT) {
		if b := r.native.bytes(r.next); string(b) == like {
			s = like
		} else {
			s = string(b)
		}
	}
	r.next++
	return s
}

func (r *row) blob() []byte {
	if r.native == nil {
		b, _ := column[[]byte](r)
		return b
	}
	b := r.bytes()
	if b == nil {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// bytes is blob for who does not keep it, nor change it.
func (r *row) bytes() (b []byte) {
	if r.native == nil {
		b, _ = column[[]byte](r)
		return b
	}
	if r.is(sqlite3.SQLITE_BLOB) {
		if b = r.native.bytes(r.next); b == nil {
			b = []byte{}
		}
	}
	r.next++
	return b
}

func column[T any](r *row) (v T, ok bool) {
	i := r.next
	r.next++
	if r.values[i] == nil {
		return v, false
	}
	v, ok = r.values[i].(T)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("column %d holds an unexpected %T", i+1, r.values[i])
	}
	return v, ok
}

// code returns SQLite's extended result code of err, or 0.
func code(err error) int {
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
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
