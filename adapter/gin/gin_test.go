package semelgin_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/semelhq/semel"
	semelgin "github.com/semelhq/semel/adapter/gin"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func init() { gin.SetMode(gin.ReleaseMode) }

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newOnce(t *testing.T, store semel.Store) (gin.HandlerFunc, *semel.Guard) {
	t.Helper()
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: semelgin.Context(r).GetString("user"), Operation: semelgin.Route(r)}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	once, err := semelgin.New(protect)
	if err != nil {
		t.Fatal(err)
	}
	return once, guard
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
	once, _ := newOnce(t, newStore(t))
	effects := 0
	var seen []string
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		seen = append(seen, fmt.Sprint(c.Writer.Status(), " ", c.GetString("order"), " ", c.FullPath()))
	})
	router.Use(authenticate)
	group := router.Group("/orders", once, func(c *gin.Context) {
		c.Header("X-Before", "1")
		c.Next()
		c.Set("order", "made "+c.Param("id"))
	})
	group.POST("/:id/:part", func(c *gin.Context) {
		effects++
		body, err := io.ReadAll(c.Request.Body)
		if err != nil {
			t.Error(err)
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
		"201 made 7 /orders/:id/:part", "201  /orders/:id/:part", "422  /orders/:id/:part",
		"422  /orders/:id/:part", "201 made 7 /orders/:id/:part", "201 made 7 /orders/:id/:part",
	}
	if fmt.Sprint(seen) != fmt.Sprint(wantSeen) {
		t.Errorf("the middleware in front saw %q, want %q", seen, wantSeen)
	}
}

// TestContextOutlivesRequest: the client goes away, gin gives its context to
// thousands of other requests, and the handler still sees its own.
func TestContextOutlivesRequest(t *testing.T) {
	store := newStore(t)
	once, guard := newOnce(t, store)
	var (
		entered, left = make(chan struct{}), make(chan struct{})
		proceed       = make(chan struct{})
		effects       atomic.Int64
	)
	routes := func(once gin.HandlerFunc) *gin.Engine {
		router := gin.New()
		router.Use(func(c *gin.Context) {
			slow := c.Query("slow") != ""
			c.Next()
			if slow {
				close(left)
			}
		}, authenticate, once)
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
		return router
	}
	router := routes(once)

	ctx, cancel := context.WithCancel(t.Context())
	go do(router, post("/orders/mine/pay/card?slow=1", "k", "ann", "").WithContext(ctx))
	<-entered
	cancel()
	<-left

	var others sync.WaitGroup
	for g := range 8 {
		others.Go(func() {
			for i := range 500 {
				w := do(router, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i), "eve", ""))
				want := fmt.Sprintf("other%d cash /orders/:id/pay/:with eve <nil> a note on other%d", i, i)
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

	once, _ = newOnce(t, store)
	w := do(routes(func(c *gin.Context) {
		left = make(chan struct{})
		once(c)
	}), post("/orders/mine/pay/card?slow=1", "k", "ann", ""))
	check(t, w, http.StatusOK, "mine card /orders/:id/pay/:with ann <nil> a note on mine", true)
	if n := effects.Load(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestPanic(t *testing.T) {
	tests := []struct {
		name          string
		front, behind gin.HandlersChain
		panics        bool // out of the router
		status        int
		replayed      bool
	}{
		{"no Recovery", nil, nil, true, http.StatusConflict, false},
		{"Recovery in front", gin.HandlersChain{gin.RecoveryWithWriter(io.Discard)}, nil, false, http.StatusConflict, false},
		{"Recovery behind", nil, gin.HandlersChain{gin.RecoveryWithWriter(io.Discard)}, false, http.StatusInternalServerError, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			once, _ := newOnce(t, newStore(t))
			effects := 0
			router := gin.New()
			router.Use(tt.front...)
			router.Use(once)
			router.Use(tt.behind...)
			router.POST("/", func(*gin.Context) {
				effects++
				panic("half way")
			})
			first := func() (w *httptest.ResponseRecorder, panicked any) {
				w = httptest.NewRecorder()
				defer func() { panicked = recover() }()
				router.ServeHTTP(w, post("/", "k", "", ""))
				return w, nil
			}
			w, panicked := first()
			if (panicked != nil) != tt.panics || tt.panics && panicked != "half way" {
				t.Errorf("the router panicked with %v, want a panic: %v", panicked, tt.panics)
			}
			check(t, w, tt.status, "", false)
			check(t, do(router, post("/", "k", "", "")), tt.status, "", tt.replayed)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

func TestAbort(t *testing.T) {
	once, _ := newOnce(t, newStore(t))
	reached := 0
	var aborted []bool
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		aborted = append(aborted, c.IsAborted())
	}, once)
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
	if reached != 1 {
		t.Errorf("the last handler ran %d times, want once", reached)
	}
	if fmt.Sprint(aborted) != "[true true false]" {
		t.Errorf("in front the requests looked aborted as %v, want true true false", aborted)
	}
}

// TestErrorsWithoutAnswer: gin would answer 200 for handlers that only note an
// error for a middleware that comes too late.
func TestErrorsWithoutAnswer(t *testing.T) {
	once, _ := newOnce(t, newStore(t))
	noted := 0
	router := gin.New()
	router.Use(func(c *gin.Context) {
		c.Next()
		noted += len(c.Errors)
	}, once)
	router.POST("/", func(c *gin.Context) { _ = c.Error(io.ErrUnexpectedEOF) })
	check(t, do(router, post("/", "k", "", "")), http.StatusInternalServerError, "", false)
	check(t, do(router, post("/", "k", "", "")), http.StatusInternalServerError, "", true)
	if noted != 1 {
		t.Errorf("the middleware in front saw %d errors, want 1", noted)
	}
}

// TestWriter: what gin's handlers ask of a ResponseWriter, and trailers.
func TestWriter(t *testing.T) {
	once, guard := newOnce(t, newStore(t))
	router := gin.New()
	router.Use(once)
	router.POST("/trailer", func(c *gin.Context) {
		c.Header("Trailer", "X-Sum")
		c.Status(http.StatusOK)
		c.Writer.WriteHeaderNow()
		c.Header("X-Sum", "7")
	})
	router.POST("/stream", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			n++
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
	send := func(path string) (*http.Response, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(semelhttp.HeaderKey, "k")
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	for _, replayed := range []bool{false, true} {
		resp, _ := send("/trailer")
		if resp.Header.Get("X-Sum") != "" || resp.Trailer.Get("X-Sum") != "7" {
			t.Errorf("replayed %v: X-Sum is %q in the header and %q in the trailer", replayed, resp.Header.Get("X-Sum"), resp.Trailer.Get("X-Sum"))
		}
	}
	if _, body := send("/stream"); body != "event:tick\ndata:1\n\nevent:tick\ndata:2\n\nevent:tick\ndata:3\n\n" {
		t.Errorf("the stream is %q", body)
	}
	if resp, _ := send("/stream"); resp.StatusCode != http.StatusConflict {
		t.Errorf("the stream's repetition is answered with %d, want 409", resp.StatusCode)
	}
	if _, body := send("/hijack"); body != "true" {
		t.Errorf("Hijack does not say that it is not supported")
	}
	if err := guard.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestUnprotected: what semelhttp lets pass runs as if the adapter was not there.
func TestUnprotected(t *testing.T) {
	once, _ := newOnce(t, newStore(t))
	var front *gin.Context
	router := gin.New()
	router.Use(func(c *gin.Context) { front = c }, once)
	router.Any("/", func(c *gin.Context) { c.String(http.StatusOK, "%v", c == front) })
	check(t, do(router, post("/", "", "", "")), http.StatusOK, "true", false)
	check(t, do(router, httptest.NewRequest(http.MethodGet, "/", nil)), http.StatusOK, "true", false)
	check(t, do(router, post("/", "k", "", "")), http.StatusOK, "false", false)
}

func TestNewRefusesNil(t *testing.T) {
	if _, err := semelgin.New(nil); err == nil {
		t.Error("New takes a nil middleware")
	}
}

func TestOutsideOfTheAdapter(t *testing.T) {
	r := post("/", "", "", "")
	if semelgin.Context(r) != nil || semelgin.Route(r) != "" {
		t.Error("a request that did not pass the adapter has a context")
	}
}
