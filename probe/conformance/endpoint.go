package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
)

// instruction is the body of a POST to the test endpoint.
type instruction struct {
	Case   string `json:"case"`
	Hold   bool   `json:"hold,omitempty"`
	Busy   int    `json:"busy,omitempty"`
	Abort  bool   `json:"abort,omitempty"`
	Stream bool   `json:"stream,omitempty"`
	Status int    `json:"status,omitempty"`
	// Note tells apart requests that ask for the same.
	Note string `json:"note,omitempty"`
}

// counts is the response to a GET of the test endpoint.
type counts struct {
	Entered int `json:"entered"`
	Effects int `json:"effects"`
}

type endpoint struct {
	mu    sync.Mutex
	cases map[string]*endpointCase
}

type endpointCase struct {
	counts
	released chan struct{}
	free     bool
}

// Endpoint returns a test endpoint. The caller must protect its POST. It keeps
// its counts in memory and is not for production.
func Endpoint() http.Handler { return &endpoint{cases: map[string]*endpointCase{}} }

func (e *endpoint) of(name string) *endpointCase {
	c := e.cases[name]
	if c == nil {
		c = &endpointCase{released: make(chan struct{})}
		e.cases[name] = c
	}
	return c
}

// ServeHTTP implements http.Handler.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		e.mu.Lock()
		c := e.of(r.URL.Query().Get("case"))
		if r.URL.Query().Has("release") && !c.free {
			c.free = true
			close(c.released)
		}
		now := c.counts
		e.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(now)
		return
	}
	var do instruction
	d := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	if err := d.Decode(&do); err != nil || do.Case == "" {
		http.Error(w, "the body is not an instruction", http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	c := e.of(do.Case)
	c.Entered++
	entered, released := c.Entered, c.released
	e.mu.Unlock()
	if do.Hold {
		select {
		case <-released:
		case <-r.Context().Done():
			// The one who protects gave up on it. There was no effect.
			return
		}
	}
	if entered <= do.Busy {
		http.Error(w, "busy", http.StatusTooManyRequests)
		return
	}
	e.mu.Lock()
	c.Effects++
	n := c.Effects
	e.mu.Unlock()

	switch h := w.Header(); {
	case do.Abort:
		panic(http.ErrAbortHandler)
	case do.Stream:
		h.Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: done\n\n")
	default:
		if do.Status == 0 {
			do.Status = http.StatusCreated
		}
		h.Set("Content-Type", "application/json")
		h["X-Conformance"] = []string{"a", "b"}
		h.Set("Location", fmt.Sprintf("%s/%s/%d", r.URL.Path, do.Case, n))
		w.WriteHeader(do.Status)
		if do.Status != http.StatusNoContent {
			_, _ = fmt.Fprintf(w, `{"effect":%d,"nonce":"%016x"}`, n, rand.Uint64())
		}
	}
}
