package semelhttp

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Pace limits how slowly a client may send a request body and read a response. Only
// the time in which the server waits for the client counts. There is no limit if the
// server cannot set deadlines on its connections. See http.ResponseController.
type Pace struct {
	// MinRate is the lowest average rate in bytes per second. If it is negative, there
	// is none. Default 1,024.
	MinRate int64
	// Grace is the time before MinRate applies. Default 10 s.
	Grace time.Duration
	// Idle is the longest time without any progress. Default 30 s.
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
//
// Nearly all calls are over before they have taken too long, and there are several
// to a body: so the timer is set where it is not set to go off in time already, and
// a call that ends leaves it alone. When it goes off it sees how things are.
type pacer struct {
	w     http.ResponseWriter
	write bool // what waits are writes
	pace  Pace

	mu    sync.Mutex
	timer *time.Timer
	rings time.Time // when the timer goes off; zero if it does not
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
	if p.rings.IsZero() || p.due.Before(p.rings) {
		p.ring(left)
	}
}

// ring sets the timer. Called with mu held.
func (p *pacer) ring(left time.Duration) {
	p.rings = p.due
	if p.timer == nil {
		p.timer = time.AfterFunc(left, p.rung)
	} else {
		p.timer.Reset(left)
	}
}

// end says that n bytes have come of the call. If they were the last, how long it
// took does not matter any more.
func (p *pacer) end(n int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !last {
		p.spent += time.Since(p.since)
	}
	p.since = time.Time{}
	p.bytes += int64(n)
}

func (p *pacer) rung() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rings = time.Time{}
	if p.since.IsZero() || p.slow {
		return
	}
	if left := time.Until(p.due); left > 0 {
		p.ring(left)
		return
	}
	p.slow = true
	p.cut()
}

// rest gives up the timer, which would hold on to the client.
func (p *pacer) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rings.IsZero() {
		p.timer.Stop()
		p.rings = time.Time{}
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
	stopped      bool // cut off because the guard drains; the uploads' mutex guards it
	prior, later *pacedReader
}

func (r *pacedReader) Read(b []byte) (int, error) {
	r.begin()
	n, err := r.ReadCloser.Read(b)
	r.end(n, err == io.EOF)
	return n, err
}

// uploads are the request bodies that are being read.
type uploads struct {
	mu       sync.Mutex
	latest   *pacedReader // the others are prior to it
	draining bool
	idle     sync.Pool // of *pacedReader
}

// begin has a body read. It is cut off at once if the guard drains.
func (u *uploads) begin(w http.ResponseWriter, body io.ReadCloser, pace Pace) *pacedReader {
	r, _ := u.idle.Get().(*pacedReader)
	if r == nil {
		r = &pacedReader{}
	}
	r.ReadCloser = body
	r.reset(w, false, pace)
	u.mu.Lock()
	defer u.mu.Unlock()
	if r.prior = u.latest; r.prior != nil {
		r.prior.later = r
	}
	u.latest = r
	if r.stopped = u.draining; r.stopped {
		r.cut()
	}
	return r
}

// end is called when the body has been read, or is not to be read any more.
// From then on nobody else has the reader.
func (u *uploads) end(r *pacedReader) {
	u.mu.Lock()
	if r.later != nil {
		r.later.prior = r.prior
	} else {
		u.latest = r.prior
	}
	if r.prior != nil {
		r.prior.later = r.later
	}
	r.prior, r.later = nil, nil
	u.mu.Unlock()
	r.rest()
	r.ReadCloser = nil
	r.reset(nil, false, Pace{})
	u.idle.Put(r)
}

// drain cuts all bodies off.
func (u *uploads) drain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.draining = true
	for r := u.latest; r != nil; r = r.prior {
		r.stopped = true
		r.cut()
	}
}

// wasStopped reports whether the body was cut off because the guard drains.
func (u *uploads) wasStopped(r *pacedReader) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return r.stopped
}

// pacedWriter writes a response's body to the client.
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
	defer w.rest()
	for {
		w.begin()
		m, err := w.ResponseWriter.Write(b[n:min(n+writeAtOnce, len(b))])
		w.end(m, false)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (w *pacedWriter) flush() error {
	w.begin()
	defer w.rest()
	defer w.end(0, false)
	return http.NewResponseController(w.ResponseWriter).Flush()
}
