package semelhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/semelhttp"
)

// 100 MB up and 100 MB down, with what fits into memory many times over.
func TestLargeBodiesStayOutOfMemory(t *testing.T) {
	quick.LeaveOut(t)
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			size := int64(100 << 20)
			if raceEnabled && http2 {
				size = 40 << 20
			}
			effects, want := &orders{}, digest(t, noise(size))
			p := newPeak(t)
			l := serveLarge(t, http2, func(w http.ResponseWriter, r *http.Request) {
				effects.add()
				if r.ContentLength != size || r.GetBody != nil {
					t.Errorf("the handler is told %d bytes, GetBody %v", r.ContentLength, r.GetBody != nil)
				}
				if got := digest(t, p.reader(r.Body)); got != want {
					t.Error("the handler got another body")
				}
				_, _ = io.Copy(w, p.reader(noise(size)))
			})
			a := l.fetch(t, l.upload(t, "k", size, p.reader(noise(size))), p.reader)
			if a.StatusCode != http.StatusOK || a.digest != want {
				t.Errorf("got %d %v", a.StatusCode, a.Header)
			}
			mustSend(t, l.Server, l.upload(t, "k", size, p.reader(noise(size)))).want(t, semelhttp.ProblemResultNotRetained)
			other := io.MultiReader(noise(size-1), strings.NewReader("x"))
			mustSend(t, l.Server, l.upload(t, "k", size, other)).want(t, semelhttp.ProblemKeyMismatch)
			effects.want(t, 1)
			p.want(t, 64<<20)
			l.wantNothingLeft(t)
		})
	}
}

// Ten answers of 20 MB at the same time, and their replays: the same bytes, with
// the same header and trailers.
func TestLargeAnswersAreReplayed(t *testing.T) {
	quick.LeaveOut(t)
	const size = 20 << 20
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			clients := 10
			if raceEnabled && http2 {
				clients = 2
			}
			effects, want, p := &orders{}, digest(t, noise(size)), newPeak(t)
			l := serveLarge(t, http2, func(w http.ResponseWriter, r *http.Request) {
				effects.add()
				h := w.Header()
				h.Set("Content-Encoding", "zstd")
				h.Set("Content-Type", "application/x-ndjson")
				h["X-List"] = []string{"b", "a"}
				h.Set("Location", "/files/1")
				if r.URL.Query().Has("trailers") {
					h.Set("Trailer", "Sum")
				} else {
					h.Set("Content-Length", fmt.Sprint(size))
				}
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, p.reader(noise(size)))
				h.Set("Sum", "abc")
			})
			var group sync.WaitGroup
			for i := range clients {
				group.Go(func() {
					ask := func() fetched {
						r := newRequest(t, http.MethodPost, l.URL+[]string{"/files", "/files?trailers"}[i%2], fmt.Sprint("k", i), "{}")
						return l.fetch(t, r, p.reader)
					}
					original, replay := ask(), ask()
					if replay.Header.Get(semelhttp.HeaderReplayed) != "true" || original.Header.Get(semelhttp.HeaderReplayed) != "" {
						t.Errorf("marked as replayed: %v and %v", original.Header, replay.Header)
					}
					for _, a := range []fetched{original, replay} {
						if a.StatusCode != http.StatusCreated || a.digest != want || a.ContentLength != original.ContentLength ||
							a.Header.Get("Content-Encoding") != "zstd" || len(a.Header["X-List"]) != 2 || (a.Trailer.Get("Sum") == "abc") != (i%2 == 1) {
							t.Errorf("got %d, %d bytes, %v, trailers %v", a.StatusCode, a.ContentLength, a.Header, a.Trailer)
						}
					}
					if o, r := without(original.Header, ownOrHop...), without(replay.Header, ownOrHop...); !maps.EqualFunc(o, r, slices.Equal) {
						t.Errorf("header\n%v; replay\n%v", o, r)
					}
				})
			}
			group.Wait()
			effects.want(t, clients)
			p.want(t, 64<<20)

			list, err := l.store.List(t.Context(), semel.Filter{Key: "k0"})
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				r := newRequest(t, method, l.URL+semelhttp.DefaultPrefix+"/operations/"+list[0].ID+"/result", "", "")
				a := l.fetch(t, r, p.reader)
				if a.StatusCode != http.StatusCreated || a.ContentLength != size || method == http.MethodGet && a.digest != want {
					t.Errorf("%s of the result: %d, %d bytes, %v", method, a.StatusCode, a.ContentLength, a.Header)
				}
			}
			l.wantNothingLeft(t)
		})
	}
}

// A piece that cannot be read: before the first byte a problem, and after it the
// client sees that the answer is not whole, whether or not a length is there to
// compare with.
func TestRecordedPieceThatCannotBeRead(t *testing.T) {
	withoutCollector(t)
	const size = 4*semel.PieceBytes + 10
	for _, http2 := range []bool{false, true} {
		for _, trailers := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%v,trailers=%v", http2, trailers), func(t *testing.T) {
				effects := &orders{}
				l := serveLarge(t, http2, func(w http.ResponseWriter, _ *http.Request) {
					effects.add()
					if trailers {
						w.Header().Set("Trailer", "Sum")
					}
					w.Header().Set("Location", "/files/1")
					_, _ = io.Copy(w, noise(size))
					w.Header().Set("Sum", "abc")
				})
				if a := post(t, l.Server, "k", "{}"); a.err != nil || len(a.body) != size {
					t.Fatalf("got %d bytes, %v", len(a.body), a.err)
				}
				for _, failing := range []int{1, 4} {
					l.store.failRead(func(n int) error {
						if n == failing {
							return errors.New("the store is down")
						}
						return nil
					})
					a, err := send(l.Client(), newRequest(t, http.MethodPost, l.URL+"/orders", "k", "{}"))
					if err == nil && a.err == nil {
						t.Errorf("piece %d fails: the client took %d bytes for the whole answer", failing, len(a.body))
					}
				}
				l.store.failRead(func(int) error { return errors.New("the store is down") })
				p := post(t, l.Server, "k", "{}").want(t, semelhttp.ProblemStoreUnavailable)
				if !strings.Contains(p.Detail, "completed") {
					t.Errorf("the detail is %q", p.Detail)
				}
				l.store.failRead(func(int) error { return semel.ErrNotFound })
				if p := post(t, l.Server, "k", "{}").want(t, semelhttp.ProblemResultNotRetained); p.Reference != "/files/1" {
					t.Errorf("the reference is %q", p.Reference)
				}
				l.store.failRead(nil)
				if a := post(t, l.Server, "k", "{}"); a.err != nil || len(a.body) != size || !a.replayed() {
					t.Errorf("got %d bytes, %v", len(a.body), a.err)
				}
				effects.want(t, 1)
				l.wantNothingLeft(t)
			})
		}
	}
}

// On a store that keeps no pieces a large answer leaves a tombstone, and its own
// client gets it whole all the same.
func TestStoreThatKeepsNoPieces(t *testing.T) {
	withoutCollector(t)
	const size = 3 << 20
	for _, http2 := range []bool{false, true} {
		effects, want := &orders{}, digest(t, noise(size))
		l := serveLarge(t, http2, func(w http.ResponseWriter, _ *http.Request) {
			effects.add()
			w.Header().Set("Location", "/files/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, noise(size))
		})
		l.store.refuse = true
		a := post(t, l.Server, "k", "{}")
		if a.status != http.StatusCreated || digest(t, strings.NewReader(a.body)) != want || a.err != nil || a.header.Get(semelhttp.HeaderExpires) == "" {
			t.Errorf("got %d, %d bytes, %v, %v", a.status, len(a.body), a.err, a.header)
		}
		if p := post(t, l.Server, "k", "{}").want(t, semelhttp.ProblemResultNotRetained); p.Reference != "/files/1" {
			t.Errorf("the reference is %q", p.Reference)
		}
		effects.want(t, 1)
		l.wantNothingLeft(t)
	}
}

// What the handler made of its large answer counts, wherever that is kept.
func TestLargeAnswersThatAreNotRecorded(t *testing.T) {
	withoutCollector(t)
	const size = 1 << 20
	for name, tc := range map[string]struct {
		end  func(w http.ResponseWriter, r *http.Request)
		head func(w http.ResponseWriter)
		want func(t *testing.T, a answer, err error) // the first
		next semelhttp.ProblemCase                   // the second; "" for the same again
		runs int
	}{
		"no effect": {
			head: func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
			want: func(t *testing.T, a answer, err error) {
				if a.status != http.StatusTooManyRequests || len(a.body) != size || a.err != nil || err != nil {
					t.Errorf("got %d, %d bytes, %v, %v", a.status, len(a.body), a.err, err)
				}
			},
			runs: 2,
		},
		"indeterminate": {
			end:  func(_ http.ResponseWriter, r *http.Request) { semelhttp.DeclareIndeterminate(r.Context(), "cut off") },
			want: func(t *testing.T, a answer, _ error) { a.wantOwnFailure(t) },
			next: semelhttp.ProblemOutcomeUnknown,
			runs: 1,
		},
		"shorter than its length": {
			head: func(w http.ResponseWriter) { w.Header().Set("Content-Length", fmt.Sprint(size+1)) },
			want: func(t *testing.T, a answer, _ error) { a.wantOwnFailure(t) },
			next: semelhttp.ProblemOutcomeUnknown,
			runs: 1,
		},
		"panic": {
			end: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			want: func(t *testing.T, a answer, err error) {
				if err == nil {
					t.Errorf("got %d", a.status)
				}
			},
			next: semelhttp.ProblemOutcomeUnknown,
			runs: 1,
		},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,http2=%v", name, http2), func(t *testing.T) {
				effects := &orders{}
				l := serveLarge(t, http2, func(w http.ResponseWriter, r *http.Request) {
					effects.add()
					if tc.head != nil {
						tc.head(w)
					}
					_, _ = io.Copy(w, noise(size))
					if tc.end != nil {
						tc.end(w, r)
					}
				})
				for try := range 2 {
					a, err := send(l.Client(), newRequest(t, http.MethodPost, l.URL+"/orders", "k", "{}"))
					if try == 0 || tc.next == "" {
						tc.want(t, a, err)
					} else {
						a.want(t, tc.next)
					}
				}
				effects.want(t, tc.runs)
				l.wantNothingLeft(t)
			})
		}
	}
}

// The client goes away while it uploads, while the handler works, and while it is
// being answered. The first executes nothing; the others run to their end, with
// the whole body, and are recorded.
func TestClientOfLargeBodiesGone(t *testing.T) {
	quick.LeaveOut(t)
	withoutCollector(t)
	const size = 8 << 20
	for _, http2 := range []bool{false, true} {
		want := digest(t, noise(size))
		run := func(name string, f func(t *testing.T, l *large, effects *orders, entered <-chan struct{}, on chan<- struct{}), handler func(<-chan struct{})) {
			t.Run(fmt.Sprintf("%s,http2=%v", name, http2), func(t *testing.T) {
				effects, entered, on := &orders{}, make(chan struct{}, 10), make(chan struct{})
				l := serveLarge(t, http2, func(w http.ResponseWriter, r *http.Request) {
					effects.add()
					entered <- struct{}{}
					handler(on)
					if got := digest(t, r.Body); got != want {
						t.Error("the handler got another body")
					}
					_, _ = io.Copy(w, noise(size))
				})
				f(t, l, effects, entered, on)
				l.wantNothingLeft(t)
			})
		}
		nothing := func(<-chan struct{}) {}
		run("uploading", func(t *testing.T, l *large, effects *orders, _ <-chan struct{}, _ chan<- struct{}) {
			ctx, cancel := context.WithCancel(t.Context())
			body := io.MultiReader(noise(size/2), readerFunc(func([]byte) (int, error) {
				cancel()
				<-ctx.Done()
				return 0, ctx.Err()
			}))
			if _, err := l.Client().Do(l.upload(t, "k", size, body).WithContext(ctx)); err == nil {
				t.Error("the upload was answered")
			}
			l.in.wait(1)
			effects.want(t, 0)
		}, nothing)
		run("waiting", func(t *testing.T, l *large, effects *orders, entered <-chan struct{}, on chan<- struct{}) {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() {
				_, err := l.Client().Do(l.upload(t, "k", size, noise(size)).WithContext(ctx))
				gone <- err
			}()
			<-entered
			cancel()
			if err := <-gone; err == nil {
				t.Error("the request was answered")
			}
			on <- struct{}{}
			l.in.wait(1) // it ends by itself
			if a := mustSend(t, l.Server, l.upload(t, "k", size, noise(size))); !a.replayed() || digest(t, strings.NewReader(a.body)) != want {
				t.Errorf("got %d, %d bytes", a.status, len(a.body))
			}
			effects.want(t, 1)
		}, func(on <-chan struct{}) { <-on })
		run("answered", func(t *testing.T, l *large, effects *orders, _ <-chan struct{}, _ chan<- struct{}) {
			for range 2 { // the original and a replay
				resp, err := l.Client().Do(l.upload(t, "k", size, noise(size)))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
					t.Error(err)
				}
				_ = resp.Body.Close() // which gives up the connection or the stream
			}
			l.in.wait(1)
			if a := mustSend(t, l.Server, l.upload(t, "k", size, noise(size))); !a.replayed() || digest(t, strings.NewReader(a.body)) != want {
				t.Errorf("got %d, %d bytes", a.status, len(a.body))
			}
			effects.want(t, 1)
		}, nothing)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A disk that takes nothing: an upload is not executed and its key stays free; an
// answer leaves a tombstone and reaches its client.
func TestNoSpoolDirectory(t *testing.T) {
	withoutCollector(t)
	const size = 1 << 20
	effects, failures := &orders{}, make(chan error, 10)
	l := serveLarge(t, false, func(w http.ResponseWriter, r *http.Request) {
		effects.add()
		_, _ = io.Copy(w, r.Body)
		if r.ContentLength < size {
			_, _ = io.Copy(w, noise(size))
		}
	})
	l.failed = func(err error) { failures <- err }
	if err := os.Remove(l.dir); err != nil {
		t.Fatal(err)
	}
	a := mustSend(t, l.Server, l.upload(t, "up", size, noise(size)))
	a.want(t, semelhttp.ProblemSpoolUnavailable)
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	effects.want(t, 0)
	if err := <-failures; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("told %v", err)
	}
	if a := post(t, l.Server, "down", "{}"); a.status != http.StatusOK || len(a.body) != size+2 || a.err != nil {
		t.Errorf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
	}
	if err := <-failures; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("told %v", err)
	}
	post(t, l.Server, "down", "{}").want(t, semelhttp.ProblemResultNotRetained)
	effects.want(t, 1)
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if a := mustSend(t, l.Server, l.upload(t, "up", size, noise(size))); a.status != http.StatusOK || len(a.body) != size || a.replayed() {
		t.Errorf("got %d, %d bytes", a.status, len(a.body))
	}
	effects.want(t, 2)
	l.wantNothingLeft(t)
}

// A body that says how it ends only at its end: chunked, with a trailer.
func TestLargeUploadWithTrailers(t *testing.T) {
	withoutCollector(t)
	const size = 1 << 20
	for _, http2 := range []bool{false, true} {
		effects, want := &orders{}, digest(t, noise(size))
		l := serveLarge(t, http2, func(_ http.ResponseWriter, r *http.Request) {
			effects.add()
			if got := digest(t, r.Body); got != want || r.Trailer.Get("Sum") != "abc" || r.ContentLength != -1 {
				t.Errorf("the handler got length %d, trailer %v, the same body: %v", r.ContentLength, r.Trailer, got == want)
			}
		})
		for range 2 {
			r := l.upload(t, "k", -1, nil)
			r.Trailer = http.Header{"Sum": nil}
			r.Body = io.NopCloser(io.MultiReader(noise(size), readerFunc(func([]byte) (int, error) {
				r.Trailer.Set("Sum", "abc")
				return 0, io.EOF
			})))
			if a := mustSend(t, l.Server, r); a.status != http.StatusOK {
				t.Errorf("got %d %s", a.status, a.body)
			}
		}
		effects.want(t, 1)
		l.wantNothingLeft(t)
	}
}

// JSON up to the limit is compared by its members, wherever it is held; beyond
// the limit by its bytes. Multipart never by its boundary.
func TestLargeFingerprints(t *testing.T) {
	withoutCollector(t)
	effects := &orders{}
	l := serveLarge(t, false, func(http.ResponseWriter, *http.Request) { effects.add() }, func(c *semelhttp.Config) { c.Fingerprint.MaxCanonical = 2 << 20 })
	ask := func(key, contentType, body string) answer {
		r := newRequest(t, http.MethodPost, l.URL+"/orders", key, body)
		r.Header.Set("Content-Type", contentType)
		return mustSend(t, l.Server, r)
	}
	part := func(boundary string) (contentType, body string) {
		return "multipart/form-data; boundary=" + boundary, "--" + boundary + "\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n" + strings.Repeat("x", 3<<20) + "\r\n--" + boundary + "--\r\n"
	}
	long := strings.Repeat("x", 1<<20)
	ask("json", "application/json", `{"a":1,"b":"`+long+`"}`)
	if a := ask("json", "application/json", `{"b": "`+long+`", "a": 1}`); !a.replayed() {
		t.Errorf("got %d %s", a.status, a.body)
	}
	ask("json", "application/json", `{"b": "`+long+`", "a": 2}`).want(t, semelhttp.ProblemKeyMismatch)
	long = strings.Repeat("x", 3<<20)
	ask("larger", "application/json", `{"a":1,"b":"`+long+`"}`)
	ask("larger", "application/json", `{"b":"`+long+`","a":1}`).want(t, semelhttp.ProblemKeyMismatch)
	if a := ask("larger", "application/json", `{"a":1,"b":"`+long+`"}`); !a.replayed() {
		t.Errorf("got %d %s", a.status, a.body)
	}
	contentType, body := part("one")
	ask("multipart", contentType, body)
	contentType, body = part("two")
	if a := ask("multipart", contentType, body); !a.replayed() {
		t.Errorf("got %d %s", a.status, a.body)
	}
	effects.want(t, 3)
	l.wantNothingLeft(t)
}

// A request that its header alone condemns is refused before the client has sent
// its body: no 100 Continue.
func TestExpectContinue(t *testing.T) {
	effects := &orders{}
	l := serveLarge(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			t.Error("the handler sees an expectation that has been met")
		}
		_, _ = io.Copy(io.Discard, r.Body)
		effects.ServeHTTP(w, r)
	}, func(c *semelhttp.Config) {
		c.RequireKey, c.MaxRequestBody = true, 1<<20
		c.Scope = func(r *http.Request) (semel.Scope, error) {
			if r.Header.Get("Actor") == "" {
				return semel.Scope{}, errors.New("nobody")
			}
			return tester(r)
		}
	})
	for name, tc := range map[string]struct {
		header string
		want   string // the first line
	}{
		"no key":     {"Actor: alice\r\nContent-Length: 300000\r\n", "HTTP/1.1 400 "},
		"two keys":   {"Actor: alice\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 300000\r\n", "HTTP/1.1 400 "},
		"no scope":   {"Idempotency-Key: a\r\nContent-Length: 300000\r\n", "HTTP/1.1 401 "},
		"too large":  {"Actor: alice\r\nIdempotency-Key: a\r\nContent-Length: 3000000\r\n", "HTTP/1.1 413 "},
		"acceptable": {"Actor: alice\r\nIdempotency-Key: a\r\nContent-Length: 300000\r\n", "HTTP/1.1 100 "},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", l.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "POST /orders HTTP/1.1\r\nHost: shop.example\r\nContent-Type: text/plain\r\nExpect: 100-continue\r\n%s\r\n", tc.header)
			in := bufio.NewReader(c)
			line, err := in.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, tc.want) {
				t.Fatalf("the server says %q, %v", line, err)
			}
			if tc.want != "HTTP/1.1 100 " {
				return
			}
			_, _ = in.ReadString('\n')
			_, _ = c.Write(bytes.Repeat([]byte("x"), 300_000))
			if line, err = in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 201 ") {
				t.Errorf("behind the body the server says %q, %v", line, err)
			}
		})
	}
	l.CloseClientConnections()
	effects.want(t, 1)
	l.wantNothingLeft(t)
}
