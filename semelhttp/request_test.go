package semelhttp_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

func setBody(r *http.Request, body io.Reader, length int64) {
	r.Body, r.ContentLength = io.NopCloser(body), length
}

type untouchable struct{ t *testing.T }

func (u untouchable) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

func TestBodyKnownToBeTooLargeIsNotRead(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, &orders{}, func(c *semelhttp.Config) { c.MaxRequestBody = 100 })
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "")
	setBody(r, untouchable{t}, 101)
	directRequest(h, r).want(t, semelhttp.ProblemBodyTooLarge)
}

// A proxy behind this one must not send the body again, or wait for it as Expect
// asks: the middleware has handled that.
func TestHandlerCannotSendTheBodyAgain(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.GetBody != nil {
			t.Error("the request has a GetBody")
		}
		if _, ok := r.Body.(io.Seeker); ok {
			t.Error("the body can be rewound")
		}
		if r.Header.Get("Expect") != "" {
			t.Error("the request still expects something")
		}
	}))
	for _, body := range []string{"{}", ""} {
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k"+body, body)
		r.Header.Set("Expect", "100-continue")
		r.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
		if a := directRequest(h, r); a.status != http.StatusOK {
			t.Errorf("got %d", a.status)
		}
	}
}

func TestLargestBodyPasses(t *testing.T) {
	for _, length := range []int64{100, -1} {
		b := newFixture(t)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, len(body), err, r.ContentLength, r.TransferEncoding, r.GetBody == nil)
		})
		s, _ := serve(t, b.protect(t, h, func(c *semelhttp.Config) { c.MaxRequestBody = 100 }), false)
		r := newRequest(t, http.MethodPost, s.URL, "k", "")
		setBody(r, strings.NewReader(strings.Repeat("x", 100)), length)
		if a := mustSend(t, s, r); a.body != "100 <nil> 100 [] true" {
			t.Errorf("with length %d the handler saw %q", length, a.body)
		}
	}
}

// The sizes are around those at which reading grows its buffer.
func TestBodyArrivesWhole(t *testing.T) {
	b := newFixture(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	s, _ := serve(t, b.protect(t, h, func(c *semelhttp.Config) { c.MaxResult = 1 << 20 }), false)
	for _, n := range []int{0, 1, 511, 512, 513, 64<<10 - 1, 64 << 10, 64<<10 + 1, 128 << 10, 200_001} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(i * 31)
		}
		for _, length := range []int64{int64(n), -1} {
			r := newRequest(t, http.MethodPost, s.URL, fmt.Sprintf("k%d/%d", n, length), "")
			setBody(r, bytes.NewReader(body), length)
			if a := mustSend(t, s, r); a.body != string(body) {
				t.Errorf("%d bytes with length %d came back as %d", n, length, len(a.body))
			}
		}
	}
}

func TestBodyCutOffMidUploadExecutesNothing(t *testing.T) {
	for name, head := range map[string]string{
		"length":  "Content-Length: 100\r\n\r\n{\"item\":",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"item\":\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			s, _ := serve(t, b.protect(t, effects), false)
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"+head)
			_ = conn.(*net.TCPConn).CloseWrite()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("#body-unreadable")) {
				t.Errorf("got %q, %v", got, err)
			}
			effects.want(t, 0)
		})
	}
}

// A body that is gone would make all requests equal.
func TestBodyReadBeforeIsRefused(t *testing.T) {
	for name, read := range map[string]func(*http.Request){
		"read":                   func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"form of unknown length": func(r *http.Request) { _ = r.ParseForm() },
	} {
		t.Run(name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			protected := b.protect(t, effects)
			s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				protected.ServeHTTP(w, r)
			}), false)
			r := newRequest(t, http.MethodPost, s.URL, "k", "a=b")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if strings.Contains(name, "unknown") {
				r.ContentLength = -1
			}
			if a := mustSend(t, s, r); a.status != http.StatusInternalServerError || a.problem(t).Retry != semel.RetryNo {
				t.Errorf("got %d %s", a.status, a.body)
			}
			effects.want(t, 0)
		})
	}
}

func TestEmptyFormParsedBeforeIsFine(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	protected := b.protect(t, effects)
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.FormValue("q")
		protected.ServeHTTP(w, r)
	}), false)
	if a := post(t, s, "k", ""); a.status != http.StatusCreated {
		t.Errorf("got %d %s", a.status, a.body)
	}
	effects.want(t, 1)
}

func TestRequestTrailersReachTheHandler(t *testing.T) {
	b := newFixture(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, string(body), r.Trailer, r.ContentLength)
	})
	s, _ := serve(t, b.protect(t, h), false)
	r := newRequest(t, http.MethodPost, s.URL, "k", "")
	setBody(r, strings.NewReader("{}"), -1)
	r.Trailer = http.Header{"Checksum": {"abc"}}
	if a := mustSend(t, s, r); a.body != "{}map[Checksum:[abc]] -1" {
		t.Errorf("the handler saw %q", a.body)
	}
}

func TestPassesUnprotected(t *testing.T) {
	for _, tc := range []struct {
		name, method, key string
		protects          func(*http.Request) bool
	}{
		{name: "GET", method: http.MethodGet, key: "k"},
		{name: "HEAD", method: http.MethodHead, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "CORS preflight", method: http.MethodOptions, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "TRACE", method: http.MethodTrace, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "PUT by default", method: http.MethodPut, key: "k"},
		{name: "DELETE by default", method: http.MethodDelete, key: "k"},
		{name: "POST by configuration", method: http.MethodPost, key: "k", protects: func(*http.Request) bool { return false }},
		{name: "no key", method: http.MethodPost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			h := b.protect(t, effects, func(c *semelhttp.Config) { c.Protects = tc.protects })
			s, _ := serve(t, h, false)
			for range 2 {
				r := newRequest(t, tc.method, s.URL+"/orders", tc.key, "")
				if a := mustSend(t, s, r); a.status != http.StatusCreated || a.header.Get(semelhttp.HeaderExpires) != "" {
					t.Errorf("got %d, %v", a.status, a.header)
				}
			}
			effects.want(t, 2)
		})
	}
}

func TestProtectedByDefaultOrConfiguration(t *testing.T) {
	all := func(*http.Request) bool { return true }
	for method, protects := range map[string]func(*http.Request) bool{
		http.MethodPost: nil, http.MethodPatch: nil, http.MethodPut: all, http.MethodDelete: all,
	} {
		b, effects := newFixture(t), &orders{}
		s, _ := serve(t, b.protect(t, effects, func(c *semelhttp.Config) { c.Protects = protects }), false)
		for i := range 2 {
			a := mustSend(t, s, newRequest(t, method, s.URL+"/orders", "k", "{}"))
			if a.status != http.StatusCreated || a.replayed() != (i == 1) {
				t.Errorf("%s: got %d, replayed %v", method, a.status, a.replayed())
			}
		}
		effects.want(t, 1)
	}
}

// The server removes the files of a form that the handler read from the original
// request only, and the handler reads a copy.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // for Windows
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, _ := os.ReadDir(dir); len(files) == 0 {
			t.Error("there is no file that could be left behind")
		}
	})), false)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("scan", "scan.png")
	_, _ = part.Write(make([]byte, 11<<20)) // the parser has 10 MiB of its own
	_ = form.Close()
	r := newRequest(t, http.MethodPost, s.URL, "k", body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	if a := mustSend(t, s, r); a.status != http.StatusOK {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if files, err := os.ReadDir(dir); len(files) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
