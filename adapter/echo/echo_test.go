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
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/semelhq/semel"
	semelecho "github.com/semelhq/semel/adapter/echo"
	"github.com/semelhq/semel/internal/routertest"
)

// newOnce returns the adapter over a store of its own.
func newOnce(t *testing.T) echo.MiddlewareFunc {
	t.Helper()
	return semelecho.New(routertest.NewProtect(t, semel.Policy{}, func(r *http.Request) (semel.Scope, error) {
		user, _ := semelecho.Context(r).Get("user").(string)
		return semel.Scope{Actor: user, Operation: semelecho.Route(r)}, nil
	}))
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
	w := routertest.Do(e, routertest.Post("/orders/7/a", "k", "ann", "x"))
	routertest.Check(t, w, http.StatusCreated, want, false)
	again := routertest.Do(e, routertest.Post("/orders/7/a", "k", "ann", "x"))
	routertest.Check(t, again, http.StatusCreated, want, true)
	if again.Header().Get("X-Behind") != "1" || again.Header().Get("Content-Type") != w.Header().Get("Content-Type") {
		t.Errorf("the replay's header is %v, the original's %v", again.Header(), w.Header())
	}
	routertest.Check(t, routertest.Do(e, routertest.Post("/orders/7/a", "k", "ann", "y")), http.StatusUnprocessableEntity, "", false)
	// The route is the operation, so this is the same identity and another path.
	routertest.Check(t, routertest.Do(e, routertest.Post("/orders/8/a", "k", "ann", "x")), http.StatusUnprocessableEntity, "", false)
	routertest.Check(t, routertest.Do(e, routertest.Post("/orders/7/a", "k", "bob", "x")), http.StatusCreated, "", false)
	routertest.Check(t, routertest.Do(e, routertest.Post("/orders/7/a", "", "ann", "x")), http.StatusCreated, "", false)
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

func TestClientGone(t *testing.T) {
	routertest.ClientGone(t, func(t *testing.T, pay, over func(slow bool)) routertest.Shop {
		e := newEcho()
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				slow := c.QueryParam("slow") != ""
				err := next(c)
				over(slow)
				return err
			}
		}, authenticate, newOnce(t))
		e.POST("/orders/:id/pay/:with", func(c echo.Context) error {
			pay(c.QueryParam("slow") != "")
			c.Set("paid", c.Param("id"))
			return c.String(http.StatusOK, fmt.Sprint(c.Param("id"), " ", c.Param("with"), " ", c.Path(), " ", c.Get("user"), " ",
				c.Request().Context().Err(), " ", c.Get("paid")))
		})
		return routertest.Shop{Router: e, Body: func(id, with, user string) string {
			return id + " " + with + " /orders/:id/pay/:with " + user + " <nil> " + id
		}}
	})
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
			routertest.Check(t, routertest.Do(e, routertest.Post("/orders/7", "k", "", "")), tt.status, tt.body, false)
			if came != nil {
				t.Errorf("the error in front is %v; it was rendered already", came)
			}
			routertest.Check(t, routertest.Do(e, routertest.Post("/orders/7", "k", "", "")), tt.status, tt.body, true)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

func recoverer() echo.MiddlewareFunc {
	return middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true})
}

func TestPanic(t *testing.T) {
	routertest.Panic(t, func(t *testing.T, front, behind bool, handle func()) http.Handler {
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
		if front {
			e.Use(recoverer())
		}
		e.Use(newOnce(t))
		if behind {
			e.Use(recoverer())
		}
		e.POST("/", func(echo.Context) error {
			handle()
			return nil
		})
		return e
	})
}

func TestBrokenStream(t *testing.T) {
	routertest.BrokenStream(t, []string{"panic"}, func(t *testing.T, breaks func(*http.Request)) http.Handler {
		e := newEcho()
		e.Use(recoverer(), newOnce(t))
		e.POST("/", func(c echo.Context) error {
			c.Response().Header().Set("Content-Type", "text/event-stream")
			_, _ = c.Response().Write([]byte("data:1\n\n"))
			c.Response().Flush()
			breaks(c.Request())
			return nil
		})
		return e
	})
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
				header := routertest.Do(e, routertest.Post("/", "k", user, "")).Result().Header
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
	e.ServeHTTP(struct{ http.ResponseWriter }{w}, routertest.Post("/", "k", "", ""))
	routertest.Check(t, w, http.StatusOK, "data:1", false)
}

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
	var paths []string
	for path := range handlers {
		paths = append(paths, "/"+path)
	}
	routertest.Middlewares(t, all, paths, func(t *testing.T, front, behind []echo.MiddlewareFunc) http.Handler {
		e := newEcho()
		e.Use(slices.Concat([]echo.MiddlewareFunc{authenticate}, front, []echo.MiddlewareFunc{newOnce(t)}, behind)...)
		for path, handler := range handlers {
			e.POST("/"+path, handler)
		}
		return e
	})
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
	routertest.Check(t, routertest.Do(e, routertest.Post("/", "k", "", "")), http.StatusAccepted, "done", false)
	routertest.Check(t, routertest.Do(e, routertest.Post("/", "k", "", "")), http.StatusAccepted, "done", true)
}

// TestNoRoute: a request with a key for which there is no route.
func TestNoRoute(t *testing.T) {
	e := newEcho()
	e.Use(newOnce(t))
	routertest.Check(t, routertest.Do(e, routertest.Post("/nowhere", "k", "", "")), http.StatusNotFound, `{"message":"Not Found"}`, false)
	routertest.Check(t, routertest.Do(e, routertest.Post("/nowhere", "k", "", "")), http.StatusNotFound, `{"message":"Not Found"}`, true)
	// Without a route to name them, paths are operations of their own.
	routertest.Check(t, routertest.Do(e, routertest.Post("/elsewhere", "k", "", "")), http.StatusNotFound, "", false)
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
	routertest.Check(t, routertest.Do(e, routertest.Post("/", "", "", "")), http.StatusTeapot, "", false)
	if came != error(errTeapot) {
		t.Errorf("the error in front is %v", came)
	}
	routertest.Check(t, routertest.Do(e, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusTeapot, "", false)
	if _, panicked := routertest.DoPanic(e, routertest.Post("/panic", "", "", "")); panicked != "unprotected" {
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
	routertest.Check(t, routertest.Do(e, routertest.Post("/7", "k", "", "")), http.StatusOK, "acme7ann", false)
	routertest.Check(t, routertest.Do(e, routertest.Post("/7", "k", "", "")), http.StatusOK, "acme7ann", true)
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
	r := routertest.Post("/", "", "", "")
	if semelecho.Context(r) != nil || semelecho.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
