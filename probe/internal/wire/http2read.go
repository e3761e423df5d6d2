package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// readAll reads frames until the connection ends, as it does with the context.
func (h *conn2) readAll(ctx context.Context) {
	defer close(h.done)
	raw := &rawFrame{r: bufio.NewReader(h.c.Conn), limit: min(h.maxResponse, maxBlock) + 2*frameSize}
	fr := http2.NewFramer(io.Discard, raw)
	fr.SetMaxReadFrameSize(frameSize)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.MaxHeaderListSize = maxHead
	for n := 0; ; n++ {
		raw.b = nil
		f, err := fr.ReadFrame()
		if se, ok := errors.AsType[http2.StreamError](err); ok {
			// The header of one response is broken; the connection is not.
			h.mu.Lock()
			if st := h.streams[se.StreamID]; st != nil && st.ended.IsZero() {
				st.keep(raw.b, h.maxResponse)
				st.fail(fmt.Errorf("%w: the frames of the response cannot be read", ErrProtocol))
			} else {
				h.aside += len(raw.b)
			}
			h.mu.Unlock()
			err = h.notify(frames(func(f *http2.Framer) { _ = f.WriteRSTStream(se.StreamID, se.Code) }))
		} else if err == nil {
			if _, ok := f.(*http2.SettingsFrame); n == 0 && !ok {
				err = errNotHTTP2
			} else {
				err = h.notify(h.take(f, raw.b))
			}
		}
		if err == nil {
			err = h.flooded()
		}
		if err != nil {
			err = raw.explain(err)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			h.mu.Lock()
			h.over(err)
			h.mu.Unlock()
			return
		}
	}
}

// flooded returns an error if the server has sent too much that is no part of an
// response.
func (h *conn2) flooded() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.aside > maxAside+len(h.streams)*window2 {
		return errAside
	}
	return nil
}

// rawFrame keeps the bytes of the frame being read.
type rawFrame struct {
	r     io.Reader
	b     []byte
	limit int
	err   error
}

func (r *rawFrame) Read(p []byte) (int, error) {
	if len(r.b) > r.limit {
		r.err = fmt.Errorf("%w: its header", ErrTooLarge)
		return 0, r.err
	}
	n, err := r.r.Read(p)
	r.b = append(r.b, p[:n]...)
	if err != nil {
		r.err = err
	}
	return n, err
}

// explain tells why reading ended. Frames' errors may quote the peer.
func (r *rawFrame) explain(err error) error {
	switch {
	case errors.Is(err, errNotHTTP2), errors.Is(err, errAside):
		return err
	case errors.Is(r.err, ErrTooLarge):
		return r.err
	case r.err != nil:
		return fmt.Errorf("%w: %w", ErrClosed, r.err)
	}
	return fmt.Errorf("%w: the frames cannot be read", ErrProtocol)
}

// over ends what goes on. With mu held.
func (h *conn2) over(err error) {
	h.err = err
	for _, st := range h.streams {
		st.fail(err)
	}
	h.change()
}

func (h *conn2) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// notify wakes who waits, and writes what a frame asked for.
func (h *conn2) notify(reply []byte) error {
	h.mu.Lock()
	h.change()
	h.mu.Unlock()
	if len(reply) == 0 {
		return nil
	}
	// A reply that cannot be written does not matter: there may be a response
	// to read yet, and if there is not, reading ends by itself.
	_, _ = h.write(reply)
	return nil
}

// take takes a frame in and returns what to reply.
func (h *conn2) take(f http2.Frame, raw []byte) (reply []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := f.Header().StreamID
	st := h.streams[id]
	if st != nil && (st.deaf && !st.first.IsZero() || !st.ended.IsZero()) {
		st = nil
	}
	_, isWindow := f.(*http2.WindowUpdateFrame)
	if st == nil || isWindow {
		h.aside += len(raw)
	} else if !st.keep(raw, h.maxResponse) {
		reply = frames(func(f *http2.Framer) { _ = f.WriteRSTStream(id, http2.ErrCodeCancel) })
	}

	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			h.acked = true
			return nil
		}
		h.settings = true
		_ = f.ForeachSetting(func(s http2.Setting) error {
			switch s.ID {
			case http2.SettingMaxConcurrentStreams:
				h.maxStreams = s.Val
			case http2.SettingInitialWindowSize:
				for _, st := range h.streams {
					st.window += int64(s.Val) - h.initial
				}
				h.initial = int64(s.Val)
			}
			return nil
		})
		return frames(func(f *http2.Framer) { _ = f.WriteSettingsAck() })
	case *http2.PingFrame:
		if !f.IsAck() {
			data := f.Data
			return frames(func(f *http2.Framer) { _ = f.WritePing(true, data) })
		}
		for n := h.pongs + 1; n <= h.pings; n++ {
			if f.Data == pingData(n) {
				h.pongs = n
			}
		}
	case *http2.WindowUpdateFrame:
		if id == 0 {
			h.window += int64(f.Increment)
		} else if st != nil {
			st.window += int64(f.Increment)
		}
	case *http2.GoAwayFrame:
		h.lastID = min(h.lastID, f.LastStreamID)
		for _, st := range h.streams {
			if st.id > h.lastID && st.ended.IsZero() {
				st.keep(raw, h.maxResponse)
				st.refused = true
				st.fail(fmt.Errorf("%w: GOAWAY, %v, and the stream is not among the processed ones", ErrClosed, f.ErrCode))
			}
		}
	case *http2.RSTStreamFrame:
		if st != nil {
			st.refused = f.ErrCode == http2.ErrCodeRefusedStream
			st.fail(fmt.Errorf("%w: RST_STREAM, %v", ErrClosed, f.ErrCode))
		}
	case *http2.DataFrame:
		if n := f.Length; n > 0 {
			reply = append(reply, frames(func(f *http2.Framer) {
				_ = f.WriteWindowUpdate(0, n)
				if st != nil && st.ended.IsZero() {
					_ = f.WriteWindowUpdate(id, n)
				}
			})...)
		}
		if st != nil && st.ended.IsZero() {
			if st.resp == nil {
				st.fail(fmt.Errorf("%w: DATA before the header", ErrProtocol))
				break
			}
			st.resp.Body = append(st.resp.Body, f.Data()...)
			if f.StreamEnded() {
				st.finish()
			}
		}
	case *http2.MetaHeadersFrame:
		if st != nil && st.ended.IsZero() {
			st.header(f)
		}
	}
	return reply
}

// keep keeps the bytes of a frame, and reports whether there was room.
func (st *stream2) keep(raw []byte, limit int) bool {
	if len(st.received)+len(raw) > limit {
		st.fail(ErrTooLarge)
		return false
	}
	if st.first.IsZero() {
		st.first = time.Now()
	}
	st.received = append(st.received, raw...)
	return true
}

func (st *stream2) header(f *http2.MetaHeadersFrame) {
	switch status, err := strconv.Atoi(f.PseudoValue("status")); {
	case f.Truncated:
		st.fail(fmt.Errorf("%w: its header", ErrTooLarge))
		return
	case st.resp != nil: // trailers
		st.resp.Trailer = header2(f)
	case err != nil || status < 100 || status > 999:
		st.fail(fmt.Errorf("%w: no status", ErrProtocol))
		return
	case status < 200 && len(st.interim) == maxInterim:
		st.fail(errInterim)
		return
	case status < 200:
		st.interim = append(st.interim, status)
	default:
		st.resp = &Response{Status: status, Proto: "HTTP/2.0", Header: header2(f), Interim: st.interim}
	}
	if f.StreamEnded() {
		st.finish()
	}
}

func header2(f *http2.MetaHeadersFrame) http.Header {
	h := http.Header{}
	for _, f := range f.RegularFields() {
		h.Add(f.Name, f.Value)
	}
	return h
}

// fail ends the response without its end. The first reason stays.
func (st *stream2) fail(err error) {
	if st.ended.IsZero() {
		st.ended, st.err = time.Now(), err
	}
}

// finish ends the response, and checks that it is as long as it said.
func (st *stream2) finish() {
	if st.resp == nil {
		st.fail(fmt.Errorf("%w: the stream ended without a status", ErrProtocol))
		return
	}
	bodyless := st.m.req.Method == http.MethodHead || st.resp.Status == http.StatusNoContent || st.resp.Status == http.StatusNotModified
	if said := st.resp.Header.Get("Content-Length"); said != "" && !bodyless && strings.TrimSpace(said) != strconv.Itoa(len(st.resp.Body)) {
		st.fail(fmt.Errorf("%w: the body is not as long as Content-Length says", ErrProtocol))
		return
	}
	st.ended = time.Now()
}

// exchange is one exchange in the connection.
func (h *conn2) exchange(ctx context.Context, m *message, x *Exchange) {
	st, err := h.open(m, x, false)
	if err != nil {
		x.Err = err
		x.Timing.Done = time.Now()
		return
	}
	err = h.sendAll(ctx, st)
	// A response may be on its way even if the request could not be written.
	_ = h.await(ctx, func() bool { return !st.ended.IsZero() })
	h.conclude(ctx, st, err)
}
