package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// SQLTx returns the same transaction as Tx, for code that needs a *sql.Tx. Both
// can be used in turn; rows of one must be closed before the other is used.
//
// Arguments, scanned values and errors are those of pgx's own database/sql
// driver, and errors of the server are *pgconn.PgError. Named arguments are not
// supported. A prepared statement is checked by the server when it is first
// used. Whether the server keeps it depends on the pool's exec mode.
//
// Commit and Rollback fail with ErrNotYours. They do not affect the transaction
// but end this *sql.Tx; SQLTx then returns another one. After the claim has
// ended, statements fail with sql.ErrTxDone.
//
// A caller that begins the transaction itself on a *sql.DB of pgx's driver has
// to begin it on the *pgx.Conn (see sql.Conn.Raw) and pass it to WithTx.
func SQLTx(ctx context.Context) (*sql.Tx, bool) {
	tx, ok := ctx.Value(claimTxKey{}).(*handlerTx)
	if !ok {
		return nil, false
	}
	return tx.sql.get(tx), true
}

// sqlTxs makes a claim's *sql.Tx when it is asked for, and ends it with the claim.
type sqlTxs struct {
	mu    sync.Mutex
	tx    *sql.Tx // the one in use
	end   func()
	ended bool
}

func (s *sqlTxs) get(tx *handlerTx) *sql.Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx != nil {
		return s.tx
	}
	// The claim bounds its life, whatever becomes of the context that it was
	// asked for with: a statement ends with its own.
	ctx, cancel := context.WithCancel(context.Background())
	db := sql.OpenDB(sqlConn{tx: tx, all: s})
	s.end = func() {
		cancel()
		_ = db.Close() // our connections close without an error
	}
	s.tx, _ = db.BeginTx(ctx, nil) // fails only if ctx has ended or a connection cannot be had
	if s.ended {
		s.end()
	}
	return s.tx
}

// forget ends the transaction in use because its user has ended it.
func (s *sqlTxs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx != nil && !s.ended {
		s.end()
		s.tx, s.end = nil, nil
	}
}

// close ends the transaction in use for good. The gate is shut, so nothing that
// database/sql still does reaches the connection.
func (s *sqlTxs) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx != nil && !s.ended {
		s.end()
	}
	s.ended = true
}

// sqlConn has database/sql take a claim's transaction for a connection. It
// implements driver.Connector, Driver, Conn and Tx.
type sqlConn struct {
	tx  *handlerTx
	all *sqlTxs
}

var (
	_ driver.ConnBeginTx                    = sqlConn{}
	_ driver.ExecerContext                  = sqlConn{}
	_ driver.QueryerContext                 = sqlConn{}
	_ driver.NamedValueChecker              = sqlConn{}
	_ driver.StmtExecContext                = sqlStmt{}
	_ driver.StmtQueryContext               = sqlStmt{}
	_ driver.RowsColumnTypeDatabaseTypeName = (*sqlRows)(nil)
)

var errNotSupported = errors.New("postgres: not a connection of its own, but a claim's transaction")

func (c sqlConn) Connect(context.Context) (driver.Conn, error)                 { return c, nil }
func (c sqlConn) Driver() driver.Driver                                        { return c }
func (c sqlConn) Open(string) (driver.Conn, error)                             { return nil, errNotSupported }
func (c sqlConn) Begin() (driver.Tx, error)                                    { return c, nil }
func (c sqlConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (c sqlConn) Close() error                                                 { return nil }

// Prepare leaves the work to the statement's first use.
func (c sqlConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.tx.gate.enter(context.Background()); err != nil {
		return nil, sqlError(err)
	}
	c.tx.gate.leave()
	return sqlStmt{c, query}, nil
}

// Commit implements driver.Tx.
func (c sqlConn) Commit() error {
	c.all.forget()
	return ErrNotYours
}

// Rollback implements driver.Tx.
func (c sqlConn) Rollback() error { return c.Commit() }

// CheckNamedValue leaves the conversion of arguments to pgx.
func (c sqlConn) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return fmt.Errorf("postgres: argument %q has a name; use $%d", v.Name, v.Ordinal)
	}
	return nil
}

func sqlArgs(args []driver.NamedValue, first ...any) []any {
	for _, a := range args {
		first = append(first, a.Value)
	}
	return first
}

// sqlError says in words of database/sql that the claim has ended.
func sqlError(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) {
		return sql.ErrTxDone
	}
	return err
}

func (c sqlConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	tag, err := c.tx.Exec(ctx, query, sqlArgs(args)...)
	if err != nil {
		return nil, sqlError(err)
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

func (c sqlConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.tx.Query(ctx, query, sqlArgs(args, sqlFormats)...)
	if err != nil {
		return nil, sqlError(err)
	}
	r := &sqlRows{rows: rows.(*handlerRows).Rows, gate: c.tx.gate, types: c.tx.Conn().TypeMap()}
	// In some exec modes the columns are only known with the first row.
	if err := r.read(); err != nil && err != io.EOF {
		_ = r.Close() // err is its error too
		return nil, err
	}
	return r, nil
}

// sqlStmt is a statement that is prepared, or not, as pgx does with any other.
type sqlStmt struct {
	conn  sqlConn
	query string
}

func (s sqlStmt) Close() error                               { return nil }
func (s sqlStmt) NumInput() int                              { return -1 } // the server counts
func (s sqlStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errNotSupported }
func (s sqlStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errNotSupported }

func (s sqlStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

func (s sqlStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

// sqlFormats asks for the types that database/sql knows in binary; the others
// come as text, as with pgx's own driver.
var sqlFormats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: 1, pgtype.ByteaOID: 1, pgtype.DateOID: 1, pgtype.Float4OID: 1, pgtype.Float8OID: 1,
	pgtype.Int2OID: 1, pgtype.Int4OID: 1, pgtype.Int8OID: 1, pgtype.TimestampOID: 1, pgtype.TimestamptzOID: 1,
}

// sqlRows are rows as database/sql reads them. A row is taken off the connection
// as a whole, inside the gate.
type sqlRows struct {
	rows  pgx.Rows
	gate  *gate
	types *pgtype.Map

	row   []driver.Value // read, but not given out
	ready bool
	err   error // of the read that came before its turn
}

// read reads the next row into r.row.
func (r *sqlRows) read() error {
	if err := r.gate.enter(context.Background()); err != nil {
		r.err = sqlError(err) // the claim has been settled, and its connection is gone
		return r.err
	}
	defer r.gate.leave()
	r.ready = true
	if !r.rows.Next() {
		if r.err = r.rows.Err(); r.err == nil {
			r.err = io.EOF
		}
		return r.err
	}
	fields, values := r.rows.FieldDescriptions(), r.rows.RawValues()
	r.row = make([]driver.Value, len(values))
	for i, v := range values {
		if v == nil {
			continue
		}
		value, err := sqlValue(r.types, fields[i].DataTypeOID, fields[i].Format, v)
		if err != nil {
			r.err = fmt.Errorf("postgres: column %q: %w", fields[i].Name, err)
			return r.err
		}
		r.row[i] = value
	}
	return nil
}

func (r *sqlRows) Next(dest []driver.Value) error {
	if !r.ready && r.err == nil {
		_ = r.read() // r.err
	}
	r.ready = false
	if r.err != nil {
		return r.err
	}
	copy(dest, r.row)
	return nil
}

func (r *sqlRows) Columns() []string {
	fields := r.rows.FieldDescriptions()
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

// ColumnTypeDatabaseTypeName implements an optional interface of driver.Rows.
func (r *sqlRows) ColumnTypeDatabaseTypeName(i int) string {
	if t, ok := r.types.TypeForOID(r.rows.FieldDescriptions()[i].DataTypeOID); ok {
		return strings.ToUpper(t.Name)
	}
	return ""
}

func (r *sqlRows) Close() error {
	if err := r.gate.enter(context.Background()); err != nil {
		return nil // closed with the claim
	}
	defer r.gate.leave()
	r.rows.Close()
	return r.rows.Err()
}

// sqlValue makes a driver.Value of a column's value.
func sqlValue(types *pgtype.Map, oid uint32, format int16, src []byte) (driver.Value, error) {
	switch oid {
	case pgtype.BoolOID:
		return scanAs[bool](types, oid, format, src)
	case pgtype.ByteaOID:
		return scanAs[[]byte](types, oid, format, src)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return scanAs[int64](types, oid, format, src)
	case pgtype.Float4OID, pgtype.Float8OID:
		return scanAs[float64](types, oid, format, src)
	case pgtype.DateOID: // a time, or the text of an infinity
		return valueOf[pgtype.Date](types, oid, format, src)
	case pgtype.TimestampOID:
		return valueOf[pgtype.Timestamp](types, oid, format, src)
	case pgtype.TimestamptzOID:
		return valueOf[pgtype.Timestamptz](types, oid, format, src)
	case pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
		return append([]byte{}, src...), nil
	}
	return string(src), nil
}

func scanAs[T any](types *pgtype.Map, oid uint32, format int16, src []byte) (driver.Value, error) {
	var v T
	err := types.Scan(oid, format, src, &v)
	return v, err
}

func valueOf[T driver.Valuer](types *pgtype.Map, oid uint32, format int16, src []byte) (driver.Value, error) {
	var v T
	if err := types.Scan(oid, format, src, &v); err != nil {
		return nil, err
	}
	return v.Value()
}
