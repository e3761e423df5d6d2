package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Race is what came of requests that were released together.
type Race struct {
	// Exchanges are in the order of the requests.
	Exchanges []Exchange
	// WarmUps are the requests that went before, one for each connection.
	WarmUps []Exchange
	// Released: the ends of all requests were let go. If not, none was, and Err
	// says why. A connection that broke in that very moment shows in its
	// Exchange.
	Released bool
	Err      error // matches ErrNotRaced

	// Spread is the time between the first and the last request's last byte
	// leaving this machine. With HTTP/2 that is one write, and Spread is zero.
	Spread time.Duration
	// Overlap is the greatest number of requests that were in flight at one
	// moment: their last byte had been handed to the network, and no byte of
	// the response had been read. It is how far this side can tell that they
	// raced; a request answered before its last byte was known to be out is
	// not in it.
	Overlap int
	// Window is how long all of them were in flight together; zero or less
	// if they never were.
	Window time.Duration
}

// SendRace sends requests so that their last bytes arrive as close together as
// can be. All but the end of each is sent first; when that has arrived at the
// server, the ends are released at once:
//   - with HTTP/2 in one connection, as final DATA frames in one write, after a
//     PING has come back;
//   - with HTTP/1.1 in a connection for each request, as one byte each, back to
//     back.
//
// With HTTP/2 all requests go to one target; with HTTP/1.1 as their Protocol
// they may go to several. All have the same Protocol. Whatever keeps one of
// them from being released (no connection, the server's limits of streams and
// windows, an early response) keeps all of them: see Released. Exchanges are
// then Partial or NotSent, but for one that was answered or refused early.
//
// With warmUp, that request is sent and answered before, once in each
// connection: once with HTTP/2, for each request with HTTP/1.1. It counts
// against the budget, has to have the target of all the others, and its
// Protocol is theirs.
//
// Errors and contexts are those of Send. Both bodies and responses are in memory.
func (s *Sender) SendRace(ctx context.Context, requests []Request, warmUp *Request) (Race, error) {
	if len(requests) < 2 {
		return Race{}, fmt.Errorf("wire: %d requests cannot race", len(requests))
	}
	protocol := requests[0].Protocol
	all := slices.Clone(requests)
	sends := len(requests)
	if warmUp != nil {
		w := *warmUp
		w.Protocol = protocol
		all = append(all, w)
		// Which protocol it will be is not yet known: reserve for HTTP/1.1.
		if sends *= 2; protocol == HTTP2 {
			sends = len(requests) + 1
		}
	}
	ms, err := s.admit(ctx, 0, all...)
	if err != nil {
		return Race{}, err
	}
	for i, m := range ms {
		if m.req.Protocol != protocol {
			return Race{}, fmt.Errorf("wire: request %d of the race has another protocol", i)
		}
		if (m.addr != ms[0].addr || m.secure != ms[0].secure) && (protocol != HTTP1 || warmUp != nil) {
			return Race{}, fmt.Errorf("wire: request %d of the race has another target", i)
		}
	}
	if err := s.take(sends); err != nil {
		return Race{}, err
	}

	r := race{s: s, ms: ms[:len(requests)], xs: make([]Exchange, len(requests))}
	if warmUp != nil {
		r.warm = ms[len(requests)]
	}
	for i, m := range r.ms {
		r.xs[i] = newExchange(m)
	}
	result := r.run(ctx)
	s.giveBack(sends - len(requests) - len(result.WarmUps))
	s.observe(ctx, KindWarmUp, result.WarmUps...)
	s.observe(ctx, KindRace, result.Exchanges...)
	return result, nil
}

// race is one race going on.
type race struct {
	s    *Sender
	ms   []*message
	xs   []Exchange
	warm *message // nil for none

	mu    sync.Mutex
	warms []Exchange
}

// maxResponse is what each response may take.
func (r *race) maxResponse() int {
	return min(r.s.cfg.MaxResponse, max(8*r.s.cfg.MaxResponse/len(r.ms), 64<<10))
}

func (r *race) run(ctx context.Context) Race {
	var released bool
	c, err := r.s.connect(ctx, r.ms[0], r.ms[0].req.Protocol, &r.xs[0])
	if err == nil {
		// The time it takes to connect the others is in it.
		limited, cancel := r.s.limit(ctx)
		defer cancel()
		if c.protocol == HTTP2 {
			released, err = r.run2(limited, c)
		} else {
			released, err = r.run1(limited, c)
		}
	}
	out := Race{Exchanges: r.xs, WarmUps: r.warms, Released: released}
	if !released {
		out.Err = fmt.Errorf("%w: %w", ErrNotRaced, err)
	}
	for i := range r.xs {
		x := &r.xs[i]
		if x.Err == nil && x.Response == nil {
			x.Err = out.Err
		}
		if x.Timing.Done.IsZero() {
			x.Timing.Done = time.Now()
		}
	}
	if released {
		out.measure()
	}
	return out
}

// measure fills in Spread, Overlap and Window.
func (r *Race) measure() {
	type edge struct {
		at   time.Time
		step int
	}
	var edges []edge
	var firstOut, lastOut, firstIn time.Time
	early := false
	for _, x := range r.Exchanges {
		out, in := x.Timing.LastWrite, x.Timing.FirstByte
		if in.IsZero() {
			in = x.Timing.Done
		}
		if out.IsZero() {
			early = true
			continue
		}
		if firstOut.IsZero() || out.Before(firstOut) {
			firstOut = out
		}
		if out.After(lastOut) {
			lastOut = out
		}
		if firstIn.IsZero() || in.Before(firstIn) {
			firstIn = in
		}
		if out.Before(in) {
			edges = append(edges, edge{out, 1}, edge{in, -1})
		}
	}
	r.Spread = lastOut.Sub(firstOut)
	if !early {
		r.Window = firstIn.Sub(lastOut)
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.step - b.step // an end before a beginning
	})
	n := 0
	for _, e := range edges {
		n += e.step
		r.Overlap = max(r.Overlap, n)
	}
}

// warmed books a warm-up and tells whether the connection can go on after it.
func (r *race) warmed(x Exchange, reusable bool) error {
	r.mu.Lock()
	r.warms = append(r.warms, x)
	r.mu.Unlock()
	switch {
	case x.Err != nil:
		return fmt.Errorf("the warm-up failed: %w", x.Err)
	case !reusable:
		return errors.New("the server closes the connection after the warm-up")
	}
	return nil
}

// lane1 is the connection of one request of a race with HTTP/1.1.
type lane1 struct {
	c     *conn
	a     *response1
	last  byte
	error error
}

func (r *race) run1(ctx context.Context, first *conn) (released bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lanes := make([]lane1, len(r.ms))
	lanes[0].c = first
	var wg sync.WaitGroup
	for i := range lanes {
		wg.Go(func() {
			if err := r.prepare1(ctx, i, &lanes[i]); err != nil {
				lanes[i].error = err
				cancel(fmt.Errorf("request %d: %w", i, err)) // the others need not go on
			}
		})
	}
	wg.Wait()

	err = context.Cause(ctx)
	for i := range lanes {
		if err == nil && lanes[i].a.over() {
			err = fmt.Errorf("request %d was answered or cut off before its end", i)
		}
	}
	if released = err == nil; released {
		pipes := make([]*pipe, len(lanes))
		for i := range lanes {
			pipes[i] = lanes[i].c.pipe
		}
		for i, at := range release(pipes) {
			if !at.IsZero() {
				r.xs[i].Sent = append(r.xs[i].Sent, lanes[i].last)
				r.xs[i].whole(at)
			}
		}
	}
	for i := range lanes {
		l := &lanes[i]
		if l.a != nil {
			if !released {
				l.c.reset()
			}
			<-l.a.done
			r.xs[i].conclude1(l.a, l.error)
			if !released && r.xs[i].Response == nil {
				r.xs[i].Err = fmt.Errorf("%w: given up before its end", ErrNotRaced)
			}
		} else if l.error != nil {
			r.xs[i].Err = l.error
		}
		if l.c != nil {
			l.c.close()
		}
	}
	return released, err
}

func (a *response1) over() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// prepare1 brings a lane to where only the last byte of the request is missing,
// and holds that one back below TLS.
func (r *race) prepare1(ctx context.Context, i int, l *lane1) (err error) {
	m, x := r.ms[i], &r.xs[i]
	if l.c == nil {
		if l.c, err = r.s.connect(ctx, m, HTTP1, x); err != nil {
			return err
		}
	}
	stop := l.c.breakOn(ctx)
	if r.warm != nil {
		w := newExchange(r.warm)
		w.Protocol, w.TLS, w.Remote, w.Local = x.Protocol, x.TLS, x.Remote, x.Local
		a := read1(ctx, l.c, r.warm.req.Method, r.maxResponse(), ErrTooLarge)
		b := r.warm.bytes()
		err := w.write1(l.c, b, len(b))
		if err != nil {
			l.c.reset()
		}
		<-a.done
		w.conclude1(a, err)
		if err := r.warmed(w, a.reusable && !w.Timing.LastWrite.IsZero()); err != nil {
			return err
		}
		_ = l.c.pipe.SetWriteDeadline(time.Time{})
	}
	if ctx.Err() != nil { // breakOn may have come before the line above
		stop()
		return context.Cause(ctx)
	}
	all := m.bytes()
	n := len(all) - 1
	l.last = all[n]
	l.a = read1(ctx, l.c, m.req.Method, r.maxResponse(), ErrTooLarge)
	if err := x.write1(l.c, all[:n], len(all)); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	l.c.awaitAcked(ctx, l.a.done)
	l.c.pipe.hold()
	_, err = l.c.Write(all[n:])
	return err
}

func (r *race) run2(ctx context.Context, c *conn) (released bool, err error) {
	defer c.close()
	defer c.breakOn(ctx)()
	h, err := dial2(ctx, c, r.maxResponse())
	if err != nil {
		return false, err
	}
	defer h.end()
	for i := range r.xs[1:] {
		first, x := &r.xs[0], &r.xs[i+1]
		x.Protocol, x.TLS, x.Remote, x.Local, x.Timing = first.Protocol, first.TLS, first.Remote, first.Local, first.Timing
	}
	if r.warm != nil {
		w := newExchange(r.warm)
		w.Protocol, w.TLS, w.Remote, w.Local = r.xs[0].Protocol, r.xs[0].TLS, r.xs[0].Remote, r.xs[0].Local
		h.exchange(ctx, r.warm, &w)
		if err := r.warmed(w, true); err != nil {
			return false, err
		}
	}

	var streams []*stream2
	if limit := h.streamLimit(); limit < uint64(len(r.ms)) {
		err = fmt.Errorf("the server takes %d streams at once, not %d", limit, len(r.ms))
	}
	var ends []byte
	var sizes []int
	for i := 0; i < len(r.ms) && err == nil; i++ {
		var st *stream2
		if st, err = h.open(r.ms[i], &r.xs[i], false); err != nil {
			break
		}
		streams = append(streams, st)
		var last []byte
		if last, err = h.send(ctx, st); err != nil {
			err = fmt.Errorf("request %d: %w", i, err)
		}
		ends = append(ends, last...)
		sizes = append(sizes, len(last))
	}
	if err == nil {
		err = h.ready(ctx, streams)
	}
	if released = err == nil; released {
		err = h.finish(streams, ends, sizes)
		for _, st := range streams {
			_ = h.await(ctx, func() bool { return !st.ended.IsZero() })
		}
	}
	for _, st := range streams {
		if !released {
			h.giveUp(st, fmt.Errorf("%w: given up before its end", ErrNotRaced))
		}
		h.conclude(ctx, st, err)
	}
	return released, err
}

func (h *conn2) streamLimit() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return uint64(h.maxStreams)
}

// ready waits until everything sent so far has been seen by the server and its
// windows have room for the ends of all streams, and takes that room.
func (h *conn2) ready(ctx context.Context, streams []*stream2) error {
	if err := h.ping(ctx); err != nil {
		return err
	}
	var early error
	err := h.await(ctx, func() bool {
		total := int64(0)
		for i, st := range streams {
			if err := st.early(); err != nil {
				early = fmt.Errorf("request %d: %w", i, err)
				return true
			}
			n := int64(min(len(st.m.req.Body), 1))
			if st.window < n {
				return false
			}
			total += n
		}
		if h.window < total {
			return false
		}
		h.window -= total
		return true
	})
	if err != nil {
		return fmt.Errorf("waiting for the server's windows: %w", err)
	}
	return early
}

// finish writes the ends of all streams in one write.
func (h *conn2) finish(streams []*stream2, ends []byte, sizes []int) error {
	h.wmu.Lock()
	// They leave together, so the moment before counts: a response may be read
	// before this goroutine learns that the write is done.
	at := time.Now()
	n, err := h.c.Write(ends)
	h.wmu.Unlock()
	for i, st := range streams {
		part := ends[:min(n, sizes[i])]
		st.x.sent(part, len(part))
		if len(part) == sizes[i] {
			st.x.whole(at)
		}
		n -= len(part)
		ends = ends[sizes[i]:]
	}
	return err
}
