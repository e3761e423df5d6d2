package semelhttp

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Pace is how slowly a client may send a request's body, and read an answer.
// Only the time in which the server waits for the client counts. Where the
// server cannot set deadlines on its connections (see http.ResponseController)
// there is no bound.
type Pace struct {
	// MinRate is the slowest average rate in bytes per second. Negative: none.
	// Default 1,024.
	MinRate int64
	// Grace is for how long MinRate is not asked for. Default 10 s.
	Grace time.Duration
	// Idle is how long nothing at all may move. Default 30 s.
	Idle time.Duration
}

func (p Pace) withDefaults() Pace {
	if p.MinRate == 0 {
		p.MinRate = 1 << 10
	}
	if p.Grace == 0 {
		p.Grace = 10 * time.Second
	}
	if p.Idle == 0 {
		p.Idle = 30 * time.Second
	}
	return p
}

// pacer cuts a client off that is slower than its pace. It is told of each
// call that waits for the client. After reset it serves another client.
type pacer struct {
	w     http.ResponseWriter
	write bool // what waits are writes
	pace  Pace

	mu    sync.Mutex
	timer *time.Timer
	since time.Time // when the call under way began; zero if there is none
	due   time.Time // when that has taken too long
	spent time.Duration
	bytes int64
	slow  bool // it was cut off
}

func (p *pacer) reset(w http.ResponseWriter, write bool, pace Pace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w, p.write, p.pace = w, write, pace
	p.since, p.spent, p.bytes, p.slow = time.Time{}, 0, 0, false
}

// begin is called before a call, and end after it.
func (p *pacer) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now()
	left := p.pace.Idle
	if rate := p.pace.MinRate; rate > 0 {
		owed := p.pace.Grace + time.Duration(float64(p.bytes)/float64(rate)*float64(time.Second)) - p.spent
		left = min(left, owed)
	}
	p.due = p.since.Add(left)
	if p.timer == nil {
		p.timer = time.AfterFunc(left, p.late)
	} else {
		p.timer.Reset(left)
	}
}

func (p *pacer) end(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	p.spent += time.Since(p.since)
	p.since = time.Time{}
	p.bytes += int64(n)
}

func (p *pacer) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Or the call has just ended, and perhaps another has begun.
	if !p.since.IsZero() && !p.slow && !time.Now().Before(p.due) {
		p.slow = true
		p.cut()
	}
}

// cut fails what is under way and all that comes.
func (p *pacer) cut() {
	c := http.NewResponseController(p.w)
	if p.write {
		_ = c.SetWriteDeadline(past)
	} else {
		_ = c.SetReadDeadline(past)
	}
}

// wasSlow reports whether the client was cut off.
func (p *pacer) wasSlow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// past is when all that waits has waited too long.
var past = time.Unix(1, 0)

// pacedReader reads a request's body.
type pacedReader struct {
	io.ReadCloser
	pacer
	stopped atomic.Bool // cut off because the guard drains
}

func (r *pacedReader) Read(b []byte) (int, error) {
	r.begin()
	n, err := r.ReadCloser.Read(b)
	r.end(n)
	return n, err
}

// pacedWriter writes an answer's body to the client.
type pacedWriter struct {
	http.ResponseWriter
	pacer
}

func newPacedWriter(w http.ResponseWriter, pace Pace) *pacedWriter {
	p := &pacedWriter{ResponseWriter: w}
	p.reset(w, true, pace)
	return p
}

// writeAtOnce is how much is written in one call that has to move within
// Pace.Idle.
const writeAtOnce = 16 << 10

func (w *pacedWriter) Write(b []byte) (n int, err error) {
	for {
		w.begin()
		m, err := w.ResponseWriter.Write(b[n:min(n+writeAtOnce, len(b))])
		w.end(m)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (w *pacedWriter) flush() error {
	w.begin()
	defer w.end(0)
	return http.NewResponseController(w.ResponseWriter).Flush()
}
