package semelhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/store/memory"
)

// noise is n bytes that repeat nowhere.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func mustSpools(t testing.TB, c SpoolsConfig) *Spools {
	t.Helper()
	s, err := NewSpools(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func spoolsIn(t testing.TB, dir string) *Spools { return mustSpools(t, SpoolsConfig{Dir: dir}) }

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// What is written is there, at every place and in every piece, wherever the
// border between file and memory lies.
func TestSpool(t *testing.T) {
	for _, limit := range []int64{0, 1, 1000, spoolBuffer - 1, spoolBuffer, 5 * spoolBuffer} {
		for _, size := range []int{1, 999, 1000, 1001, spoolBuffer, 5*spoolBuffer + 1, 2 * semel.PieceBytes, 3*semel.PieceBytes + 7} {
			dir, all := t.TempDir(), noise(size)
			s := &spool{spools: spoolsIn(t, dir), max: limit}
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(3*spoolBuffer))
				if size < 2000 {
					n = min(n, 100)
				}
				if took, err := s.write(rest[:n]); took != n || err != nil {
					t.Fatalf("write took %d of %d, %v", took, n, err)
				}
				rest = rest[n:]
			}
			name := fmt.Sprintf("limit %d, size %d", limit, size)
			if (s.file != nil) != (int64(size) > limit) || s.size() != int64(size) {
				t.Fatalf("%s: file %v, size %d", name, s.file != nil, s.size())
			}
			if s.file != nil && cap(s.mem) > 4*spoolBuffer {
				t.Errorf("%s: %d bytes are held beside the file", name, cap(s.mem))
			}
			if file, ok := s.file.(*os.File); ok {
				if info, err := file.Stat(); err != nil || info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
				}
			}
			got, err := io.ReadAll(s.reader())
			if err != nil || !bytes.Equal(got, all) {
				t.Fatalf("%s: reads as %d bytes, %v", name, len(got), err)
			}
			p, pieced := s.pieces(), []byte(nil)
			for n := range p.Count() {
				piece, err := p.ReadPiece(t.Context(), n)
				if err != nil {
					t.Fatalf("%s: piece %d: %v", name, n, err)
				}
				pieced = append(pieced, piece...)
			}
			if !bytes.Equal(pieced, all) {
				t.Errorf("%s: the pieces are another body", name)
			}
			if _, err := p.Read(t.Context(), p.Count()); err == nil {
				t.Errorf("%s: a piece behind the last was read", name)
			}
			s.close()
			s.close()
			wantEmpty(t, dir)
			if _, err := s.ReadAt(make([]byte, 1), 0); err == nil {
				t.Errorf("%s: it can be read after close", name)
			}
			if _, err := p.ReadPiece(t.Context(), 0); err == nil {
				t.Errorf("%s: a piece can be read after close", name)
			}
		}
	}
}

// Where a file cannot be removed while it is open, it goes when it is closed.
func TestSpoolRemovesItsFileAtClose(t *testing.T) {
	dir := t.TempDir()
	file, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &spool{file: file, name: file.Name()}
	s.close()
	wantEmpty(t, dir)
}

func TestSpoolFill(t *testing.T) {
	for _, size := range []int{0, 1, spoolBuffer - 10, spoolBuffer, 10 * spoolBuffer} {
		all, tee := noise(10+size), &bytes.Buffer{}
		s := &spool{spools: spoolsIn(t, t.TempDir()), mem: append(make([]byte, 0, spoolBuffer), all[:10]...)}
		if of, own := s.fill(bytes.NewReader(all[10:]), tee); of != nil || own != nil {
			t.Fatal(of, own)
		}
		got, err := io.ReadAll(s.reader())
		if err != nil || !bytes.Equal(got, all) || !bytes.Equal(tee.Bytes(), all[10:]) || s.mem != nil {
			t.Errorf("size %d: reads as %d bytes, %v; tee has %d, memory %d", size, len(got), err, tee.Len(), cap(s.mem))
		}
		s.close()
	}
	s := &spool{spools: spoolsIn(t, t.TempDir()), mem: make([]byte, 0, 10)}
	defer s.close()
	broken := errors.New("broken")
	if of, own := s.fill(io.MultiReader(strings.NewReader("0123456789abcdef"), failingReader{broken}), io.Discard); of != broken || own != nil {
		t.Errorf("a reader that breaks gives %v and %v", of, own)
	}
	gone := t.TempDir()
	s = &spool{spools: spoolsIn(t, gone), mem: make([]byte, 0, 10)}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if of, own := s.fill(strings.NewReader("0123456789abcdef"), io.Discard); of != nil || !errors.Is(own, os.ErrNotExist) {
		t.Errorf("a directory that is not there gives %v and %v", of, own)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// A body in a spool has the fingerprint that it has in memory.
func TestFingerprintOfSpooledBodies(t *testing.T) {
	quick.LeaveOut(t)
	large := string(noise(300_000))
	text := strings.Repeat("lorem ipsum, ", 25_000)
	part := func(boundary, content string) string {
		return "--" + boundary + "\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n" + content + "\r\n--" + boundary + "--\r\n"
	}
	bodies := map[string][2]string{ // media type and body
		"raw":                   {"application/octet-stream", large},
		"json":                  {"application/json", ` {"b":1.0,  "a":"` + text + `"}`},
		"json over the limit":   {"application/json", ` {"b":1.0,  "a":"` + strings.Repeat(text, 4) + `"}`},
		"json that is none":     {"application/json", `{"b":1.0,"a":"` + text},
		"json, duplicate names": {"application/json", `{"a":1,"a":"` + text + `"}`},
		"form":                  {"application/x-www-form-urlencoded", "b=1&a=" + url.QueryEscape(text)},
		"form over the limit":   {"application/x-www-form-urlencoded", "b=1&a=" + url.QueryEscape(strings.Repeat(text, 4))},
		"form that is none":     {"application/x-www-form-urlencoded", "b=%zz&a=" + text},
		"multipart":             {"multipart/form-data; boundary=xyz", part("xyz", large)},
		"multipart, two parts":  {"multipart/mixed; boundary=xyz", strings.TrimSuffix(part("xyz", large), "--\r\n") + "\r\n\r\n" + part("xyz", text)[7:]},
		"multipart, cut":        {"multipart/form-data; boundary=xyz", part("xyz", large)[:200_000]},
	}
	for _, c := range []FingerprintConfig{
		{MaxCanonical: 1 << 20}, {MaxCanonical: 1 << 20, Exclude: []string{"/b"}}, {Mode: FingerprintRaw}, {Mode: FingerprintJSON, MaxCanonical: 1 << 20},
	} {
		f := fingerprinter(t, c)
		u := &url.URL{Path: "/orders"}
		for name, b := range bodies {
			for _, coding := range []string{"", "gzip"} {
				h := http.Header{"Content-Type": {b[0]}}
				if coding != "" {
					h.Set("Content-Encoding", coding)
				}
				spools := spoolsIn(t, t.TempDir())
				spooled := func(body string) semel.Fingerprint {
					s := &spool{spools: spools, mem: make([]byte, 0, 1000)}
					defer s.close()
					d := f.stream("POST", u, h)
					if of, own := s.fill(strings.NewReader(body), d); of != nil || own != nil {
						t.Fatal(of, own)
					}
					fp, err := f.endStream(d, "POST", u, h, s)
					if err != nil {
						t.Fatal(err)
					}
					return fp
				}
				want := f.Fingerprint("POST", u, h, []byte(b[1]))
				if spooled(b[1]) != want {
					t.Errorf("%+v: %s, coding %q: it has another fingerprint than in memory", c, name, coding)
				}
				// Every part counts, the spooled one too.
				for _, at := range []int{len(b[1]) * 9 / 10, len(b[1]) / 2, 120} {
					other := b[1][:at] + string(b[1][at]^1) + b[1][at+1:]
					if spooled(other) == want {
						t.Errorf("%+v: %s, coding %q: a change at %d goes unnoticed", c, name, coding, at)
					}
				}
			}
		}
	}
}

func TestMaxCanonical(t *testing.T) {
	long := strings.Repeat("x", 5<<20)
	a, b := []byte(`{"a":1,"b":"`+long+`"}`), []byte(`{"b":"`+long+`","a":1}`)
	h := http.Header{"Content-Type": {"application/json"}}
	for _, tc := range []struct {
		config FingerprintConfig
		same   bool
	}{{FingerprintConfig{}, false}, {FingerprintConfig{MaxCanonical: 6 << 20}, true}} {
		f := fingerprinter(t, tc.config)
		u := &url.URL{Path: "/"}
		if same := f.Fingerprint("POST", u, h, a) == f.Fingerprint("POST", u, h, b); same != tc.same {
			t.Errorf("%+v: same is %v", tc.config, same)
		}
		if f.Fingerprint("POST", u, h, a[:len(a)-1]) == f.Fingerprint("POST", u, h, a) {
			t.Errorf("%+v: the end goes unnoticed", tc.config)
		}
	}
	if err := (FingerprintConfig{MaxCanonical: -1}).Validate(); err == nil || !strings.Contains(err.Error(), "MaxCanonical") {
		t.Errorf("negative: %v", err)
	}
	if f := fingerprinter(t, FingerprintConfig{MaxCanonical: DefaultMaxCanonical}); f.Scheme() != SchemeHTTP {
		t.Errorf("the default, spelled out, has the scheme %s", f.Scheme())
	}
}

// fullDisk takes some more bytes and then none. What is there can be read, unless
// it is broken as well.
type fullDisk struct {
	spoolFile
	room   int
	broken bool
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n, err := d.spoolFile.Write(p[:min(len(p), d.room)])
	if d.room -= n; err == nil && n < len(p) {
		err = errors.New("no space left on device")
	}
	return n, err
}

func (d *fullDisk) ReadAt(p []byte, at int64) (int, error) {
	if d.broken {
		return 0, errors.New("input/output error")
	}
	return d.spoolFile.ReadAt(p, at)
}

// protectAlone protects h over a store of its own.
func protectAlone(t *testing.T, c Config, h http.Handler) (http.Handler, *memory.Store, *semel.Guard) {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c.Guard, err = semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	c.Scope = func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil }
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m(h), store, c.Guard
}

// The disk fills up while an answer is spooled: it has happened, so there is a
// tombstone, and the client gets the answer to the last byte, the part that the
// file took, the part that was in memory and the part that came later.
func TestDiskFullWhileAnswering(t *testing.T) {
	all := noise(1 << 20)
	for _, room := range []int{0, 1, 5000, spoolBuffer, 3*spoolBuffer + 5, 500_000} {
		for _, size := range []int{100, 5000, 100_000, 400_000} {
			t.Run(fmt.Sprintf("room %d, writes of %d", room, size), func(t *testing.T) {
				executed, failures, dir := 0, 0, t.TempDir()
				h, store, _ := protectAlone(t, Config{
					MaxInline: 1000, Spools: mustSpools(t, SpoolsConfig{Dir: dir, Failed: func(context.Context, error) { failures++ }}),
				}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					executed++
					rec := r.Context().Value(recorderKey{}).(*recorder)
					for at := 0; at < len(all); at += size {
						if n, err := w.Write(all[at:min(at+size, len(all))]); n != min(size, len(all)-at) || err != nil {
							t.Errorf("Write took %d, %v", n, err)
						}
						if _, ok := rec.kept.file.(*fullDisk); !ok && rec.kept.file != nil {
							rec.kept.file = &fullDisk{spoolFile: rec.kept.file, room: room}
						}
					}
				}))
				send := func() *httptest.ResponseRecorder {
					w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/x", strings.NewReader("{}"))
					r.Header.Set("Idempotency-Key", "k")
					h.ServeHTTP(w, r)
					return w
				}
				if w := send(); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), all) {
					t.Errorf("got %d with %d bytes", w.Code, w.Body.Len())
				}
				w := send()
				p, err := ParseProblem(w.Body, w.Header().Get("Content-Type"))
				if kind, _ := p.Case(); kind != ProblemResultNotRetained || err != nil {
					t.Errorf("the retry got %d %+v, %v", w.Code, p, err)
				}
				if executed != 1 || failures != 1 {
					t.Errorf("executed %d times, %d failures were told", executed, failures)
				}
				list, err := store.List(t.Context(), semel.Filter{})
				if err != nil || len(list) != 1 || list[0].State != semel.StateCompleted {
					t.Errorf("on record: %+v, %v", list, err)
				}
				wantEmpty(t, dir)
			})
		}
	}
}

// A spool that cannot be read again: the record becomes a tombstone, and the
// client sees that the answer is not whole.
func TestBrokenDisk(t *testing.T) {
	for name, config := range map[string]Config{
		"while it is recorded": {MaxInline: 1000},
		"while it passes":      {MaxInline: 1000, MaxResult: 200_000},
	} {
		t.Run(name, func(t *testing.T) {
			executed, dir := 0, t.TempDir()
			config.Spools = spoolsIn(t, dir)
			h, _, guard := protectAlone(t, config, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				executed++
				rec := r.Context().Value(recorderKey{}).(*recorder)
				for range 3 {
					_, _ = w.Write(noise(100_000))
					if _, ok := rec.kept.file.(*fullDisk); !ok && rec.kept.file != nil {
						rec.kept.file = &fullDisk{spoolFile: rec.kept.file, room: 1 << 30, broken: true}
					}
				}
			}))
			s := httptest.NewServer(h)
			defer s.Close()
			for try := range 2 {
				r, _ := http.NewRequest("POST", s.URL, strings.NewReader("{}"))
				r.Header.Set("Idempotency-Key", "k")
				resp, err := s.Client().Do(r)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				if try == 0 && err == nil {
					t.Errorf("the client took %d bytes for the whole answer", len(body))
				}
				if try == 1 {
					p, err := ParseProblem(bytes.NewReader(body), resp.Header.Get("Content-Type"))
					if kind, _ := p.Case(); kind != ProblemResultNotRetained || err != nil {
						t.Errorf("the retry got %d %+v, %v", resp.StatusCode, p, err)
					}
				}
			}
			s.Close()
			if err := guard.Drain(t.Context()); err != nil || executed != 1 {
				t.Errorf("executed %d times, %v", executed, err)
			}
			wantEmpty(t, dir)
		})
	}
}

// TestHeldBody: a body that a trial could not hold is whole all the same, wherever
// the trial stopped reading.
func TestHeldBody(t *testing.T) {
	text := make([]byte, 3*inlineBody)
	for i := range text {
		text[i] = byte(i >> 8)
	}
	for _, room := range []int64{1, 1 << 20, 1 << 30} {
		for _, stop := range []int{0, 1, inlineBody, 2 * inlineBody, len(text)} {
			spools, err := NewSpools(SpoolsConfig{Dir: t.TempDir(), MaxBytes: room})
			if err != nil {
				t.Fatal(err)
			}
			b := &heldBody{ReadCloser: io.NopCloser(bytes.NewReader(text)), held: spool{spools: spools, max: inlineBody}}
			read, err := io.ReadAll(io.LimitReader(b, int64(stop)))
			if err == nil && len(read) != stop || err != nil && room != 1 && room != 1<<20 {
				t.Errorf("room for %d, up to %d: the trial has read %d bytes: %v", room, stop, len(read), err)
			}
			whole, err := io.ReadAll(b.whole())
			if err != nil || !bytes.Equal(whole, text) || !bytes.HasPrefix(text, read) {
				t.Errorf("room for %d, up to %d: the body has %d bytes of %d: %v", room, stop, len(whole), len(text), err)
			}
			if n, err := b.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Error("the trial can read on")
			}
			b.held.close()
			if n := spools.Used(); n != 0 {
				t.Errorf("the spools hold %d bytes", n)
			}
		}
	}
}
