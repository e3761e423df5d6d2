package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/semelhq/semel"
)

// DefaultMaxSpool is the default of SpoolsConfig.MaxBytes if the disk has at least four
// times as much free.
const DefaultMaxSpool = 4 << 30

// SpoolsConfig is the configuration of Spools.
type SpoolsConfig struct {
	// Dir is the directory for the files. Each has mode 0600. It is removed from the
	// directory as soon as it is open or, if the system does not allow this, when it is
	// no longer needed. Do not use a file system in memory. Default os.TempDir, which is
	// called each time.
	Dir string
	// MaxBytes limits the size of all files together. A single file can have a quarter
	// of it. Default DefaultMaxSpool, or a quarter of what was free on the disk of Dir
	// when the Spools were made, if that is less.
	MaxBytes int64
	// Failed, if not nil, is called when a file could not be written or read, or a limit
	// is reached.
	Failed func(ctx context.Context, err error)
}

// Spools hold bodies that are too large for memory in temporary files of a limited size.
// Middlewares that use the same disk should share Spools. They are safe for concurrent
// use.
type Spools struct {
	config SpoolsConfig
	used   atomic.Int64
}

// NewSpools returns Spools for c. The error names everything that is wrong with c.
func NewSpools(c SpoolsConfig) (*Spools, error) {
	var errs []error
	dir := c.Dir
	if dir == "" {
		dir = os.TempDir()
	} else if info, err := os.Stat(dir); err != nil {
		errs = append(errs, fmt.Errorf("field Dir cannot be used: %w", err))
	} else if !info.IsDir() {
		errs = append(errs, fmt.Errorf("field Dir is %q, which is not a directory", dir))
	}
	if c.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("field MaxBytes is %d; it must not be negative", c.MaxBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("semelhttp: spools: %w", err)
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxSpool
		if free, ok := freeBytes(dir); ok {
			c.MaxBytes = max(min(c.MaxBytes, free/4), 1)
		}
	}
	if c.Failed == nil {
		c.Failed = func(context.Context, error) {}
	}
	return &Spools{config: c}, nil
}

// Used returns how many bytes the files have.
func (s *Spools) Used() int64 { return s.used.Load() }

// Max returns how many bytes the files may have.
func (s *Spools) Max() int64 { return s.config.MaxBytes }

// errSpoolsFull is why a body is not held although the disk could.
var errSpoolsFull = errors.New("semelhttp: the bound on spooled bytes is reached")

// take accounts for n more bytes of a spool that has had some already.
func (s *Spools) take(had, n int64) error {
	if had+n > max(s.config.MaxBytes/4, 1) {
		return errSpoolsFull
	}
	if s.used.Add(n) > s.config.MaxBytes {
		s.used.Add(-n)
		return errSpoolsFull
	}
	return nil
}

// spoolBuffer is how much of a spool with a file is in memory.
const spoolBuffer = 64 << 10

// errSpoolClosed is what a spool's readers get when nobody needs it any more.
var errSpoolClosed = errors.New("semelhttp: the request or response is over")

// spool is a sequence of bytes that is written first and then read: in memory
// as long as it is short, in a temporary file beyond that. Writing it is for one
// goroutine; reading, once it has been handed over, and close are for any.
type spool struct {
	spools *Spools
	max    int64 // of what is kept without a file

	file   spoolFile
	name   string // of a file that could not be removed while open
	filed  int64  // how much of the spool the file has
	taken  int64  // how much of the spools' bound it has
	mem    []byte // what comes behind that: without a file, everything
	closed atomic.Bool
}

type spoolFile interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

func (s *spool) size() int64 { return s.filed + int64(len(s.mem)) }

// overflows reports whether n more bytes need a file that is not there yet.
func (s *spool) overflows(n int) bool { return s.file == nil && int64(len(s.mem)+n) > s.max }

// write appends p and reports how much of it; what it took is there to be read,
// also after an error.
func (s *spool) write(p []byte) (int, error) {
	if s.file != nil && len(s.mem)+len(p) > cap(s.mem) || s.overflows(len(p)) {
		if err := s.flush(); err != nil {
			return 0, err
		}
		if len(p) >= cap(s.mem) {
			if err := s.take(len(p)); err != nil {
				return 0, err
			}
			n, err := s.file.Write(p)
			s.filed += int64(n)
			return n, err
		}
	}
	s.mem = append(s.mem, p...)
	return len(p), nil
}

// fill appends what r has and writes the same to tee. Of the two errors, one is
// of r and one of the file.
func (s *spool) fill(r io.Reader, tee io.Writer) (of, own error) {
	for {
		if len(s.mem) == cap(s.mem) {
			if err := s.flush(); err != nil {
				return nil, err
			}
		}
		n, err := r.Read(s.mem[len(s.mem):cap(s.mem)])
		_, _ = tee.Write(s.mem[len(s.mem) : len(s.mem)+n])
		s.mem = s.mem[:len(s.mem)+n]
		if err == io.EOF {
			if err := s.flush(); err != nil {
				return nil, err
			}
			s.mem = nil
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// take accounts for n bytes that are about to go into the file.
func (s *spool) take(n int) error {
	err := s.spools.take(s.taken, int64(n))
	if err == nil {
		s.taken += int64(n)
	}
	return err
}

// flush puts what is in memory into the file. An error loses nothing.
func (s *spool) flush() error {
	if err := s.take(len(s.mem)); err != nil {
		return err
	}
	if s.file == nil {
		file, err := os.CreateTemp(s.spools.config.Dir, "semel-*.spool") // mode 0600
		if err != nil {
			return err
		}
		s.file = file
		// Where that is possible, nothing is left of it however the process
		// ends.
		if os.Remove(file.Name()) != nil {
			s.name = file.Name()
		}
	}
	n, err := s.file.Write(s.mem)
	s.filed += int64(n)
	if err != nil {
		s.mem = s.mem[n:]
		return err
	}
	if cap(s.mem) < spoolBuffer || cap(s.mem) > 4*spoolBuffer {
		s.mem = make([]byte, 0, spoolBuffer)
	}
	s.mem = s.mem[:0]
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(p []byte, at int64) (n int, err error) {
	if s.closed.Load() {
		return 0, errSpoolClosed
	}
	if at < s.filed {
		n, err = s.file.ReadAt(p[:min(int64(len(p)), s.filed-at)], at)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF // it has been truncated
			}
			return n, err
		}
		at += int64(n)
	}
	if n < len(p) {
		n += copy(p[n:], s.mem[min(at-s.filed, int64(len(s.mem))):])
		if n < len(p) {
			return n, io.EOF
		}
	}
	return n, nil
}

// reader returns a reader of the whole.
func (s *spool) reader() *io.SectionReader { return io.NewSectionReader(s, 0, s.size()) }

// pieces returns the whole as the body of a result.
func (s *spool) pieces() *semel.Pieces {
	p := &semel.Pieces{Size: s.size()}
	p.Read = func(ctx context.Context, n int) ([]byte, error) {
		if n < 0 || n >= p.Count() {
			return nil, fmt.Errorf("semelhttp: there is no piece %d", n)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		piece := make([]byte, p.Length(n))
		if _, err := s.ReadAt(piece, int64(n)*semel.PieceBytes); err != nil {
			return nil, err
		}
		return piece, nil
	}
	return p
}

// close gives up the file, once.
func (s *spool) close() {
	if s.closed.Swap(true) {
		return
	}
	if s.taken > 0 {
		s.spools.used.Add(-s.taken)
	}
	if s.file == nil {
		return
	}
	_ = s.file.Close()
	if s.name != "" {
		_ = os.Remove(s.name)
	}
}
