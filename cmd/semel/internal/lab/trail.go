package lab

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// Attempt is one request that arrived, or one attempt at a job, and what became of it.
type Attempt struct {
	Seq       int64         `json:"seq"`
	Request   string        `json:"request_id"`
	Trace     string        `json:"trace_id"`
	Key       string        `json:"idempotency_key,omitempty"`
	Event     string        `json:"event_id,omitempty"`
	Job       string        `json:"job_id,omitempty"` // that was accepted, or is being done
	Path      string        `json:"path"`             // rest, page, graphql, webhook, job; worker
	Operation string        `json:"operation"`
	Tenant    string        `json:"tenant"`
	Actor     string        `json:"actor"`
	Reference string        `json:"reference"`
	Begun     time.Time     `json:"begun"`
	Took      time.Duration `json:"took_ns"`
	Status    int           `json:"status"` // 0 while it is under way; of a worker, what HTTP would say
	Decision  string        `json:"decision,omitempty"`
	Effect    string        `json:"effect,omitempty"`
	Replayed  bool          `json:"replayed"`
	Lost      bool          `json:"lost"` // the response did not arrive
	Died      bool          `json:"died"` // the app's process ended before it
	Steps     []Step        `json:"steps"`
	// Midway says that more of the work is to come, and some is done: where a crash
	// hurts.
	Midway bool `json:"-"`

	outside outside
}

// Decisions: semel's answers, by the same names in homemade.go, and some more.
var (
	decidedExecuted   = semel.AnswerExecuted.String()
	decidedReplayed   = semel.AnswerReplayed.String()
	decidedInProgress = semel.AnswerInProgress.String()
	decidedMismatch   = semel.AnswerMismatch.String()
	decidedUnknown    = semel.AnswerUnknown.String()
	decidedUsedUp     = "used_up"          // it was asked for before, and the response is gone
	decidedCollision  = "unique_collision" // the database refused it
	decidedLimit      = "rate_limited"
)

// Step is something that was decided on the way of a request.
type Step struct {
	After time.Duration `json:"after_ns"` // since it has begun
	What  string        `json:"what"`
}

type attemptKey struct{}

// attemptOf returns the attempt that ctx is about.
func attemptOf(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// begin writes the attempt down as one that is under way.
func (a *Attempt) begin(ctx context.Context, o outside) context.Context {
	a.outside, a.Begun, a.Request = o, time.Now(), random(8)
	o.Tell(*a)
	return context.WithValue(ctx, attemptKey{}, a)
}

// note adds a step to the attempt.
func (a *Attempt) note(what string) {
	a.Steps = append(a.Steps, Step{time.Since(a.Begun), what})
	a.outside.Tell(*a)
}

// midway adds a step behind which a crash hurts.
func (a *Attempt) midway(what string) {
	a.Midway = true
	a.note(what)
	a.Midway = false
}

// end says what it came to.
func (a *Attempt) end(status int) {
	a.Took, a.Status = time.Since(a.Begun), status
	a.outside.Tell(*a)
}

// mostAttempts bounds what is remembered.
const mostAttempts = 1000

// trail holds the latest attempts, and tells who listens that there is more.
type trail struct {
	mu       sync.Mutex
	last     int64
	attempts []*Attempt    // as they were told last
	changed  chan struct{} // closed at the next change
}

func (t *trail) init() { t.changed = make(chan struct{}) }

// put writes an attempt down, in the place of what it was before.
func (t *trail) put(a Attempt) {
	a.Steps = slices.Clone(a.Steps)
	t.change(func() {
		for _, b := range slices.Backward(t.attempts) {
			if b.Request == a.Request {
				a.Seq = b.Seq
				*b = a
				return
			}
		}
		if len(a.Steps) > 0 || a.Status > 0 {
			return // it was forgotten meanwhile
		}
		t.last++
		a.Seq = t.last
		t.attempts = append(t.attempts[max(len(t.attempts)-mostAttempts+1, 0):], &a)
	})
}

// died writes down of all that is under way that its process has ended.
func (t *trail) died() {
	t.change(func() {
		for _, a := range t.attempts {
			if a.Status == 0 && !a.Died {
				a.Died, a.Took = true, time.Since(a.Begun)
			}
		}
	})
}

// change changes attempts, and tells.
func (t *trail) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	close(t.changed)
	t.changed = make(chan struct{})
}

// list returns copies of the attempts with this reference, or of all, the latest
// first, and what is closed when there is more.
func (t *trail) list(reference string, most int) (list []Attempt, changed <-chan struct{}) {
	return t.find(func(a *Attempt) bool { return reference == "" || a.Reference == reference }, most)
}

func (t *trail) find(fits func(*Attempt) bool, most int) (list []Attempt, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.Backward(t.attempts) {
		if len(list) == most {
			break
		}
		if fits(a) {
			c := *a
			c.Steps, c.outside = slices.Clone(a.Steps), nil
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
