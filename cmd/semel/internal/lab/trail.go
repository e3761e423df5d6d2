package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"
)

// Attempt is one request that arrived, and what became of it.
type Attempt struct {
	Seq       int64         `json:"seq"`
	Request   string        `json:"request_id"`
	Trace     string        `json:"trace_id"`
	Key       string        `json:"idempotency_key,omitempty"`
	Event     string        `json:"event_id,omitempty"`
	Path      string        `json:"path"` // rest, page, graphql, webhook
	Operation string        `json:"operation"`
	Tenant    string        `json:"tenant"`
	Actor     string        `json:"actor"`
	Reference string        `json:"reference"`
	Begun     time.Time     `json:"begun"`
	Took      time.Duration `json:"took_ns"`
	Status    int           `json:"status"` // 0 while it is under way
	Effect    string        `json:"effect,omitempty"`
	Replayed  bool          `json:"replayed"`
	Lost      bool          `json:"lost"` // the answer did not arrive
	Steps     []Step        `json:"steps"`

	trail *trail
}

// Step is something that was decided on the way of a request.
type Step struct {
	After time.Duration `json:"after_ns"` // since it has begun
	What  string        `json:"what"`
}

// mostAttempts bounds what is remembered.
const mostAttempts = 1000

// trail holds the latest attempts, and tells who listens that there is more.
type trail struct {
	mu       sync.Mutex
	last     int64
	attempts []*Attempt
	changed  chan struct{} // closed at the next change
}

func (t *trail) init() { t.changed = make(chan struct{}) }

type attemptKey struct{}

// attemptOf returns the attempt that ctx is about.
func attemptOf(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// begin adds an attempt.
func (t *trail) begin(ctx context.Context, a *Attempt) context.Context {
	a.trail, a.Begun = t, time.Now()
	if a.Request == "" {
		a.Request = random(8)
	}
	t.change(func() {
		t.last++
		a.Seq = t.last
		t.attempts = append(t.attempts[max(len(t.attempts)-mostAttempts+1, 0):], a)
	})
	return context.WithValue(ctx, attemptKey{}, a)
}

// change changes attempts, and tells.
func (t *trail) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	close(t.changed)
	t.changed = make(chan struct{})
}

// note adds a step to the attempt.
func (a *Attempt) note(what string) {
	a.trail.change(func() { a.Steps = append(a.Steps, Step{time.Since(a.Begun), what}) })
}

// list returns copies of the attempts with this reference, or of all, the latest
// first, and what is closed when there is more.
func (t *trail) list(reference string, most int) (list []Attempt, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.Backward(t.attempts) {
		if len(list) == most {
			break
		}
		if reference == "" || a.Reference == reference {
			c := *a
			c.Steps, c.trail = slices.Clone(a.Steps), nil
			list = append(list, c)
		}
	}
	return list, t.changed
}

func (t *trail) clear() { t.change(func() { t.attempts = nil }) }

// traceOf returns the trace id of a traceparent header (W3C Trace Context), or a
// new one.
func traceOf(header string) string {
	if parts := strings.Split(header, "-"); len(parts) == 4 && len(parts[1]) == 32 && strings.Trim(parts[1], "0123456789abcdef") == "" {
		return parts[1]
	}
	return random(16)
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}
