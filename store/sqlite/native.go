package sqlite

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlite3 "modernc.org/sqlite/lib"
)

// database is a connection to a file by SQLite's own functions. The driver for
// database/sql on top of them allocates for each parameter, column and column
// name; here a statement has one buffer for its parameters, and a row is read
// where SQLite holds it. One goroutine at a time uses it.
type database struct {
	tls    *libc.TLS
	handle uintptr
	word   uintptr // eight bytes for what a function returns by reference
}

// sqliteError is an error reported by SQLite.
type sqliteError struct {
	text string
	code int
}

func (e *sqliteError) Error() string { return e.text }

// Code returns the extended result code, as the driver's errors do.
func (e *sqliteError) Code() int { return e.code }

// at is the address p in SQLite's memory, which is not Go's.
func at(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// text returns s for SQLite; the caller frees it.
func (d *database) text(s string) (uintptr, error) {
	p := libc.Xmalloc(d.tls, types.Size_t(len(s)+1))
	if p == 0 {
		return 0, errMemory
	}
	b := unsafe.Slice((*byte)(at(p)), len(s)+1)
	copy(b, s)
	b[len(s)] = 0
	return p, nil
}

var errMemory = &sqliteError{"out of memory", sqlite3.SQLITE_NOMEM}

// openDatabase opens the file at path, which exists.
func openDatabase(path string) (_ *database, err error) {
	d := &database{tls: libc.NewTLS()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.word = libc.Xmalloc(d.tls, 8); d.word == 0 {
		return nil, errMemory
	}
	name, err := d.text(path)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(d.tls, name)
	*(*uintptr)(at(d.word)) = 0
	// Without a mutex: see database.
	rc := sqlite3.Xsqlite3_open_v2(d.tls, name, d.word, sqlite3.SQLITE_OPEN_READWRITE|sqlite3.SQLITE_OPEN_NOMUTEX, 0)
	d.handle = *(*uintptr)(at(d.word)) // there is one after most errors too
	if rc != sqlite3.SQLITE_OK {
		return nil, d.failure(rc)
	}
	if rc := sqlite3.Xsqlite3_extended_result_codes(d.tls, d.handle, 1); rc != sqlite3.SQLITE_OK {
		return nil, d.failure(rc)
	}
	for _, c := range []struct{ option, on int32 }{
		{sqlite3.SQLITE_DBCONFIG_DQS_DDL, 0}, // "x" is a name, never a string
		{sqlite3.SQLITE_DBCONFIG_DQS_DML, 0},
		{sqlite3.SQLITE_DBCONFIG_DEFENSIVE, 1},
	} {
		args := libc.NewVaList(c.on, uintptr(0))
		rc := sqlite3.Xsqlite3_db_config(d.tls, d.handle, c.option, args)
		libc.Xfree(d.tls, args)
		if rc != sqlite3.SQLITE_OK {
			return nil, d.failure(rc)
		}
	}
	return d, nil
}

func (d *database) close() error {
	var err error
	if d.handle != 0 {
		if rc := sqlite3.Xsqlite3_close_v2(d.tls, d.handle); rc != sqlite3.SQLITE_OK {
			err = d.failure(rc)
		}
		d.handle = 0
	}
	if d.word != 0 {
		libc.Xfree(d.tls, d.word)
		d.word = 0
	}
	d.tls.Close()
	return err
}

// failure is the error of a result code, in the words of the connection unless
// those are about another failure.
func (d *database) failure(rc int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(d.tls, rc))
	if d.handle != 0 {
		if code := sqlite3.Xsqlite3_extended_errcode(d.tls, d.handle); code&0xff == rc&0xff {
			if more := libc.GoString(sqlite3.Xsqlite3_errmsg(d.tls, d.handle)); more != text {
				text += ": " + more
			}
			rc = code
		}
	}
	return &sqliteError{fmt.Sprintf("%s (%d)", text, rc), int(rc)}
}

func (d *database) script(statements string) error {
	sql, err := d.text(statements)
	if err != nil {
		return err
	}
	defer libc.Xfree(d.tls, sql)
	if rc := sqlite3.Xsqlite3_exec(d.tls, d.handle, sql, 0, 0, 0); rc != sqlite3.SQLITE_OK {
		return d.failure(rc)
	}
	return nil
}

func (d *database) readOnly() bool { return sqlite3.Xsqlite3_db_readonly(d.tls, d.handle, 0) == 1 }

// version is a number that is another after this connection has changed the file,
// or has begun a transaction that sees the change of another.
func (d *database) version() (uint32, error) {
	if rc := sqlite3.Xsqlite3_file_control(d.tls, d.handle, 0, sqlite3.SQLITE_FCNTL_DATA_VERSION, d.word); rc != sqlite3.SQLITE_OK {
		return 0, d.failure(rc)
	}
	return *(*uint32)(at(d.word)), nil
}

// interrupt makes the statement that runs fail. Any goroutine may call it, until
// the connection is closed.
func (d *database) interrupt() {
	tls := libc.NewTLS()
	defer tls.Close()
	sqlite3.Xsqlite3_interrupt(tls, d.handle)
}

// native is a prepared statement.
type native struct {
	db         *database
	handle     uintptr
	parameters int
	buffer     uintptr // of texts and blobs that are bound
	size       int
	row        row
}

// mostBuffer is what a statement keeps of its buffer between two runs.
const mostBuffer = 64 << 10

func (d *database) prepare(query string) (*native, error) {
	sql, err := d.text(query)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(d.tls, sql)
	if rc := sqlite3.Xsqlite3_prepare_v3(d.tls, d.handle, sql, int32(len(query)+1), sqlite3.SQLITE_PREPARE_PERSISTENT, d.word, 0); rc != sqlite3.SQLITE_OK {
		return nil, d.failure(rc)
	}
	s := &native{db: d, handle: *(*uintptr)(at(d.word))}
	s.row.native = s
	s.parameters = int(sqlite3.Xsqlite3_bind_parameter_count(d.tls, s.handle))
	return s, nil
}

func (s *native) close() {
	sqlite3.Xsqlite3_finalize(s.db.tls, s.handle) // repeats the error of the last run
	s.shrink(0)
}

// shrink gives the buffer back if it is larger than that.
func (s *native) shrink(most int) {
	if s.size > most {
		libc.Xfree(s.db.tls, s.buffer)
		s.buffer, s.size = 0, 0
	}
}

func (s *native) bind(args []driver.Value) error {
	if len(args) != s.parameters {
		return fmt.Errorf("%d parameters for a statement of %d", len(args), s.parameters)
	}
	need := 1
	for _, a := range args {
		switch v := a.(type) {
		case string:
			need += len(v)
		case []byte:
			need += len(v)
		}
	}
	if need > s.size {
		s.shrink(0)
		size := max(need, 512)
		if s.buffer = libc.Xmalloc(s.db.tls, types.Size_t(size)); s.buffer == 0 {
			return errMemory
		}
		s.size = size
	}
	// What is bound stays in the buffer until the statement has run, and all of
	// it is bound anew before the next run.
	p, tls := s.buffer, s.db.tls
	for i, a := range args {
		var rc int32
		n := int32(i + 1)
		switch v := a.(type) {
		case int64:
			rc = sqlite3.Xsqlite3_bind_int64(tls, s.handle, n, v)
		case string:
			copy(unsafe.Slice((*byte)(at(p)), len(v)), v)
			rc = sqlite3.Xsqlite3_bind_text(tls, s.handle, n, p, int32(len(v)), 0)
			p += uintptr(len(v))
		case []byte:
			if v == nil {
				rc = sqlite3.Xsqlite3_bind_null(tls, s.handle, n)
				break
			}
			copy(unsafe.Slice((*byte)(at(p)), len(v)), v)
			rc = sqlite3.Xsqlite3_bind_blob(tls, s.handle, n, p, int32(len(v)), 0)
			p += uintptr(len(v))
		case nil:
			rc = sqlite3.Xsqlite3_bind_null(tls, s.handle, n)
		default:
			return fmt.Errorf("parameter %d is of an unexpected type", n)
		}
		if rc != sqlite3.SQLITE_OK {
			return s.db.failure(rc)
		}
	}
	return nil
}

// run runs the statement, calls each, unless it is nil, with every row, and
// returns how many rows the last change has changed.
func (s *native) run(each func(*row), args []driver.Value) (changes int64, err error) {
	if err := s.bind(args); err != nil {
		return 0, err
	}
	for {
		switch rc := sqlite3.Xsqlite3_step(s.db.tls, s.handle); rc {
		case sqlite3.SQLITE_ROW:
			if each != nil {
				s.row.next, s.row.err = 0, nil
				each(&s.row)
				err = s.row.err
			}
			if err == nil {
				continue
			}
		case sqlite3.SQLITE_DONE:
			changes = int64(sqlite3.Xsqlite3_changes(s.db.tls, s.db.handle))
		default:
			err = s.db.failure(rc)
		}
		break
	}
	sqlite3.Xsqlite3_reset(s.db.tls, s.handle) // repeats err
	s.shrink(mostBuffer)
	return changes, err
}

// bytes is a text or blob of the row, where SQLite holds it: until the next row.
func (s *native) bytes(column int32) []byte {
	p := sqlite3.Xsqlite3_column_blob(s.db.tls, s.handle, column)
	return unsafe.Slice((*byte)(at(p)), sqlite3.Xsqlite3_column_bytes(s.db.tls, s.handle, column))
}

func (s *native) kind(column int32) int32 {
	return sqlite3.Xsqlite3_column_type(s.db.tls, s.handle, column)
}

func (s *native) int(column int32) int64 {
	return sqlite3.Xsqlite3_column_int64(s.db.tls, s.handle, column)
}
