package semelecho_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newOnce(t *testing.T, store semel.Store, c semelecho.Config) (echo.MiddlewareFunc, *semel.Guard) {
	t.Helper()
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	c.Protect, err = semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			user, _ := semelecho.Context(r).Get("user").(string)
			return semel.Scope{Actor: user, Operation: semelecho.Route(r)}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	once, err := semelecho.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return once, guard
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
	once, _ := newOnce(t, newStore(t), semelecho.Config{})
	effects := 0
	var seen []int
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			seen = append(seen, c.Response().Status)
			return err
		}
	})
	group := e.Group("/orders", authenticate, once, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().Header().Set("X-Behind", "1")
			return next(c)
		}
	})
	group.POST("/:id/:part", func(c echo.Context) error {
		effects++
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
	if !slices.Equal(seen, []int{201, 201, 422, 422, 201, 201}) {
		t.Errorf("the middleware in front saw %v", seen)
	}
}

// TestContextOutlivesRequest: the client goes away, Echo gives its context to
// thousands of other requests, and the handler still sees its own.
func TestContextOutlivesRequest(t *testing.T) {
	store := newStore(t)
	once, guard := newOnce(t, store, semelecho.Config{})
	var (
		entered, left = make(chan struct{}), make(chan struct{})
		proceed       = make(chan struct{})
		effects       atomic.Int64
	)
	routes := func(once echo.MiddlewareFunc) *echo.Echo {
		e := newEcho()
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				slow := c.QueryParam("slow") != ""
				err := next(c)
				if slow {
					close(left)
				}
				return err
			}
		}, authenticate, once)
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
		return e
	}
	e := routes(once)

	ctx, cancel := context.WithCancel(t.Context())
	go do(e, post("/orders/mine/pay/card?slow=1", "k", "ann", "").WithContext(ctx))
	<-entered
	cancel()
	<-left

	var others sync.WaitGroup
	for g := range 8 {
		others.Go(func() {
			for i := range 500 {
				w := do(e, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i), "eve", ""))
				want := fmt.Sprintf("other%d cash /orders/:id/pay/:with eve <nil> other%d", i, i)
				if w.Code != http.StatusOK || w.Body.String() != want {
					t.Errorf("answer is %d %q, want %q", w.Code, w.Body, want)
				}
				if i == 250 && g == 0 {
					close(proceed) // in the midst of them
				}
			}
		})
	}
	others.Wait()
	if err := guard.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}

	once, _ = newOnce(t, store, semelecho.Config{})
	left = make(chan struct{})
	w := do(routes(once), post("/orders/mine/pay/card?slow=1", "k", "ann", ""))
	check(t, w, http.StatusOK, "mine card /orders/:id/pay/:with ann <nil> mine", true)
	if n := effects.Load(); n != 1 {
		t.Errorf("%d effects, want 1", n)
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
			once, _ := newOnce(t, newStore(t), semelecho.Config{})
			effects := 0
			e := newEcho()
			if tt.handler != nil {
				e.HTTPErrorHandler = tt.handler
			}
			e.POST("/orders/:id", func(echo.Context) error {
				effects++
				return tt.err
			}, once)
			check(t, do(e, post("/orders/7", "k", "", "")), tt.status, tt.body, false)
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
		name     string
		chain    func(once echo.MiddlewareFunc) []echo.MiddlewareFunc
		panics   bool // out of the router
		status   int
		replayed bool
	}{
		{"no Recover", func(once echo.MiddlewareFunc) []echo.MiddlewareFunc { return []echo.MiddlewareFunc{once} }, true, http.StatusConflict, false},
		{"Recover in front", func(once echo.MiddlewareFunc) []echo.MiddlewareFunc { return []echo.MiddlewareFunc{rec, once} }, false, http.StatusConflict, false},
		{"Recover behind", func(once echo.MiddlewareFunc) []echo.MiddlewareFunc { return []echo.MiddlewareFunc{once, rec} }, false, http.StatusInternalServerError, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			once, _ := newOnce(t, newStore(t), semelecho.Config{})
			effects := 0
			e := newEcho()
			e.POST("/", func(echo.Context) error {
				effects++
				panic("half way")
			}, tt.chain(once)...)
			first := func() (w *httptest.ResponseRecorder, panicked any) {
				w = httptest.NewRecorder()
				defer func() { panicked = recover() }()
				e.ServeHTTP(w, post("/", "k", "", ""))
				return w, nil
			}
			w, panicked := first()
			if (panicked != nil) != tt.panics || tt.panics && panicked != "half way" {
				t.Errorf("the router panicked with %v, want a panic: %v", panicked, tt.panics)
			}
			check(t, w, tt.status, "", false)
			check(t, do(e, post("/", "k", "", "")), tt.status, "", tt.replayed)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

// TestUnprotected: what semelhttp lets pass runs as if the adapter was not there.
func TestUnprotected(t *testing.T) {
	once, _ := newOnce(t, newStore(t), semelecho.Config{})
	var front echo.Context
	var came error
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			front = c
			came = next(c)
			return came
		}
	}, once)
	errTeapot := echo.NewHTTPError(http.StatusTeapot, "me")
	e.Any("/", func(c echo.Context) error {
		if c != front {
			return c.NoContent(http.StatusOK)
		}
		return errTeapot
	})
	check(t, do(e, post("/", "", "", "")), http.StatusTeapot, "", false)
	if came != error(errTeapot) {
		t.Errorf("the error in front is %v", came)
	}
	check(t, do(e, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusTeapot, "", false)
	check(t, do(e, post("/", "k", "", "")), http.StatusOK, "", false)
}

type account struct {
	echo.Context
	name string
}

// TestOwnContextType: without Wrap nothing is executed; with it, the handler
// gets the program's type.
func TestOwnContextType(t *testing.T) {
	front := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "ann")
			return next(&account{c, "acme"})
		}
	}
	routes := func(once echo.MiddlewareFunc) *echo.Echo {
		e := newEcho()
		e.POST("/:id", func(c echo.Context) error {
			a := c.(*account)
			return a.String(http.StatusOK, fmt.Sprint(a.name, a.Param("id"), a.Get("user")))
		}, front, once)
		return e
	}
	once, _ := newOnce(t, newStore(t), semelecho.Config{})
	check(t, do(routes(once), post("/7", "k", "", "")), http.StatusInternalServerError, "", false)

	once, _ = newOnce(t, newStore(t), semelecho.Config{Wrap: func(outer, plain echo.Context) echo.Context {
		return &account{plain, outer.(*account).name}
	}})
	check(t, do(routes(once), post("/7", "k", "", "")), http.StatusOK, "acme7ann", false)
	check(t, do(routes(once), post("/7", "k", "", "")), http.StatusOK, "acme7ann", true)
}

func TestNewRefusesNil(t *testing.T) {
	if _, err := semelecho.New(semelecho.Config{}); err == nil {
		t.Error("New takes a nil middleware")
	}
}

func TestOutsideOfTheAdapter(t *testing.T) {
	r := post("/", "", "", "")
	if semelecho.Context(r) != nil || semelecho.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
