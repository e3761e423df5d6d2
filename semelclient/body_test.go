package semelclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

// dripping answers at once, with a body of which a byte comes each second.
func dripping(status int, body string) play {
	return func(r *http.Request) (*http.Response, error) {
		resp, err := reply(status, body)(r)
		resp.Body = &trackedBody{Reader: &drip{r.Context(), resp.Body}}
		return resp, err
	}
}

type drip struct {
	ctx context.Context
	io.Reader
}

func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		return d.Reader.Read(p[:1])
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

// TestTransportPromptRefusalWithSlowBody: the status line settles what may be
// tried again; TryTimeout does not run on while a problem's body is read. Its
// advice is waited for within bounds, and the answer is whole all the same.
func TestTransportPromptRefusalWithSlowBody(t *testing.T) {
	slow, endless := `{"retry":"no"}`, "{"+strings.Repeat(" ", 1000)
	for _, tt := range []struct {
		name    string
		answers []play
		config  func(*semelclient.Config)
		status  int
		body    string
		tries   int
		took    time.Duration // until RoundTrip has returned
	}{
		{"422", []play{dripping(422, slow)}, func(c *semelclient.Config) { c.TryTimeout = time.Second }, 422, slow, 1, 5 * time.Second},
		{"422, without a try's timeout", []play{dripping(422, slow)}, nil, 422, slow, 1, 5 * time.Second},
		{"422, little time left", []play{dripping(422, slow)}, func(c *semelclient.Config) { c.MaxElapsed = 2 * time.Second }, 422, slow, 1, 2 * time.Second},
		{"422, in time", []play{dripping(422, `{}`)}, func(c *semelclient.Config) { c.TryTimeout = time.Second }, 422, `{}`, 1, 3 * time.Second},
		// The status asks for another try, and the advice against it comes late. What
		// is left of the body is waited for a second.
		{"409", []play{dripping(409, slow), reply(201, "")}, nil, 201, "", 2, 6 * time.Second},
		{"409, in time", []play{dripping(409, `{}`), reply(201, "")}, func(c *semelclient.Config) { c.TryTimeout = time.Second }, 201, "", 2, 3 * time.Second},
		// Without end: neither a try nor its remains hold the call.
		{"409 for ever", []play{dripping(409, endless)}, func(c *semelclient.Config) {
			c.MaxTries, c.MaxElapsed = 1000, 20*time.Second
		}, 409, endless, 4, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := &script{answers: tt.answers}
				edit := tt.config
				if edit == nil {
					edit = func(*semelclient.Config) {}
				}
				begin := time.Now()
				resp, err := transport(t, base, edit).RoundTrip(request(t, t.Context(), "POST", "{}"))
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(begin)
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != tt.status || string(body) != tt.body || err != nil || len(base.sent) != tt.tries || took != tt.took {
					t.Errorf("%d tries in %v; answer %d %q, %v", len(base.sent), took, resp.StatusCode, body, err)
				}
				for i, b := range base.bodies {
					if b.closed != 1 {
						t.Errorf("body %d was closed %d times", i+1, b.closed)
					}
				}
			})
		})
	}
	t.Run("its caller leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			begin := time.Now()
			resp, err := transport(t, &script{answers: []play{dripping(422, slow)}}).RoundTrip(request(t, ctx, "POST", "{}"))
			if took := time.Since(begin); err != nil || resp.StatusCode != 422 || took != 2*time.Second {
				t.Fatalf("after %v: %v, %v", took, resp, err)
			}
			if body, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q, %v", body, err)
			}
			_ = resp.Body.Close()
		})
	})
	t.Run("its caller leaves a body that does not notice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			body := newStalled(true)
			begin := time.Now()
			resp, err := transport(t, &script{answers: []play{func(r *http.Request) (*http.Response, error) {
				resp, err := reply(422, slow)(r)
				resp.Body = body
				return resp, err
			}}}).RoundTrip(request(t, ctx, "POST", "{}"))
			if took := time.Since(begin); err != nil || resp.StatusCode != 422 || took != 2*time.Second {
				t.Fatalf("after %v: %v, %v", took, resp, err)
			}
			_ = resp.Body.Close()
			close(body.letGo)
			<-body.closed
		})
	})
	t.Run("its body is closed unread", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // which wants the goroutine that reads ended
			resp, err := transport(t, &script{answers: []play{dripping(422, slow)}}).RoundTrip(request(t, t.Context(), "POST", "{}"))
			if err != nil || resp.Body.Close() != nil {
				t.Fatal(err)
			}
		})
	})
}

// stalled is a body whose Read does not return before Close. If it is deaf,
// neither does before it is let go.
type stalled struct {
	first  io.Reader
	deaf   bool
	closed chan struct{}
	letGo  chan struct{}
}

func newStalled(deaf bool) *stalled {
	return &stalled{strings.NewReader("it beg"), deaf, make(chan struct{}), make(chan struct{})}
}

func (b *stalled) Read(p []byte) (int, error) {
	if n, err := b.first.Read(p); err == nil {
		return n, nil
	}
	closed := b.closed
	if b.deaf {
		closed = nil
	}
	select {
	case <-closed:
		return 0, errors.New("closed")
	case <-b.letGo:
		return copy(p, "too late"), io.EOF
	}
}

func (b *stalled) Close() error {
	close(b.closed) // which panics the second time
	if b.deaf {
		<-b.letGo
	}
	return nil
}

// TestTransportStalledRequestBody: a body that its reader waits for holds
// RoundTrip neither past the context nor past its times, whether it is read
// before the first try or sent as it comes, whoever sends, and whether it heeds
// its Close or not. It is closed once.
func TestTransportStalledRequestBody(t *testing.T) {
	left := errors.New("the user left")
	tests := map[string]func(r *http.Request, body io.ReadCloser){
		"held":             func(*http.Request, io.ReadCloser) {},
		"held, of length":  func(r *http.Request, _ io.ReadCloser) { r.ContentLength = 100 },
		"stream":           func(r *http.Request, _ io.ReadCloser) { r.ContentLength = -1 },
		"too long to hold": func(r *http.Request, _ io.ReadCloser) { r.ContentLength = 1 << 30 },
		"GetBody": func(r *http.Request, body io.ReadCloser) {
			r.ContentLength, r.GetBody = 100, func() (io.ReadCloser, error) { return nil, errors.New("once") }
		},
		"second body": func(r *http.Request, body io.ReadCloser) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("first")), 100
			r.GetBody = func() (io.ReadCloser, error) { return body, nil }
		},
	}
	bounds := map[string]struct {
		err    error
		reason semelclient.Reason
		took   time.Duration
	}{
		"context":    {left, semelclient.ReasonContext, 3 * time.Second},
		"TryTimeout": {semelclient.ErrTryTimeout, "", 2 * time.Second},
		"MaxElapsed": {semelclient.ErrElapsed, semelclient.ReasonElapsed, 4 * time.Second},
	}
	for _, deaf := range []bool{false, true} {
		for name, edit := range tests {
			for bound, want := range bounds {
				for _, wire := range []string{"HTTP/1.1", "HTTP/2.0", "a base that reads first"} {
					t.Run(fmt.Sprint(name, "/", bound, "/deaf ", deaf, "/", wire), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							dial, stop := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
								_, _ = io.Copy(io.Discard, r.Body)
							}))
							defer stop()
							protocols := new(http.Protocols)
							protocols.SetHTTP1(wire == "HTTP/1.1")
							protocols.SetUnencryptedHTTP2(wire == "HTTP/2.0")
							served := &http.Transport{DialContext: dial, Protocols: protocols}
							defer served.CloseIdleConnections()
							var base http.RoundTripper = served
							if wire == "a base that reads first" {
								base = &script{answers: []play{reply(503, "")}}
							}
							if name == "second body" {
								base = &firstCut{RoundTripper: base}
							}
							tr := transport(t, base, func(c *semelclient.Config) {
								c.MaxElapsed, c.MaxTries = 4*time.Second, 2
								if bound == "TryTimeout" {
									c.TryTimeout = 2 * time.Second
								}
							})
							ctx, cancel := context.WithCancelCause(t.Context())
							defer cancel(nil)
							if bound == "context" {
								time.AfterFunc(3*time.Second, func() { cancel(left) })
							}
							body := newStalled(deaf)
							defer close(body.letGo) // and the bubble sees that nothing goes on
							r := request(t, ctx, "POST", "")
							r.Body = body
							edit(r, body)
							begin := time.Now()
							_, err := tr.RoundTrip(r)
							e := failure(t, err)
							if took := time.Since(begin); took != want.took || !errors.Is(err, want.err) || want.reason != "" && e.Reason != want.reason {
								t.Errorf("after %v: reason %q, %v", took, e.Reason, err)
							}
							// What is read before the first try has certainly not been sent.
							if before := strings.HasPrefix(name, "held"); errors.Is(err, semel.ErrNoEffect) != before {
								t.Errorf("effect %v, %v", e.Effect(), err)
							}
							<-body.closed
						})
					})
				}
			}
		}
	}
}

// TestTransportStalledBodyOfTheBase: net/http gets a request that nobody may try
// again with its GetBody, for a connection that was closed before it was used.
func TestTransportStalledBodyOfTheBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := newStalled(true)
		defer close(body.letGo)
		base := &script{answers: []play{func(r *http.Request) (*http.Response, error) {
			again, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			_, err = io.ReadAll(again)
			_ = again.Close()
			return nil, err
		}}}
		r := request(t, t.Context(), "LOCK", "{}")
		r.GetBody = func() (io.ReadCloser, error) { return body, nil }
		begin := time.Now()
		_, err := transport(t, base, func(c *semelclient.Config) { c.TryTimeout = time.Second }).RoundTrip(r)
		if took := time.Since(begin); took != time.Second || !errors.Is(err, semelclient.ErrTryTimeout) {
			t.Errorf("after %v: %v", took, err)
		}
		<-body.closed
	})
}

// TestTransportAnswerBeforeTheBody: an answer need not wait for a stalled body,
// which is closed when nobody will read it any more.
func TestTransportAnswerBeforeTheBody(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Connection", "close") // else an HTTP/1.1 server reads on
					w.WriteHeader(http.StatusRequestEntityTooLarge)
				}))
				defer stop()
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!http2)
				protocols.SetUnencryptedHTTP2(http2)
				base := &http.Transport{DialContext: dial, Protocols: protocols}
				defer base.CloseIdleConnections()
				body := newStalled(deaf)
				defer close(body.letGo)
				r := request(t, t.Context(), "POST", "")
				r.Body, r.ContentLength = body, -1
				begin := time.Now()
				resp, err := transport(t, base).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				<-body.closed
				if took := time.Since(begin); resp.StatusCode != 413 || took != 0 {
					t.Errorf("HTTP/2 %v, deaf %v: %d after %v", http2, deaf, resp.StatusCode, took)
				}
			})
		}
	}
}

// firstCut reads and cuts off the first request.
type firstCut struct {
	http.RoundTripper
	cut bool
}

func (b *firstCut) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.cut {
		return b.RoundTripper.RoundTrip(r)
	}
	b.cut = true
	_, _ = io.ReadAll(r.Body)
	_ = r.Body.Close()
	return nil, errCut
}

// TestTransportBodies: what is sent again, and what cannot be.
func TestTransportBodies(t *testing.T) {
	whole := strings.Repeat("0123456789", 10)
	tests := []struct {
		name   string
		edit   func(r *http.Request) // the body is whole, of unknown type and length
		tries  int
		length int64
	}{
		{"unknown length", func(*http.Request) {}, 3, 100},
		{"known length", func(r *http.Request) { r.ContentLength = 100 }, 3, 100},
		{"stream", func(r *http.Request) { r.ContentLength = -1 }, 1, -1},
		{"GetBody", func(r *http.Request) {
			r.ContentLength = 100
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(whole)), nil }
		}, 3, 100},
		{"stream with GetBody", func(r *http.Request) {
			r.ContentLength = -1
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(whole)), nil }
		}, 3, -1},
		{"GetBody that fails", func(r *http.Request) {
			r.ContentLength = 100
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		}, 1, 100},
		{"too long", func(r *http.Request) { r.Body.(*trackedBody).Reader = strings.NewReader(whole + "!") }, 1, 0},
		{"too long and known to be", func(r *http.Request) {
			r.Body.(*trackedBody).Reader = strings.NewReader(whole + "!")
			r.ContentLength = 101
		}, 1, 101},
		{"trailer", func(r *http.Request) {
			r.Trailer = http.Header{"Sum": nil}
			r.Body.(*trackedBody).Reader = io.MultiReader(strings.NewReader(whole), atEOF(func() { r.Trailer.Set("Sum", "x") }))
		}, 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := &script{answers: []play{cut}}
			tr := transport(t, base, func(c *semelclient.Config) { c.MaxReplayBody, c.MaxTries = 100, 3 })
			body := &trackedBody{Reader: strings.NewReader(whole)}
			r := request(t, t.Context(), "POST", "")
			r.Body = body
			tt.edit(r)
			_, err := tr.RoundTrip(r)
			e := failure(t, err)
			wantReason := semelclient.ReasonTries
			if tt.tries == 1 {
				wantReason = semelclient.ReasonBody
			}
			if e.Tries != tt.tries || e.Reason != wantReason || len(base.sent) != tt.tries || body.closed != 1 || r.Body != io.ReadCloser(body) {
				t.Errorf("%d tries, reason %q, closed %d times", len(base.sent), e.Reason, body.closed)
			}
			for i, s := range base.sent {
				wantBody := whole
				if strings.HasPrefix(tt.name, "too long") {
					wantBody += "!"
				}
				if s.body != wantBody || s.length != tt.length || s.getBody || (tt.name == "trailer") != (s.trailer == "x") {
					t.Errorf("try %d: body %q, length %d, trailer %q", i+1, s.body, s.length, s.trailer)
				}
			}
		})
	}
	t.Run("short", func(t *testing.T) {
		base := &script{answers: []play{reply(201, "")}}
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: strings.NewReader(whole)}
		r.Body, r.ContentLength = body, 101
		_, err := transport(t, base).RoundTrip(r)
		if e := failure(t, err); len(base.sent) != 0 || e.Reason != semelclient.ReasonRefused || !errors.Is(err, semel.ErrNoEffect) || body.closed != 1 {
			t.Errorf("sent %d, closed %d, %v", len(base.sent), body.closed, err)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		base := &script{answers: []play{reply(201, "")}}
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: io.MultiReader(strings.NewReader("x"), errReader{})}
		r.Body = body
		_, err := transport(t, base).RoundTrip(r)
		if e := failure(t, err); len(base.sent) != 0 || e.Reason != semelclient.ReasonRefused || !errors.Is(err, errCut) || body.closed != 1 {
			t.Errorf("sent %d, closed %d, %v", len(base.sent), body.closed, err)
		}
	})
	t.Run("not held for a request that is sent once", func(t *testing.T) {
		base := &script{answers: []play{cut}}
		tr := transport(t, base, func(c *semelclient.Config) { c.NeedsKey = func(*http.Request) bool { return false } })
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: strings.NewReader(whole)}
		r.Body = body
		_, err := tr.RoundTrip(r)
		if e := failure(t, err); base.sent[0].length != 0 || base.sent[0].body != whole || e.Reason != semelclient.ReasonUnsafe || body.closed != 1 || e.Operation().Key != "" {
			t.Errorf("sent %+v, closed %d, %v", base.sent, body.closed, err)
		}
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errCut }

type atEOF func()

func (f atEOF) Read([]byte) (int, error) { f(); return 0, io.EOF }

// TestTransportDiscards: the answers that nobody gets are read within bounds and
// closed; the one that is returned is whole.
func TestTransportDiscards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1<<20)
		problem := `{"retry":"same-key","detail":"` + long[:200<<10] + `"}`
		stuck := func(r *http.Request) (*http.Response, error) {
			resp, _ := reply(503, "")(r)
			resp.Body = &trackedBody{Reader: blocked{r.Context()}}
			return resp, nil
		}
		base := &script{answers: []play{reply(503, "short"), reply(503, long), reply(409, problem), stuck, reply(409, `{"retry":"no","detail":"`+long+`"}`)}}
		begin := time.Now()
		resp, err := transport(t, base).RoundTrip(request(t, t.Context(), "POST", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		for i, want := range []int{5, 64 << 10, semelhttp.MaxProblemBytes + 1, 0} {
			b := base.bodies[i]
			if b.closed != 1 || b.read > want+64<<10 || b.read < want {
				t.Errorf("body %d: %d bytes read, closed %d times", i+1, b.read, b.closed)
			}
		}
		body, err := io.ReadAll(resp.Body)
		if want := `{"retry":"no","detail":"` + long + `"}`; err != nil || string(body) != want {
			t.Errorf("%d bytes of the last answer; want %d; error %v", len(body), len(want), err)
		}
		if err := resp.Body.Close(); err != nil || base.bodies[4].closed != 1 {
			t.Errorf("closed %d times, %v", base.bodies[4].closed, err)
		}
	})
}

// blocked reads nothing until its context ends.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }

// TestTransportTunnel: a switch of protocols leaves a body that can be written.
func TestTransportTunnel(t *testing.T) {
	var wrote bytes.Buffer
	base := &script{answers: []play{func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 101, Header: http.Header{}, Body: struct {
			io.ReadCloser
			io.Writer
		}{io.NopCloser(strings.NewReader("in")), &wrote}}, nil
	}}}
	resp, err := transport(t, base).RoundTrip(request(t, t.Context(), "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	w, ok := resp.Body.(io.Writer)
	if !ok {
		t.Fatal("the body cannot be written")
	}
	_, _ = io.WriteString(w, "out")
	in, err := io.ReadAll(resp.Body)
	if string(in) != "in" || wrote.String() != "out" || err != nil || resp.Body.Close() != nil {
		t.Errorf("in %q, out %q, %v", in, wrote.String(), err)
	}
}
