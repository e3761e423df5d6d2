package semelhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// pieceStore keeps large results piece by piece, in files.
type pieceStore struct {
	*memory.Store
	dir    string
	refuse bool // it keeps no pieces

	mu    sync.Mutex
	read  func(piece int) error // its error is Read's
	files map[string]*os.File   // by record id
}

func (s *pieceStore) failRead(f func(piece int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = f
}

func newPieceStore(t *testing.T) *pieceStore {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &pieceStore{Store: m, dir: t.TempDir(), files: map[string]*os.File{}}
	t.Cleanup(func() {
		for _, f := range s.files {
			_ = f.Close()
		}
	})
	return s
}

func (s *pieceStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if conflict, ok := errors.AsType[*semel.ConflictError](err); ok {
		return nil, &semel.ConflictError{Record: s.pieced(conflict.Record)}
	}
	if err != nil {
		return nil, err
	}
	return &pieceClaim{c, s}, nil
}

func (s *pieceStore) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	r, err := s.Store.Find(ctx, id)
	return s.pieced(r), err
}

func (s *pieceStore) pieced(r semel.Record) semel.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[r.ID]
	if f == nil || r.State != semel.StateCompleted {
		return r
	}
	info, err := f.Stat()
	if err != nil {
		panic(err)
	}
	p := &semel.Pieces{Size: info.Size()}
	p.Read = func(ctx context.Context, n int) ([]byte, error) {
		s.mu.Lock()
		read := s.read
		s.mu.Unlock()
		if read != nil {
			if err := read(n); err != nil {
				return nil, err
			}
		}
		b := make([]byte, p.Length(n))
		_, err := f.ReadAt(b, int64(n)*semel.PieceBytes)
		return b, errors.Join(err, ctx.Err())
	}
	r.Result.Pieces = p
	return r
}

type pieceClaim struct {
	semel.Claim
	store *pieceStore
}

func (c *pieceClaim) Complete(ctx context.Context, r semel.Result) (e time.Time, err error) {
	if r.Pieces == nil {
		return c.Claim.Complete(ctx, r)
	}
	if c.store.refuse {
		return e, semel.ErrTooLarge
	}
	f, err := os.Create(filepath.Join(c.store.dir, c.RecordID()))
	if err != nil {
		return e, err
	}
	c.store.mu.Lock()
	c.store.files[c.RecordID()] = f
	c.store.mu.Unlock()
	for n := range r.Pieces.Count() {
		piece, err := r.Pieces.ReadPiece(ctx, n)
		if err != nil {
			return e, fmt.Errorf("%w: %w", semel.ErrTooLarge, err)
		}
		if _, err := f.Write(piece); err != nil {
			return e, err
		}
	}
	r.Pieces = nil
	return c.Claim.Complete(ctx, r)
}

// large is a server in front of a protected handler, whose spools are watched.
type large struct {
	*httptest.Server
	store *pieceStore
	guard *semel.Guard
	dir   string
	in    visitors // requests in the middleware

	spools *semelhttp.Spools
	failed func(error) // told of what could not be spooled
}

// visitors come and go.
type visitors struct {
	mu        sync.Mutex
	changed   sync.Cond // of the others
	now, ever int
}

func (v *visitors) change(now, ever int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now += now
	v.ever += ever
	if v.changed.L != nil {
		v.changed.Broadcast()
	}
}

// wait returns when at least so many have come and all have gone.
func (v *visitors) wait(ever int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changed.L = &v.mu
	for v.now > 0 || v.ever < ever {
		v.changed.Wait()
	}
}

func serveLarge(t *testing.T, http2 bool, h http.HandlerFunc, edit ...func(*semelhttp.Config)) *large {
	t.Helper()
	l := &large{store: newPieceStore(t), dir: t.TempDir()}
	var err error
	if l.guard, err = semel.New(semel.Config{Store: l.store}); err != nil {
		t.Fatal(err)
	}
	letGo(t, l.guard)
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: l.guard, Scope: tester})
	if err != nil {
		t.Fatal(err)
	}
	c := semelhttp.Config{Guard: l.guard, Scope: tester, MaxRequestBody: 128 << 20, Resources: resources}
	if c.Spools, err = semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: l.dir, Failed: func(_ context.Context, err error) {
		if l.failed != nil {
			l.failed(err)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	l.spools = c.Spools
	for _, f := range edit {
		f(&c)
	}
	m, err := semelhttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	protected := m(h)
	l.Server, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.in.change(1, 1)
		defer l.in.change(-1, 0)
		if resources.Serves(r) {
			resources.ServeHTTP(w, r)
			return
		}
		protected.ServeHTTP(w, r)
	}), http2)
	return l
}

// withoutCollector keeps the garbage collector from closing what was forgotten.
func withoutCollector(t *testing.T) {
	was := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(was) })
}

// wantNothingLeft waits for the end of all work and looks for files.
func (l *large) wantNothingLeft(t *testing.T) {
	t.Helper()
	l.in.wait(0)
	if err := l.guard.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(l.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	// A handler that panics counts as out while its frames are still unwound.
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		stacks := make([]byte, 1<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; !bytes.Contains(stacks, []byte("semelhttp.(*exchange)")) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("somebody is still at work:\n%s", stacks)
			break
		}
	}
	// On Linux the files have no name; they are open or they are not.
	open, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, l.dir) {
			t.Errorf("still open: %s", target)
		}
	}
}

// noise is size bytes that are the same each time. Each stretch of a million is
// moved against every buffer's and piece's size.
func noise(size int64) io.Reader {
	at := 0
	return io.LimitReader(readerFunc(func(p []byte) (int, error) {
		n := copy(p, stretch[at:])
		at = (at + n) % len(stretch)
		return n, nil
	}), size)
}

var stretch = func() []byte {
	b := make([]byte, 1_000_003)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// digest tells bodies apart. The requests that these tests send are no
// adversary's, so a fast one will do.
func digest(t testing.TB, r io.Reader) string {
	t.Helper()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, r)
	if err != nil {
		t.Errorf("the body broke off: %v", err)
	}
	return fmt.Sprintf("%d bytes, %x", n, h.Sum(nil))
}

// peak is the most memory seen in use while bytes passed.
type peak struct {
	idle uint64
	most atomic.Uint64
}

func newPeak(t *testing.T) *peak {
	// How much there is at most depends on when it is collected.
	percent := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	debug.FreeOSMemory() // what other tests have left
	return &peak{idle: inUse()}
}

func inUse() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() + s[1].Value.Uint64()
}

func (p *peak) look() {
	now := inUse()
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
}

func (p *peak) reader(r io.Reader) io.Reader { return &peakReader{r, p, 0} }

type peakReader struct {
	io.Reader
	peak *peak
	n    int
}

func (r *peakReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.n += n; r.n > 1<<20 {
		r.n = 0
		r.peak.look()
	}
	return n, err
}

func (p *peak) want(t *testing.T, under uint64) {
	t.Helper()
	t.Logf("idle %d MiB, at most %d MiB", p.idle>>20, p.most.Load()>>20)
	if most := p.most.Load(); most > p.idle+under {
		t.Errorf("%d MiB in use, %d MiB above idle", most>>20, (most-p.idle)>>20)
	}
}

// upload makes a request with a body of the given size.
func (l *large) upload(t testing.TB, key string, size int64, body io.Reader) *http.Request {
	t.Helper()
	r := newRequest(t, http.MethodPost, l.URL+"/files", key, "")
	r.Body, r.ContentLength = io.NopCloser(body), size
	r.Header.Set("Content-Type", "application/octet-stream")
	return r
}

// fetched is an answer whose body was digested as it came.
type fetched struct {
	*http.Response
	digest string
}

func (l *large) fetch(t testing.TB, r *http.Request, through func(io.Reader) io.Reader) fetched {
	t.Helper()
	resp, err := l.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return fetched{resp, digest(t, through(resp.Body))}
}
