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

// spoolBuffer is how much of a spool with a file is in memory.
const spoolBuffer = 64 << 10

// errSpoolClosed is what a spool's readers get when nobody needs it any more.
var errSpoolClosed = errors.New("semelhttp: the request or answer is over")

// spool is a sequence of bytes that is written first and then read: in memory
// as long as it is short, in a temporary file beyond that. Writing it is for one
// goroutine; reading, once it has been handed over, and close are for any.
type spool struct {
	dir string // of the file; "" for os.TempDir
	max int64  // of what is kept without a file

	file   spoolFile
	name   string // of a file that could not be removed while open
	filed  int64  // how much of the spool the file has
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

// flush puts what is in memory into the file. An error loses nothing.
func (s *spool) flush() error {
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, "semel-*.spool") // mode 0600
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
	if s.closed.Swap(true) || s.file == nil {
		return
	}
	_ = s.file.Close()
	if s.name != "" {
		_ = os.Remove(s.name)
	}
}
