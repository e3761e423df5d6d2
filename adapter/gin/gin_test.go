package semelgin_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/semelhq/semel"
	semelgin "github.com/semelhq/semel/adapter/gin"
	"github.com/semelhq/semel/internal/routertest"
	"github.com/semelhq/semel/semelhttp"
)

func init() { gin.SetMode(gin.ReleaseMode) }

// newOnce returns the adapter over a store of its own.
func newOnce(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return newOnceWith(t, semel.Policy{})
}

func newOnceWith(t *testing.T, policy semel.Policy) gin.HandlerFunc {
	t.Helper()
	return semelgin.New(routertest.NewProtect(t, policy, func(r *http.Request) (semel.Scope, error) {
		return semel.Scope{Actor: semelgin.Context(r).GetString("user"), Operation: semelgin.Route(r)}, nil
	}))
}

func authenticate(c *gin.Context) {
	c.Set("user", c.GetHeader("X-User"))
	c.Next()
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
	w := routertest.Do(router, routertest.Post("/orders/7/a", "k", "ann", "x"))
	routertest.Check(t, w, http.StatusCreated, want, false)
	again := routertest.Do(router, routertest.Post("/orders/7/a", "k", "ann", "x"))
	routertest.Check(t, again, http.StatusCreated, want, true)
	if again.Header().Get("X-Before") != "1" || again.Header().Get("Content-Type") != w.Header().Get("Content-Type") {
		t.Errorf("the replay's header is %v, the original's %v", again.Header(), w.Header())
	}
	routertest.Check(t, routertest.Do(router, routertest.Post("/orders/7/a", "k", "ann", "y")), http.StatusUnprocessableEntity, "", false)
	// The route is the operation, so this is the same identity and another path.
	routertest.Check(t, routertest.Do(router, routertest.Post("/orders/8/a", "k", "ann", "x")), http.StatusUnprocessableEntity, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/orders/7/a", "k", "bob", "x")), http.StatusCreated, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/orders/7/a", "", "ann", "x")), http.StatusCreated, "", false)
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

func TestClientGone(t *testing.T) {
	routertest.ClientGone(t, func(t *testing.T, pay, over func(slow bool)) routertest.Shop {
		router := gin.New()
		router.Use(func(c *gin.Context) {
			slow := c.Query("slow") != ""
			c.Next()
			over(slow)
		}, authenticate, newOnce(t))
		router.POST("/orders/:id/pay/:with", func(c *gin.Context) {
			pay(c.Query("slow") != "")
			c.Set("paid", true)
			_ = c.Error(fmt.Errorf("a note on %s", c.Param("id")))
			c.String(http.StatusOK, "%s %s %s %s %v %s", c.Param("id"), c.Param("with"), c.FullPath(), c.GetString("user"),
				c.Request.Context().Err(), c.Errors.Last().Error())
		})
		return routertest.Shop{Router: router, Body: func(id, with, user string) string {
			return id + " " + with + " /orders/:id/pay/:with " + user + " <nil> a note on " + id
		}}
	})
}

func TestPanic(t *testing.T) {
	routertest.Panic(t, func(t *testing.T, front, behind bool, handle func()) http.Handler {
		router := gin.New()
		router.Use(func(c *gin.Context) {
			request, writer := c.Request, c.Writer
			defer func() {
				if c.Request != request || c.Writer != writer {
					t.Error("request or writer in front are not what they were")
				}
			}()
			c.Next()
		})
		if front {
			router.Use(gin.RecoveryWithWriter(io.Discard))
		}
		router.Use(newOnce(t))
		if behind {
			router.Use(gin.RecoveryWithWriter(io.Discard))
		}
		router.POST("/", func(*gin.Context) { handle() })
		return router
	})
}

func TestBrokenStream(t *testing.T) {
	ends := []string{"panic", "aborted", "indeterminate"} // gin's Recovery ends every panic
	routertest.BrokenStream(t, ends, func(t *testing.T, breaks func(*http.Request)) http.Handler {
		router := gin.New()
		router.Use(gin.RecoveryWithWriter(io.Discard), newOnce(t))
		router.POST("/", func(c *gin.Context) {
			c.SSEvent("tick", 1)
			c.Writer.Flush()
			breaks(c.Request)
		})
		return router
	})
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
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusForbidden, `{"error":"no"}`, false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusForbidden, `{"error":"no"}`, true)
	if reached != 0 {
		t.Error("the chain went on behind Abort")
	}
	routertest.Check(t, routertest.Do(router, routertest.Post("/?ok=1", "k2", "", "")), http.StatusAccepted, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/?ok=1", "k2", "", "")), http.StatusAccepted, "", true)
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
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusInternalServerError, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusInternalServerError, "", true)
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
	routertest.Check(t, routertest.Do(router, routertest.Post("/status", "k", "", "")), http.StatusAccepted, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/none", "k", "", "")), http.StatusOK, "", false)
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
		routertest.Do(router, routertest.Post("/", "k", "", "").WithContext(ctx))
	})
}

// TestNoRouteBecame200: a request with a key for which there is no route.
func TestNoRouteBecame200(t *testing.T) {
	router := gin.New()
	var routes []string
	router.Use(newOnce(t), func(c *gin.Context) { routes = append(routes, semelgin.Route(c.Request)) })
	routertest.Check(t, routertest.Do(router, routertest.Post("/nowhere", "k", "", "")), http.StatusNotFound, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/nowhere", "k", "", "")), http.StatusNotFound, "", true)
	// Without a route to name them, paths are operations of their own.
	routertest.Check(t, routertest.Do(router, routertest.Post("/elsewhere", "k", "", "")), http.StatusNotFound, "", false)
	if fmt.Sprint(routes) != "[ ]" {
		t.Errorf("the routes are %q, want none twice", routes)
	}
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
	var paths []string
	for path := range handlers {
		paths = append(paths, "/"+path)
	}
	routertest.Middlewares(t, all, paths, func(t *testing.T, front, behind []gin.HandlerFunc) http.Handler {
		router := gin.New()
		router.Use(slices.Concat([]gin.HandlerFunc{authenticate}, front, []gin.HandlerFunc{newOnce(t)}, behind)...)
		for path, handler := range handlers {
			router.POST(path, handler)
		}
		return router
	})
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
		a := routertest.Send(t, server, "/trailer", nil)
		if a.Header.Get("X-Sum") != "" || a.Trailer.Get("X-Sum") != "7" {
			t.Errorf("replayed %v: X-Sum is %q in the header and %q in the trailer", replayed, a.Header.Get("X-Sum"), a.Trailer.Get("X-Sum"))
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
	if a := routertest.Send(t, server, "/stream", map[string]string{semelhttp.HeaderKey: "stream"}); a.Status != http.StatusConflict {
		t.Errorf("the stream's repetition is answered with %d, want 409", a.Status)
	}
	if a := routertest.Send(t, server, "/hijack", nil); a.Body != "true" {
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
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusAccepted, "", false)
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "k", "", "")), http.StatusAccepted, "", true)
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
	routertest.Check(t, routertest.Do(router, routertest.Post("/", "", "", "")), http.StatusOK, "true", false)
	routertest.Check(t, routertest.Do(router, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusOK, "true", false)
	if _, panicked := routertest.DoPanic(router, routertest.Post("/panic", "", "", "")); panicked != "unprotected" {
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
	r := routertest.Post("/", "", "", "")
	if semelgin.Context(r) != nil || semelgin.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
