package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	// frameSize is what every server has to take (RFC 9113, 4.2). Larger
	// frames are never sent, so that the same request gives the same frames.
	frameSize = 16 << 10
	// window2 is what we let a server send without asking, for a stream and
	// for the connection.
	window2 = 1 << 20
	// defaultWindow is what a server lets us send before it says otherwise.
	defaultWindow = 65535
	maxStreamID   = 1<<31 - 1
	// maxBlock bounds the frames of one header block, in bytes: the framer
	// counts what is in them, and any number of CONTINUATION frames may be
	// empty. Huffman coding makes no field longer than that.
	maxBlock = maxHead + maxHead/4
	// maxAside bounds the frames of a connection that are no part of an
	// response: SETTINGS, PING, WINDOW_UPDATE and whatever else there is. DATA
	// that was under way when a stream ended comes on top, a window of it.
	maxAside = 1 << 20
)

var errAside = fmt.Errorf("%w: frames that are not part of one", ErrTooLarge)

// conn2 is the client's end of an HTTP/2 connection. One goroutine reads, and
// keeps the state below mu; whoever sends waits for changes of it.
type conn2 struct {
	c           *conn
	maxResponse int
	done        chan struct{} // closed when reading has ended

	wmu sync.Mutex // held while frames are written

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change
	err        error         // why reading ended
	settings   bool          // the server's have come
	acked      bool          // it has acknowledged ours
	pongs      uint64        // the last PING that came back
	pings      uint64
	maxStreams uint32
	initial    int64 // window of a new stream
	window     int64 // of the connection
	streams    map[uint32]*stream2
	nextID     uint32
	lastID     uint32 // of a GOAWAY: streams after it were not processed
	aside      int    // bytes that were kept for no stream
}

// stream2 is a request and its response. The response's fields belong to the
// connection's mu.
type stream2 struct {
	id     uint32
	m      *message
	x      *Exchange
	window int64

	deaf     bool // after the first frame nothing more is kept
	received []byte
	first    time.Time
	resp     *Response
	interim  []int
	ended    time.Time // the response is whole, or will not become so
	err      error     // why it will not
	refused  bool
}

// dial2 starts HTTP/2 in a connection. It returns once both sides' settings are
// in force, so a server that speaks something else never gets a request.
func dial2(ctx context.Context, c *conn, maxResponse int) (*conn2, error) {
	h := &conn2{
		c: c, maxResponse: maxResponse, done: make(chan struct{}), changed: make(chan struct{}),
		maxStreams: 1<<32 - 1, initial: defaultWindow, window: defaultWindow,
		streams: map[uint32]*stream2{}, nextID: 1, lastID: maxStreamID,
	}
	hello := frames(func(f *http2.Framer) {
		_ = f.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: window2},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead},
		)
		_ = f.WriteWindowUpdate(0, window2-defaultWindow)
	})
	// Nothing may come before the preface, the reader's acknowledgements included.
	_, err := h.write(append([]byte(http2.ClientPreface), hello...))
	go h.readAll(ctx)
	if awaited := h.await(ctx, func() bool { return h.settings && h.acked }); awaited != nil {
		h.end()
		return nil, errors.Join(err, awaited)
	}
	return h, nil
}

// end closes the connection and waits for the reader.
func (h *conn2) end() {
	h.c.close()
	<-h.done
}

// frames renders frames.
func frames(write func(f *http2.Framer)) []byte {
	var b bytes.Buffer
	write(http2.NewFramer(&b, nil)) // memory does not fail
	return b.Bytes()
}

func (h *conn2) write(b []byte) (int, error) {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	return h.c.Write(b)
}

// await waits until ok, which is asked under mu, or until the connection or the
// context is over.
func (h *conn2) await(ctx context.Context, ok func() bool) error {
	for {
		h.mu.Lock()
		yes, err, changed := ok(), h.err, h.changed
		h.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case yes:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// ping goes to the server and back.
func (h *conn2) ping(ctx context.Context) error {
	h.mu.Lock()
	h.pings++
	n := h.pings
	h.mu.Unlock()
	if _, err := h.write(frames(func(f *http2.Framer) { _ = f.WritePing(false, pingData(n)) })); err != nil {
		return err
	}
	return h.await(ctx, func() bool { return h.pongs >= n })
}

func pingData(n uint64) (d [8]byte) {
	copy(d[:], strconv.FormatUint(n, 36))
	return d
}

// open makes the next stream, without a byte on the wire.
func (h *conn2) open(m *message, x *Exchange, deaf bool) (*stream2, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nextID > h.lastID {
		return nil, fmt.Errorf("%w: GOAWAY before the request", ErrClosed)
	}
	st := &stream2{id: h.nextID, m: m, x: x, window: h.initial, deaf: deaf}
	h.nextID += 2
	h.streams[st.id] = st
	return st, nil
}

// send writes the request but for its end, which it returns: the frame with the
// last byte of the body, or an empty one.
func (h *conn2) send(ctx context.Context, st *stream2) (last []byte, err error) {
	err = h.writeStream(st, headerFrames(st.id, st.m.block, false))
	body := st.m.req.Body
	for err == nil && len(body) > 1 {
		var n int
		if n, err = h.reserve(ctx, st, min(len(body)-1, frameSize)); err == nil {
			err = h.writeStream(st, dataFrame(st.id, body[:n], false))
			body = body[n:]
		}
	}
	return dataFrame(st.id, body, true), err
}

// sendAll writes the request whole.
func (h *conn2) sendAll(ctx context.Context, st *stream2) error {
	body := st.m.req.Body
	err := h.writeStream(st, headerFrames(st.id, st.m.block, len(body) == 0))
	for err == nil && len(body) > 0 {
		var n int
		if n, err = h.reserve(ctx, st, min(len(body), frameSize)); err == nil {
			err = h.writeStream(st, dataFrame(st.id, body[:n], n == len(body)))
			body = body[n:]
		}
	}
	if err == nil {
		st.x.whole(time.Now())
	}
	return err
}

// reserve takes up to n bytes from the windows, at least one.
func (h *conn2) reserve(ctx context.Context, st *stream2, n int) (int, error) {
	var early error
	err := h.await(ctx, func() bool {
		if early = st.early(); early != nil {
			return true
		}
		room := min(h.window, st.window, int64(n))
		if room < 1 {
			return false
		}
		n = int(room)
		h.window -= room
		st.window -= room
		return true
	})
	if early != nil {
		err = early
	}
	return n, err
}

// early returns why the rest of the request need not be sent, nil if it must.
// With mu held.
func (st *stream2) early() error {
	switch {
	case st.ended.IsZero():
		return nil
	case st.err != nil:
		return st.err
	}
	return errors.New("it was answered before its end")
}

// writeStream writes frames of a stream. A write that fails is not repeated.
func (h *conn2) writeStream(st *stream2, b []byte) error {
	if st.x.Timing.FirstWrite.IsZero() {
		st.x.Timing.FirstWrite = time.Now()
	}
	h.wmu.Lock()
	before := h.c.pipe.count()
	n, err := h.c.Write(b)
	taken := h.c.pipe.count() - before
	h.wmu.Unlock()
	st.x.sent(b[:n], taken)
	return err
}

// sent books bytes of the request; taken is what the system took for them.
func (x *Exchange) sent(b []byte, taken int) {
	x.Sent = append(x.Sent, b...)
	if taken > 0 && x.Delivery == NotSent {
		x.Delivery = Partial
	}
}

// whole books the request's end.
func (x *Exchange) whole(at time.Time) {
	x.Delivery = Unanswered
	x.Timing.LastWrite = at
}

func headerFrames(id uint32, block []byte, end bool) []byte {
	return frames(func(f *http2.Framer) {
		n := min(len(block), frameSize)
		_ = f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block),
		})
		for block = block[n:]; len(block) > 0; block = block[n:] {
			n = min(len(block), frameSize)
			_ = f.WriteContinuation(id, n == len(block), block[:n])
		}
	})
}

func dataFrame(id uint32, data []byte, end bool) []byte {
	return frames(func(f *http2.Framer) { _ = f.WriteData(id, end, data) })
}

var errNotHTTP2 = fmt.Errorf("%w: this is not HTTP/2", ErrProtocol)

// conclude writes down what came of a stream, for good. Call it when nothing of
// it is being written any more.
func (h *conn2) conclude(ctx context.Context, st *stream2, written error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := st.x
	x.Received = bytes.Clone(st.received)
	x.Timing.FirstByte = st.first
	if st.ended.IsZero() {
		if written == nil {
			written = errors.New("wire: not waited for")
		}
		err := fmt.Errorf("wire: cannot write: %w", written)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		st.fail(err)
	}
	x.Err = st.err
	x.Cut = st.err == ErrCut
	x.Timing.Done = st.ended
	switch {
	case st.resp != nil:
		x.Delivery = Answered
		x.Response = st.resp
		x.Response.Truncated = x.Err != nil
	case st.refused && x.Delivery != NotSent:
		x.Delivery = Refused
	}
}

// single2 is one exchange with HTTP/2.
func (s *Sender) single2(ctx context.Context, c *conn, m *message, cut Cut, x *Exchange) {
	defer c.breakOn(ctx)()
	h, err := dial2(ctx, c, s.cfg.MaxResponse)
	if err != nil {
		x.Err = err
		x.Timing.Done = time.Now()
		return
	}
	defer h.end()
	if cut.At == 0 {
		h.exchange(ctx, m, x)
		return
	}
	st, err := h.open(m, x, cut.At == AfterFirstByte)
	if err != nil {
		x.Err = err
		x.Timing.Done = time.Now()
		return
	}
	if cut.At == BeforeLastByte {
		_, err = h.send(ctx, st)
	} else {
		err = h.sendAll(ctx, st)
	}
	switch {
	case cut.At == AfterFirstByte:
		if h.await(ctx, func() bool { return !st.first.IsZero() || !st.ended.IsZero() }) == nil {
			h.cut(ctx, st, cut.By)
		}
	case err == nil:
		if x.Acked = c.awaitAcked(ctx, h.done); ctx.Err() == nil {
			h.cut(ctx, st, cut.By)
		}
	}
	h.conclude(ctx, st, err)
}

// cut cuts a stream, if it has not ended by itself.
func (h *conn2) cut(ctx context.Context, st *stream2, how CutHow) {
	if how == ByStream {
		h.giveUp(st, ErrCut)
		_ = h.ping(ctx) // it follows the RST_STREAM; what matters is that it came back
		return
	}
	h.mu.Lock()
	st.fail(ErrCut)
	cut := st.err == ErrCut
	h.mu.Unlock()
	if cut {
		h.c.cut(how)
	}
}

// giveUp resets a stream that has not ended by itself.
func (h *conn2) giveUp(st *stream2, why error) {
	h.mu.Lock()
	over := !st.ended.IsZero()
	st.fail(why)
	h.mu.Unlock()
	if !over {
		_ = h.writeStream(st, frames(func(f *http2.Framer) { _ = f.WriteRSTStream(st.id, http2.ErrCodeCancel) }))
	}
}
