package semelgin_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/semelhq/semel"
	semelgin "github.com/semelhq/semel/adapter/gin"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func init() { gin.SetMode(gin.ReleaseMode) }

// newOnce returns the adapter over a store of its own.
func newOnce(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return newOnceWith(t, semel.Policy{})
}

func newOnceWith(t *testing.T, policy semel.Policy) gin.HandlerFunc {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{
		Guard: guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: semelgin.Context(r).GetString("user"), Operation: semelgin.Route(r)}, nil
		},
		Resources: resources,
	})
	if err != nil {
		t.Fatal(err)
	}
	return semelgin.New(protect)
}

func authenticate(c *gin.Context) {
	c.Set("user", c.GetHeader("X-User"))
	c.Next()
}

func post(path, key, user, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("X-User", user)
	if key != "" {
		r.Header.Set(semelhttp.HeaderKey, key)
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// doPanic is do for a handler that may panic.
func doPanic(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, panicked any) {
	w = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	h.ServeHTTP(w, r)
	return w, nil
}

func check(t *testing.T, w *httptest.ResponseRecorder, status int, body string, replayed bool) {
	t.Helper()
	if w.Code != status || body != "" && w.Body.String() != body {
		t.Errorf("answer is %d %q, want %d %q", w.Code, w.Body, status, body)
	}
	if got := w.Header().Get(semelhttp.HeaderReplayed) == "true"; got != replayed {
		t.Errorf("replayed: %v, want %v", got, replayed)
	}
}

func TestReplay(t *testing.T) {
	once := newOnce(t)
	effects := 0
	var seen []string
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		seen = append(seen, fmt.Sprint(c.Writer.Status(), " ", c.GetString("order"), " ", c.FullPath(), " ", len(c.Errors)))
		if c.Writer.Size() <= 0 || !c.Writer.Written() {
			t.Errorf("in front, the size is %d and written %v", c.Writer.Size(), c.Writer.Written())
		}
	})
	router.Use(authenticate)
	group := router.Group("/orders", once, func(c *gin.Context) {
		c.Header("X-Before", "1")
		c.Next()
		c.Set("order", "made "+c.Param("id"))
		_ = c.Error(errors.New("a note"))
	})
	group.POST("/:id/:part", func(c *gin.Context) {
		effects++
		body, err := io.ReadAll(c.Request.Body)
		if err != nil {
			t.Error(err)
		}
		if semelgin.Context(c.Request) != c {
			t.Error("Context is not the handlers' own")
		}
		c.JSON(http.StatusCreated, gin.H{
			"id": c.Param("id"), "part": c.Param("part"), "user": c.GetString("user"),
			"route": c.FullPath(), "body": string(body), "effects": effects,
		})
	})
	want := `{"body":"x","effects":1,"id":"7","part":"a","route":"/orders/:id/:part","user":"ann"}`
	w := do(router, post("/orders/7/a", "k", "ann", "x"))
	check(t, w, http.StatusCreated, want, false)
	again := do(router, post("/orders/7/a", "k", "ann", "x"))
	check(t, again, http.StatusCreated, want, true)
	if again.Header().Get("X-Before") != "1" || again.Header().Get("Content-Type") != w.Header().Get("Content-Type") {
		t.Errorf("the replay's header is %v, the original's %v", again.Header(), w.Header())
	}
	check(t, do(router, post("/orders/7/a", "k", "ann", "y")), http.StatusUnprocessableEntity, "", false)
	// The route is the operation, so this is the same identity and another path.
	check(t, do(router, post("/orders/8/a", "k", "ann", "x")), http.StatusUnprocessableEntity, "", false)
	check(t, do(router, post("/orders/7/a", "k", "bob", "x")), http.StatusCreated, "", false)
	check(t, do(router, post("/orders/7/a", "", "ann", "x")), http.StatusCreated, "", false)
	if effects != 3 {
		t.Errorf("%d effects, want 3: ann's, bob's and the one without a key", effects)
	}
	wantSeen := []string{
		"201 made 7 /orders/:id/:part 1", "201  /orders/:id/:part 0", "422  /orders/:id/:part 0",
		"422  /orders/:id/:part 0", "201 made 7 /orders/:id/:part 1", "201 made 7 /orders/:id/:part 1",
	}
	if fmt.Sprint(seen) != fmt.Sprint(wantSeen) {
		t.Errorf("the middleware in front saw %q, want %q", seen, wantSeen)
	}
}

// TestClientGone: a client goes away, or would rather not wait, while thousands
// of others take gin's contexts and give them back. The handler keeps its own to
// its end, and only then is the request over.
func TestClientGone(t *testing.T) {
	for _, prefer := range []string{"", "respond-async"} {
		t.Run("prefer "+prefer, func(t *testing.T) {
			var (
				entered, proceed = make(chan struct{}), make(chan struct{})
				effects, over    atomic.Int64
			)
			router := gin.New()
			router.Use(func(c *gin.Context) {
				slow := c.Query("slow") != ""
				c.Next()
				if slow && over.Add(1) == 1 && effects.Load() != 1 {
					t.Error("the request was over before its handler")
				}
			}, authenticate, newOnce(t))
			router.POST("/orders/:id/pay/:with", func(c *gin.Context) {
				if c.Query("slow") != "" {
					close(entered)
					<-proceed
					effects.Add(1)
				}
				c.Set("paid", true)
				_ = c.Error(fmt.Errorf("a note on %s", c.Param("id")))
				c.String(http.StatusOK, "%s %s %s %s %v %s", c.Param("id"), c.Param("with"), c.FullPath(), c.GetString("user"),
					c.Request.Context().Err(), c.Errors.Last().Error())
			})

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			mine := func() *http.Request {
				r := post("/orders/mine/pay/card?slow=1", "k", "ann", "").WithContext(ctx)
				if prefer != "" {
					r.Header.Set("Prefer", prefer)
				}
				return r
			}
			var all sync.WaitGroup
			all.Go(func() { do(router, mine()) })
			<-entered
			if prefer == "" {
				cancel()
			}
			for g := range 8 {
				all.Go(func() {
					for i := range 500 {
						w := do(router, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i/2), "eve", ""))
						want := fmt.Sprintf("other%d cash /orders/:id/pay/:with eve <nil> a note on other%d", i, i)
						if i%2 == 1 { // a key that was used for another order
							check(t, w, http.StatusUnprocessableEntity, "", false)
						} else {
							check(t, w, http.StatusOK, want, false)
						}
						if i == 250 && g == 0 {
							close(proceed) // in the midst of them
						}
					}
				})
			}
			all.Wait()
			ctx = t.Context()
			check(t, do(router, mine()), http.StatusOK, "mine card /orders/:id/pay/:with ann <nil> a note on mine", true)
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}

func TestPanic(t *testing.T) {
	recovery := gin.HandlersChain{gin.RecoveryWithWriter(io.Discard)}
	tests := []struct {
		name          string
		front, behind gin.HandlersChain
		panics        bool // out of the router
		status, again int
	}{
		{"no Recovery", nil, nil, true, http.StatusOK, http.StatusConflict}, // 200 is what nothing looks like to httptest
		{"Recovery in front", recovery, nil, false, http.StatusInternalServerError, http.StatusConflict},
		{"Recovery behind", nil, recovery, false, http.StatusInternalServerError, http.StatusInternalServerError},
		{"Recovery on both sides", recovery, recovery, false, http.StatusInternalServerError, http.StatusInternalServerError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			effects := 0
			router := gin.New()
			var front, after *http.Request
			router.Use(func(c *gin.Context) {
				front = c.Request
				writer := c.Writer
				defer func() {
					if after = c.Request; c.Writer != writer {
						t.Error("the writer in front is not the request's")
					}
				}()
				c.Next()
			})
			router.Use(tt.front...)
			router.Use(newOnce(t))
			router.Use(tt.behind...)
			router.POST("/", func(*gin.Context) {
				effects++
				panic("half way")
			})
			w, panicked := doPanic(router, post("/", "k", "", ""))
			if (panicked != nil) != tt.panics || tt.panics && panicked != "half way" {
				t.Errorf("the router panicked with %v, want a panic: %v", panicked, tt.panics)
			}
			if front != after {
				t.Error("the request in front is not the one that came")
			}
			check(t, w, tt.status, "", false)
			check(t, do(router, post("/", "k", "", "")), tt.again, "", tt.again == tt.status)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

// TestBrokenStream: Recovery in front ends every panic, but an answer that has
// begun must not look whole to the client.
func TestBrokenStream(t *testing.T) {
	breaks := map[string]func(*gin.Context){
		"panic":         func(*gin.Context) { panic("half way") },
		"aborted":       func(*gin.Context) { panic(http.ErrAbortHandler) },
		"indeterminate": func(c *gin.Context) { semelhttp.DeclareIndeterminate(c.Request.Context(), "cut off") },
	}
	for name, breaks := range breaks {
		for _, proto := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " over HTTP/", proto), func(t *testing.T) {
				router := gin.New()
				router.Use(gin.RecoveryWithWriter(io.Discard), newOnce(t))
				router.POST("/", func(c *gin.Context) {
					c.SSEvent("tick", 1)
					c.Writer.Flush()
					breaks(c)
				})
				server := httptest.NewUnstartedServer(router)
				server.EnableHTTP2 = proto == 2
				server.StartTLS()
				defer server.Close()
				a := send(t, server, "/", nil)
				if a.err == nil || a.status != http.StatusOK {
					t.Errorf("the client read %q of %d and saw no error", a.body, a.status)
				}
				if again := send(t, server, "/", nil); again.status != http.StatusConflict {
					t.Errorf("the repetition is answered with %d, want 409", again.status)
				}
				unprotected := send(t, server, "/", map[string]string{semelhttp.HeaderKey: ""})
				if unprotected.err != nil {
					t.Errorf("without a key the answer ends with %v, which it does not without the adapter", unprotected.err)
				}
			})
		}
	}
}

func TestAbort(t *testing.T) {
	reached := 0
	var aborted []bool
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		aborted = append(aborted, c.IsAborted())
	}, newOnce(t))
	router.POST("/", func(c *gin.Context) {
		if c.Query("ok") == "" {
			c.AbortWithStatusJSON(http.StatusForbidden, gin.H{"error": "no"})
		}
	}, func(c *gin.Context) {
		reached++
		c.Status(http.StatusAccepted)
	})
	check(t, do(router, post("/", "k", "", "")), http.StatusForbidden, `{"error":"no"}`, false)
	check(t, do(router, post("/", "k", "", "")), http.StatusForbidden, `{"error":"no"}`, true)
	if reached != 0 {
		t.Error("the chain went on behind Abort")
	}
	check(t, do(router, post("/?ok=1", "k2", "", "")), http.StatusAccepted, "", false)
	check(t, do(router, post("/?ok=1", "k2", "", "")), http.StatusAccepted, "", true)
	if reached != 1 {
		t.Errorf("the last handler ran %d times, want once", reached)
	}
	if fmt.Sprint(aborted) != "[true true false true]" {
		t.Errorf("in front the requests looked aborted as %v, want true true false true", aborted)
	}
}

// TestErrorsWithoutAnswer: gin would answer 200 for handlers that only note an
// error for a middleware that comes too late.
func TestErrorsWithoutAnswer(t *testing.T) {
	noted := 0
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		noted += len(c.Errors)
	}, newOnce(t))
	router.POST("/", func(c *gin.Context) { _ = c.Error(io.ErrUnexpectedEOF) })
	check(t, do(router, post("/", "k", "", "")), http.StatusInternalServerError, "", false)
	check(t, do(router, post("/", "k", "", "")), http.StatusInternalServerError, "", true)
	if noted != 1 {
		t.Errorf("the middleware in front saw %d errors, want 1", noted)
	}
	// A status is an answer, and an error from in front is not the handlers'.
	router = gin.New()
	router.Use(func(c *gin.Context) { _ = c.Error(io.ErrUnexpectedEOF) }, newOnce(t))
	router.POST("/status", func(c *gin.Context) {
		c.Status(http.StatusAccepted)
		_ = c.Error(io.ErrUnexpectedEOF)
	})
	router.POST("/none", func(*gin.Context) {})
	check(t, do(router, post("/status", "k", "", "")), http.StatusAccepted, "", false)
	check(t, do(router, post("/none", "k", "", "")), http.StatusOK, "", false)
}

// TestCloseNotify: what gin's Stream waits for is not the client's leaving but
// the end of what the execution is given.
func TestCloseNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := gin.New()
		router.Use(newOnceWith(t, semel.Policy{Deadline: time.Minute}))
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		router.POST("/", func(c *gin.Context) {
			cancel()
			select {
			case <-c.Writer.CloseNotify():
				if took := time.Since(start); took != time.Minute {
					t.Errorf("told after %v, want the deadline of a minute", took)
				}
			case <-time.After(time.Hour):
				t.Error("never told")
			}
		})
		do(router, post("/", "k", "", "").WithContext(ctx))
	})
}

// TestNoRouteBecame200: a request with a key for which there is no route.
func TestNoRouteBecame200(t *testing.T) {
	router := gin.New()
	var routes []string
	router.Use(newOnce(t), func(c *gin.Context) { routes = append(routes, semelgin.Route(c.Request)) })
	check(t, do(router, post("/nowhere", "k", "", "")), http.StatusNotFound, "", false)
	check(t, do(router, post("/nowhere", "k", "", "")), http.StatusNotFound, "", true)
	// Without a route to name them, paths are operations of their own.
	check(t, do(router, post("/elsewhere", "k", "", "")), http.StatusNotFound, "", false)
	if fmt.Sprint(routes) != "[ ]" {
		t.Errorf("the routes are %q, want none twice", routes)
	}
}

// answer is what a client sees.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of reading the body
}

func send(t *testing.T, server *httptest.Server, path string, header map[string]string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(semelhttp.HeaderKey, "k")
	for name, value := range header {
		if r.Header.Set(name, value); value == "" {
			r.Header.Del(name)
		}
	}
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if len(body) > 0 && resp.Header.Get("Content-Encoding") == "gzip" {
		z, zerr := gzip.NewReader(bytes.NewReader(body))
		if zerr != nil {
			t.Fatalf("%v of %q", zerr, body)
		}
		if body, zerr = io.ReadAll(z); zerr != nil {
			err = zerr
		}
	}
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}
}

// zipped compresses as the usual middlewares for gin do: it counts on a header
// that is not sent before the body.
func zipped(c *gin.Context) {
	if !strings.Contains(c.GetHeader("Accept-Encoding"), "gzip") {
		return
	}
	c.Header("Content-Encoding", "gzip")
	c.Writer.Header().Add("Vary", "Accept-Encoding")
	z := &zipWriter{c.Writer, gzip.NewWriter(c.Writer)}
	c.Writer = z
	c.Next()
	if z.Size() <= 0 {
		z.Header().Del("Content-Encoding")
		return
	}
	_ = z.zip.Close()
}

type zipWriter struct {
	gin.ResponseWriter
	zip *gzip.Writer
}

func (w *zipWriter) Write(b []byte) (int, error) {
	w.Header().Del("Content-Length")
	return w.zip.Write(b)
}

func (w *zipWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

func cors(c *gin.Context) {
	c.Header("Access-Control-Allow-Origin", c.GetHeader("Origin"))
	c.Writer.Header().Add("Vary", "Origin")
}

func requestID(c *gin.Context) {
	c.Header("X-Request-Id", c.GetHeader("X-Request-Id"))
	c.Set("request", c.GetHeader("X-Request-Id"))
}

func session(c *gin.Context) {
	c.SetCookie("session", c.GetHeader("X-Request-Id"), 0, "/", "", false, true)
	c.Next()
	c.Set("saved", c.Request.Context().Err() == nil)
}

// TestMiddleware: whatever stands in front of the adapter and behind it, a
// replay equals the first answer as a client sees it, apart from what those in
// front say of the request at hand.
func TestMiddleware(t *testing.T) {
	all := map[string]gin.HandlerFunc{
		"gzip": zipped, "CORS": cors, "request id": requestID, "session": session,
		"recovery": gin.RecoveryWithWriter(io.Discard),
	}
	handlers := map[string]gin.HandlerFunc{
		"json":  func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"text": strings.Repeat("long ", 1000)}) },
		"empty": func(c *gin.Context) { c.Status(http.StatusNoContent) },
		"cookie": func(c *gin.Context) {
			c.SetCookie("order", "7", 0, "/", "", false, true)
			c.Writer.Header().Add("Vary", "Accept")
			c.String(http.StatusOK, "done for %s", c.GetString("request"))
		},
		"refused": func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusForbidden, gin.H{"error": "no"}) },
		"trailer": func(c *gin.Context) {
			c.Header("Trailer", "X-Sum")
			c.Status(http.StatusOK)
			c.Writer.WriteHeaderNow()
			c.Header("X-Sum", "7")
		},
		"error": func(c *gin.Context) { _ = c.Error(io.ErrUnexpectedEOF) },
	}
	for _, place := range []string{"front", "behind", "both"} {
		for _, name := range append(slices.Sorted(maps.Keys(all)), "all") {
			var chain gin.HandlersChain
			for _, other := range slices.Sorted(maps.Keys(all)) {
				if name == other || name == "all" {
					chain = append(chain, all[other])
				}
			}
			t.Run(name+" "+place, func(t *testing.T) {
				router := gin.New()
				for path, handler := range handlers {
					group := router.Group("/", authenticate)
					if place != "behind" {
						group.Use(chain...)
					}
					group.Use(newOnce(t))
					if place != "front" {
						group.Use(chain...)
					}
					group.POST(path, handler)
				}
				server := httptest.NewServer(router)
				defer server.Close()
				for path := range handlers {
					header := map[string]string{
						"X-User": "ann", "Accept-Encoding": "gzip", "Origin": "https://a.example", "X-Request-Id": "1",
					}
					first, again := send(t, server, "/"+path, header), send(t, server, "/"+path, header)
					if first.header.Get(semelhttp.HeaderReplayed) != "" || again.header.Get(semelhttp.HeaderReplayed) != "true" {
						t.Fatalf("%s: not one executed and one replayed: %v, %v", path, first, again)
					}
					for _, a := range []answer{first, again} {
						a.header.Del("Date")
						a.header.Del(semelhttp.HeaderReplayed)
					}
					if fmt.Sprint(first) != fmt.Sprint(again) || first.err != nil {
						t.Errorf("%s: the first answer is\n%v, the replay\n%v", path, first, again)
					}
					header["X-Request-Id"], header["Origin"] = "2", "https://b.example"
					later := send(t, server, "/"+path, header)
					if id := later.header.Get("X-Request-Id"); id != "" && (id == "2") != (place != "behind") {
						t.Errorf("%s: the replay's request id is %q", path, id)
					}
					if later.body != first.body || later.status != first.status {
						t.Errorf("%s: for another request the replay is %v, not %v", path, later, first)
					}
				}
			})
		}
	}
}

// TestWriter: what gin's handlers ask of a ResponseWriter, and trailers.
func TestWriter(t *testing.T) {
	router := gin.New()
	router.Use(newOnce(t))
	router.POST("/trailer", func(c *gin.Context) {
		c.Header("Trailer", "X-Sum")
		c.Status(http.StatusOK)
		c.Writer.WriteHeaderNow()
		c.Header("X-Sum", "7")
	})
	passed := make(chan struct{})
	router.POST("/stream", func(c *gin.Context) {
		n := 0
		c.Stream(func(io.Writer) bool {
			if n++; n == 2 {
				<-passed
			}
			c.SSEvent("tick", n)
			return n < 3
		})
	})
	router.POST("/hijack", func(c *gin.Context) {
		_, _, err := c.Writer.Hijack()
		c.String(http.StatusOK, "%v", err == http.ErrNotSupported)
	})
	server := httptest.NewServer(router)
	defer server.Close()
	for _, replayed := range []bool{false, true} {
		a := send(t, server, "/trailer", nil)
		if a.header.Get("X-Sum") != "" || a.trailer.Get("X-Sum") != "7" {
			t.Errorf("replayed %v: X-Sum is %q in the header and %q in the trailer", replayed, a.header.Get("X-Sum"), a.trailer.Get("X-Sum"))
		}
	}

	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/stream", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(semelhttp.HeaderKey, "stream")
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	first := make([]byte, len("event:tick\ndata:1\n\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	close(passed) // the first event is there while the handler runs
	rest, err := io.ReadAll(resp.Body)
	if got := string(first) + string(rest); err != nil || got != "event:tick\ndata:1\n\nevent:tick\ndata:2\n\nevent:tick\ndata:3\n\n" {
		t.Errorf("the stream is %q, %v", got, err)
	}
	if a := send(t, server, "/stream", map[string]string{semelhttp.HeaderKey: "stream"}); a.status != http.StatusConflict {
		t.Errorf("the stream's repetition is answered with %d, want 409", a.status)
	}
	if a := send(t, server, "/hijack", nil); a.body != "true" {
		t.Errorf("Hijack does not say that it is not supported")
	}
}

// TestRequestInFront: what stands in front of the adapter may go on with the
// request when the handlers have returned.
func TestRequestInFront(t *testing.T) {
	router := gin.New()
	router.Use(func(c *gin.Context) {
		request, writer := c.Request, c.Writer
		c.Next()
		if c.Request != request || c.Writer != writer {
			t.Error("request or writer are not what they were")
		}
		if err := c.Request.Context().Err(); err != nil {
			t.Errorf("the request's context has ended: %v", err)
		}
	}, newOnce(t), func(c *gin.Context) {
		c.Writer = &zipWriter{ResponseWriter: c.Writer} // and never put back
	})
	router.POST("/", func(c *gin.Context) { c.Status(http.StatusAccepted) })
	check(t, do(router, post("/", "k", "", "")), http.StatusAccepted, "", false)
	check(t, do(router, post("/", "k", "", "")), http.StatusAccepted, "", true)
}

// TestUnprotected: what semelhttp lets pass runs as if the adapter was not there.
func TestUnprotected(t *testing.T) {
	type key struct{}
	router := gin.New()
	var writer gin.ResponseWriter
	router.Use(func(c *gin.Context) {
		writer = c.Writer
		c.Next()
		if c.Request.Context().Value(key{}) == nil {
			t.Error("the request that a handler put in place is gone")
		}
	}, newOnce(t))
	router.Any("/", func(c *gin.Context) {
		c.String(http.StatusOK, "%v", c.Writer == writer && semelgin.Context(c.Request) == c)
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, 1))
	})
	router.POST("/panic", func(c *gin.Context) {
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, 1))
		panic("unprotected")
	})
	check(t, do(router, post("/", "", "", "")), http.StatusOK, "true", false)
	check(t, do(router, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusOK, "true", false)
	if _, panicked := doPanic(router, post("/panic", "", "", "")); panicked != "unprotected" {
		t.Errorf("the panic is %v", panicked)
	}
}

func TestNewRefusesNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New takes a nil middleware")
		}
	}()
	semelgin.New(nil)
}

func TestOutsideOfTheAdapter(t *testing.T) {
	r := post("/", "", "", "")
	if semelgin.Context(r) != nil || semelgin.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
