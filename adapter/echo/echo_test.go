package semelecho_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/semelhq/semel"
	semelecho "github.com/semelhq/semel/adapter/echo"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// newOnce returns the adapter over a store of its own.
func newOnce(t *testing.T) echo.MiddlewareFunc {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
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
			user, _ := semelecho.Context(r).Get("user").(string)
			return semel.Scope{Actor: user, Operation: semelecho.Route(r)}, nil
		},
		Resources: resources,
	})
	if err != nil {
		t.Fatal(err)
	}
	return semelecho.New(protect)
}

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	return e
}

func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set("user", c.Request().Header.Get("X-User"))
		return next(c)
	}
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
	if got := strings.TrimSpace(w.Body.String()); w.Code != status || body != "" && got != body {
		t.Errorf("answer is %d %q, want %d %q", w.Code, got, status, body)
	}
	if got := w.Header().Get(semelhttp.HeaderReplayed) == "true"; got != replayed {
		t.Errorf("replayed: %v, want %v", got, replayed)
	}
}

func TestReplay(t *testing.T) {
	once := newOnce(t)
	effects := 0
	var seen []string
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			res := c.Response()
			seen = append(seen, fmt.Sprint(res.Status, " ", c.Get("order"), " ", c.Path()))
			if !res.Committed || res.Size <= 0 {
				t.Errorf("in front, the size is %d and committed %v", res.Size, res.Committed)
			}
			return err
		}
	})
	group := e.Group("/orders", authenticate, once, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Header().Set("X-Behind", "1")
			defer c.Set("order", "made "+c.Param("id"))
			return next(c)
		}
	})
	group.POST("/:id/:part", func(c echo.Context) error {
		effects++
		if semelecho.Context(c.Request()) != c {
			t.Error("Context is not the handler's own")
		}
		body, err := io.ReadAll(c.Request().Body)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, echo.Map{
			"id": c.Param("id"), "part": c.Param("part"), "user": c.Get("user"), "route": c.Path(),
			"body": string(body), "effects": effects,
		})
	})
	want := `{"body":"x","effects":1,"id":"7","part":"a","route":"/orders/:id/:part","user":"ann"}`
	w := do(e, post("/orders/7/a", "k", "ann", "x"))
	check(t, w, http.StatusCreated, want, false)
	again := do(e, post("/orders/7/a", "k", "ann", "x"))
	check(t, again, http.StatusCreated, want, true)
	if again.Header().Get("X-Behind") != "1" || again.Header().Get("Content-Type") != w.Header().Get("Content-Type") {
		t.Errorf("the replay's header is %v, the original's %v", again.Header(), w.Header())
	}
	check(t, do(e, post("/orders/7/a", "k", "ann", "y")), http.StatusUnprocessableEntity, "", false)
	// The route is the operation, so this is the same identity and another path.
	check(t, do(e, post("/orders/8/a", "k", "ann", "x")), http.StatusUnprocessableEntity, "", false)
	check(t, do(e, post("/orders/7/a", "k", "bob", "x")), http.StatusCreated, "", false)
	check(t, do(e, post("/orders/7/a", "", "ann", "x")), http.StatusCreated, "", false)
	if effects != 3 {
		t.Errorf("%d effects, want 3: ann's, bob's and the one without a key", effects)
	}
	wantSeen := []string{
		"201 made 7 /orders/:id/:part", "201 <nil> /orders/:id/:part", "422 <nil> /orders/:id/:part",
		"422 <nil> /orders/:id/:part", "201 made 7 /orders/:id/:part", "201 made 7 /orders/:id/:part",
	}
	if !slices.Equal(seen, wantSeen) {
		t.Errorf("the middleware in front saw %q, want %q", seen, wantSeen)
	}
}

// TestClientGone: a client goes away, or would rather not wait, while thousands
// of others take Echo's contexts and give them back. The handler keeps its own to
// its end, and only then is the request over.
func TestClientGone(t *testing.T) {
	for _, prefer := range []string{"", "respond-async"} {
		t.Run("prefer "+prefer, func(t *testing.T) {
			var (
				entered, proceed = make(chan struct{}), make(chan struct{})
				effects, over    atomic.Int64
			)
			e := newEcho()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					slow := c.QueryParam("slow") != ""
					err := next(c)
					if slow && over.Add(1) == 1 && effects.Load() != 1 {
						t.Error("the request was over before its handler")
					}
					return err
				}
			}, authenticate, newOnce(t))
			e.POST("/orders/:id/pay/:with", func(c echo.Context) error {
				if c.QueryParam("slow") != "" {
					close(entered)
					<-proceed
					effects.Add(1)
				}
				c.Set("paid", c.Param("id"))
				return c.String(http.StatusOK, fmt.Sprint(c.Param("id"), " ", c.Param("with"), " ", c.Path(), " ", c.Get("user"), " ",
					c.Request().Context().Err(), " ", c.Get("paid")))
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
			all.Go(func() { do(e, mine()) })
			<-entered
			if prefer == "" {
				cancel()
			}
			for g := range 8 {
				all.Go(func() {
					for i := range 500 {
						w := do(e, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i/2), "eve", ""))
						want := fmt.Sprintf("other%d cash /orders/:id/pay/:with eve <nil> other%d", i, i)
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
			check(t, do(e, mine()), http.StatusOK, "mine card /orders/:id/pay/:with ann <nil> mine", true)
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}

// TestErrors: what the handler returns is rendered where it is recorded.
func TestErrors(t *testing.T) {
	silent := func(error, echo.Context) {}
	custom := func(err error, c echo.Context) { _ = c.String(http.StatusTeapot, err.Error()+" at "+c.Param("id")) }
	tests := []struct {
		name    string
		handler echo.HTTPErrorHandler // nil for Echo's
		err     error
		status  int
		body    string
	}{
		{"HTTPError", nil, echo.NewHTTPError(http.StatusPaymentRequired, "no money"), http.StatusPaymentRequired, `{"message":"no money"}`},
		{"other error", nil, errors.New("secret"), http.StatusInternalServerError, `{"message":"Internal Server Error"}`},
		{"own handler", custom, errors.New("sorry"), http.StatusTeapot, "sorry at 7"},
		{"handler that does not answer", silent, errors.New("lost"), http.StatusInternalServerError, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			once := newOnce(t)
			effects := 0
			var came error
			e := newEcho()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					came = next(c)
					return came
				}
			})
			if tt.handler != nil {
				e.HTTPErrorHandler = tt.handler
			}
			e.POST("/orders/:id", func(echo.Context) error {
				effects++
				return tt.err
			}, once)
			check(t, do(e, post("/orders/7", "k", "", "")), tt.status, tt.body, false)
			if came != nil {
				t.Errorf("the error in front is %v; it was rendered already", came)
			}
			check(t, do(e, post("/orders/7", "k", "", "")), tt.status, tt.body, true)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

func TestPanic(t *testing.T) {
	rec := middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true})
	tests := []struct {
		name          string
		front, behind []echo.MiddlewareFunc
		panics        bool // out of the router
		status, again int
	}{
		{"no Recover", nil, nil, true, http.StatusOK, http.StatusConflict}, // 200 is what nothing looks like to httptest
		{"Recover in front", []echo.MiddlewareFunc{rec}, nil, false, http.StatusInternalServerError, http.StatusConflict},
		{"Recover behind", nil, []echo.MiddlewareFunc{rec}, false, http.StatusInternalServerError, http.StatusInternalServerError},
		{"Recover on both sides", []echo.MiddlewareFunc{rec}, []echo.MiddlewareFunc{rec}, false, http.StatusInternalServerError, http.StatusInternalServerError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			effects := 0
			e := newEcho()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					request, response := c.Request(), c.Response()
					defer func() {
						if c.Request() != request || c.Response() != response {
							t.Error("request or response in front are not what they were")
						}
					}()
					return next(c)
				}
			})
			e.POST("/", func(echo.Context) error {
				effects++
				panic("half way")
			}, slices.Concat(tt.front, []echo.MiddlewareFunc{newOnce(t)}, tt.behind)...)
			w, panicked := doPanic(e, post("/", "k", "", ""))
			if (panicked != nil) != tt.panics || tt.panics && panicked != "half way" {
				t.Errorf("the router panicked with %v, want a panic: %v", panicked, tt.panics)
			}
			check(t, w, tt.status, "", false)
			check(t, do(e, post("/", "k", "", "")), tt.again, "", tt.again == tt.status)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
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
	if resp.Header.Get("Content-Encoding") == "gzip" {
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

// TestBrokenStream: Recover in front ends a panic, but an answer that has begun
// must not look whole to the client.
func TestBrokenStream(t *testing.T) {
	breaks := map[string]func(echo.Context){
		"panic":         func(echo.Context) { panic("half way") },
		"aborted":       func(echo.Context) { panic(http.ErrAbortHandler) },
		"indeterminate": func(c echo.Context) { semelhttp.DeclareIndeterminate(c.Request().Context(), "cut off") },
	}
	for name, breaks := range breaks {
		for _, proto := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " over HTTP/", proto), func(t *testing.T) {
				e := newEcho()
				e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}), newOnce(t))
				e.POST("/", func(c echo.Context) error {
					c.Response().Header().Set("Content-Type", "text/event-stream")
					_, _ = c.Response().Write([]byte("data:1\n\n"))
					c.Response().Flush()
					breaks(c)
					return nil
				})
				server := httptest.NewUnstartedServer(e)
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
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
				if name == "panic" && unprotected.err != nil {
					t.Errorf("without a key the answer ends with %v, which it does not without the adapter", unprotected.err)
				}
			})
		}
	}
}

// TestHooks: what is registered in front of the adapter is called when the client
// is answered, what is registered behind it when the handler answers.
func TestHooks(t *testing.T) {
	hooks := func(name string, called *[]string) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				c.Response().Before(func() {
					*called = append(*called, name+" before")
					c.Response().Header().Set("X-"+name, c.Request().Header.Get("X-User"))
				})
				c.Response().After(func() { *called = append(*called, name+" after") })
				return next(c)
			}
		}
	}
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			var called []string
			e := newEcho()
			e.Use(hooks("Front", &called), newOnce(t), hooks("Behind", &called))
			e.POST("/", func(c echo.Context) error {
				if stream {
					c.Response().Header().Set("Content-Type", "text/event-stream")
				}
				err := c.String(http.StatusCreated, "data:1\n\n")
				c.Response().Flush()
				if c.Response().Status != http.StatusCreated || !c.Response().Committed || c.Response().Size != 8 {
					t.Errorf("the handler's response is %+v", c.Response())
				}
				return err
			})
			for i, user := range []string{"ann", "bob"} {
				called = nil
				header := do(e, post("/", "k", user, "")).Result().Header
				if header.Get("X-Front") != user {
					t.Errorf("%s: what the hook in front set is %q", user, header.Get("X-Front"))
				}
				if got := header.Get("X-Behind"); got != "ann" && !(stream && i == 1) {
					t.Errorf("%s: what the hook behind set is %q, want what was recorded", user, got)
				}
				want := []string{"Front before", "Front after"}
				if i == 0 {
					want = []string{"Behind before", "Behind after", "Front before", "Front after"}
				}
				if slices.Sort(called); !slices.Equal(called, slices.Sorted(slices.Values(want))) {
					t.Errorf("%s: called were %q, want %q", user, called, want)
				}
			}
		})
	}
}

// TestFlushWithoutFlusher: a stream to a client that cannot be flushed is late,
// and no panic of Echo's.
func TestFlushWithoutFlusher(t *testing.T) {
	e := newEcho()
	e.POST("/", func(c echo.Context) error {
		c.Response().Header().Set("Content-Type", "text/event-stream")
		_, err := c.Response().Write([]byte("data:1\n\n"))
		c.Response().Flush()
		return err
	}, newOnce(t))
	w := httptest.NewRecorder()
	e.ServeHTTP(struct{ http.ResponseWriter }{w}, post("/", "k", "", ""))
	check(t, w, http.StatusOK, "data:1", false)
}

// TestMiddleware: whatever stands in front of the adapter and behind it, a
// replay equals the first answer as a client sees it, apart from what those in
// front say of the request at hand.
func TestMiddleware(t *testing.T) {
	all := map[string]echo.MiddlewareFunc{
		"gzip":       middleware.Gzip(),
		"long gzip":  middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1000}),
		"CORS":       middleware.CORS(),
		"request id": middleware.RequestID(),
		"secure":     middleware.Secure(),
		"recover":    middleware.Recover(),
		"dump":       middleware.BodyDump(func(echo.Context, []byte, []byte) {}),
		"session": func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				c.Response().Before(func() {
					c.SetCookie(&http.Cookie{Name: "session", Value: c.Request().Header.Get("X-Request-Id")})
				})
				return next(c)
			}
		},
	}
	handlers := map[string]echo.HandlerFunc{
		"json":  func(c echo.Context) error { return c.JSON(http.StatusCreated, strings.Repeat("long ", 1000)) },
		"empty": func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		"none":  func(echo.Context) error { return nil },
		"cookie": func(c echo.Context) error {
			c.SetCookie(&http.Cookie{Name: "order", Value: "7"})
			c.Response().Header().Add("Vary", "Accept")
			return c.String(http.StatusOK, "done")
		},
		"error": func(echo.Context) error { return echo.NewHTTPError(http.StatusPaymentRequired, "no money") },
	}
	for _, place := range []string{"front", "behind", "both"} {
		for _, name := range append(slices.Sorted(maps.Keys(all)), "all") {
			var chain []echo.MiddlewareFunc
			for _, other := range slices.Sorted(maps.Keys(all)) {
				if name == other || name == "all" {
					chain = append(chain, all[other])
				}
			}
			t.Run(name+" "+place, func(t *testing.T) {
				e := newEcho()
				for path, handler := range handlers {
					inner := []echo.MiddlewareFunc{authenticate}
					if place != "behind" {
						inner = append(inner, chain...)
					}
					inner = append(inner, newOnce(t))
					if place != "front" {
						inner = append(inner, chain...)
					}
					e.POST("/"+path, handler, inner...)
				}
				server := httptest.NewServer(e)
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

// TestInFront: what stands in front of the adapter may go on with request and
// response when the handler has returned.
func TestInFront(t *testing.T) {
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			request, response := c.Request(), c.Response()
			err := next(c)
			if c.Request() != request || c.Response() != response {
				t.Error("request or response are not what they were")
			}
			if err := c.Request().Context().Err(); err != nil {
				t.Errorf("the request's context has ended: %v", err)
			}
			return err
		}
	}, newOnce(t), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if got := c.Response().Status; got != http.StatusOK {
				t.Errorf("before the handler the status is %d, want 200 as without the adapter", got)
			}
			c.SetResponse(echo.NewResponse(c.Response(), c.Echo())) // and never put back
			return next(c)
		}
	})
	e.POST("/", func(c echo.Context) error { return c.String(http.StatusAccepted, "done") })
	check(t, do(e, post("/", "k", "", "")), http.StatusAccepted, "done", false)
	check(t, do(e, post("/", "k", "", "")), http.StatusAccepted, "done", true)
}

// TestNoRoute: a request with a key for which there is no route.
func TestNoRoute(t *testing.T) {
	e := newEcho()
	e.Use(newOnce(t))
	check(t, do(e, post("/nowhere", "k", "", "")), http.StatusNotFound, `{"message":"Not Found"}`, false)
	check(t, do(e, post("/nowhere", "k", "", "")), http.StatusNotFound, `{"message":"Not Found"}`, true)
	// Without a route to name them, paths are operations of their own.
	check(t, do(e, post("/elsewhere", "k", "", "")), http.StatusNotFound, "", false)
}

// TestUnprotected: what semelhttp lets pass runs as if the adapter was not there.
func TestUnprotected(t *testing.T) {
	type key struct{}
	var response *echo.Response
	var came error
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			response = c.Response()
			came = next(c)
			if c.Request().Context().Value(key{}) == nil {
				t.Error("the request that a handler put in place is gone")
			}
			return came
		}
	}, newOnce(t))
	errTeapot := echo.NewHTTPError(http.StatusTeapot, "me")
	e.Any("/", func(c echo.Context) error {
		c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), key{}, 1)))
		if c.Response() != response || semelecho.Context(c.Request()) != c {
			return c.NoContent(http.StatusOK)
		}
		return errTeapot
	})
	e.POST("/panic", func(echo.Context) error { panic("unprotected") })
	check(t, do(e, post("/", "", "", "")), http.StatusTeapot, "", false)
	if came != error(errTeapot) {
		t.Errorf("the error in front is %v", came)
	}
	check(t, do(e, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusTeapot, "", false)
	if _, panicked := doPanic(e, post("/panic", "", "", "")); panicked != "unprotected" {
		t.Errorf("the panic is %v", panicked)
	}
}

type account struct {
	echo.Context
	name string
}

// TestOwnContextType: the handler gets the program's type.
func TestOwnContextType(t *testing.T) {
	e := newEcho()
	e.POST("/:id", func(c echo.Context) error {
		a := c.(*account)
		return a.String(http.StatusOK, fmt.Sprint(a.name, a.Param("id"), a.Get("user")))
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "ann")
			return next(&account{c, "acme"})
		}
	}, newOnce(t))
	check(t, do(e, post("/7", "k", "", "")), http.StatusOK, "acme7ann", false)
	check(t, do(e, post("/7", "k", "", "")), http.StatusOK, "acme7ann", true)
}

func TestNewRefusesNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New takes a nil middleware")
		}
	}()
	semelecho.New(nil)
}

func TestOutsideOfTheAdapter(t *testing.T) {
	r := post("/", "", "", "")
	if semelecho.Context(r) != nil || semelecho.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
